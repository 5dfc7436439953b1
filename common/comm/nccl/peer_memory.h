// Memory that the ranks of a group have mapped into each other's address spaces, so that one GPU's
// copy engines can write to another's memory over NVLink.
//
//     rank 0's addresses    [ its block      ]  [ rank 1's block ]
//     rank 1's addresses    [ rank 0's block ]  [ its block      ]
//
//     at(1, x): where in rank 1's block lies what lies at x in its own
//
// A process exports an allocation as a handle of 64 bytes, the handles travel over MPI, and the
// others map them (CUDA's programming guide: "Interprocess communication"). That takes
// milliseconds, so blocks are never given back: a block that was let go is the next one of its
// size.
#pragma once

#include <deque>
#include <optional>

#include "comm_nccl.h"

namespace ultrascale {

// Also whose turn it is among a group's calls, and where its ranks' streams meet.
class PeerMemory : public Allocator, public std::enable_shared_from_this<PeerMemory> {
public:
    // All ranks of the group, which lives as long as anyone allocates. nullptr on all of them where
    // one cannot map another's memory: another machine, GPUs that do not reach each other.
    static std::shared_ptr<PeerMemory> open(Communicator::Impl& group);

    // All ranks, in the same order and with the same sizes: then they are given blocks that belong
    // together.
    void* allocate(int64_t bytes) override;
    void free(void* data) override;

    int ranks() const { return size_; }
    bool holds(const void* data) const { return block_of(data) != nullptr; }
    char* at(int peer, const void* data) const;  // `data` lies in a block

    // All ranks' n-th calls belong together: a stream goes on when every rank's has come to this
    // point. No multiprocessor waits: a stream writes a number to its peers' memory and waits for
    // theirs.
    void meet(const Stream& stream);

    // Whether they have met since the block of `data` was let go last: then nobody reads any more
    // what it was before.
    bool met_since_let_go(const void* data) const { return block_of(data)->let_go_at != meetings_; }

    // Calls of a group run one after another, on whatever streams.
    void begin_turn(const Stream& stream) {
        cuda_check(cudaStreamWaitEvent(cuda_stream(stream), turn_ended_));
    }
    void end_turn(const Stream& stream) {
        cuda_check(cudaEventRecord(turn_ended_, cuda_stream(stream)));
    }

    // Bytes that all groups' blocks for tensors hold, and the most that tensors had of them.
    struct Occupancy {
        int64_t held = 0, used = 0, most_used = 0;
    };
    static const Occupancy& occupancy();

private:
    struct Block {
        std::vector<char*> of_rank;  // its own, and where the others' are mapped
        int64_t bytes;
        bool used = true;
        // how many meetings there had been; of a new block one less, as nobody has used it
        uint32_t let_go_at;
    };
    explicit PeerMemory(Communicator::Impl& group);
    std::optional<Block> map_new(int64_t bytes);
    char* mine(const Block& block) const { return block.of_rank[size_t(rank_)]; }
    const Block* block_of(const void* data) const;

    Communicator::Impl* group_;  // to allocate; blocks may be let go after it
    int rank_, size_;
    // in the order in which they were made, which is the same on all ranks
    std::deque<Block> blocks_;
    uint32_t* arrived_ = nullptr;  // in the first block: how many meetings each rank has come to
    uint32_t meetings_ = 0;
    cudaEvent_t turn_ended_ = nullptr;
};

}  // namespace ultrascale
