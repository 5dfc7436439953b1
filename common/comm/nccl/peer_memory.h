// Memory that the ranks of a group have mapped into each other's address spaces, so that one GPU's
// copy engines can write to another's memory over NVLink.
//
//     rank 0's addresses    [ its block      ]  [ rank 1's block ]
//     rank 1's addresses    [ rank 0's block ]  [ its block      ]
//
//     at(1, x): the address in rank 1's block that corresponds to x in the rank's own block
//
// A process exports an allocation as a handle of 64 bytes, the handles travel over MPI, and the
// others map them (CUDA's programming guide: "Interprocess communication"). That takes
// milliseconds, so blocks are never returned to CUDA: the next allocation of the same size reuses a
// freed block.
#pragma once

#include <deque>
#include <optional>

#include "comm_nccl.h"

namespace ultrascale {

// Allocates such memory, orders a group's calls, and synchronizes its ranks' streams (meet).
class PeerMemory : public Allocator, public std::enable_shared_from_this<PeerMemory> {
public:
    // Called by all ranks of the group, which must live as long as anyone allocates. Returns
    // nullptr on all of them if one cannot map another's memory, because it is on another machine
    // or their GPUs cannot access each other.
    static std::shared_ptr<PeerMemory> open(Communicator::Impl& group);

    // All ranks must allocate in the same order and with the same sizes: then their blocks
    // correspond.
    void* allocate(int64_t bytes) override;
    void free(void* data) override;

    int ranks() const { return size_; }
    bool holds(const void* data) const { return block_of(data) != nullptr; }
    char* at(int peer, const void* data) const;  // `data` lies in a block

    // A barrier among the ranks' streams: the n-th calls of all ranks belong together, and a stream
    // continues when every rank's stream has reached its call. It occupies no multiprocessor: a
    // stream writes a number to its peers' memory and waits for theirs.
    void meet(const Stream& stream);

    // Synchronizes two ranks by counters in each rank's memory, which start at zero. tell() sets a
    // peer's counter after all earlier work of the stream; after await(), a stream continues when
    // this rank's counter has reached `value`.
    void tell(int peer, int counter, uint32_t value, const Stream& stream);
    void await(int counter, uint32_t value, const Stream& stream);

    // Whether the ranks have met since the block of `data` was last freed. If so, nobody reads its
    // previous contents any more.
    bool met_since_let_go(const void* data) const { return block_of(data)->let_go_at != meetings_; }

    // A group's calls run one after another, even on different streams.
    void begin_turn(const Stream& stream) {
        cuda_check(cudaStreamWaitEvent(cuda_stream(stream), turn_ended_));
    }
    void end_turn(const Stream& stream) {
        cuda_check(cudaEventRecord(turn_ended_, cuda_stream(stream)));
    }

private:
    struct Block {
        std::vector<char*> by_rank;  // its own, and the others' as mapped here
        int64_t bytes;
        bool used = true;
        // the number of meetings when it was freed; for a new block, which was never used, one less
        uint32_t let_go_at;
    };
    explicit PeerMemory(Communicator::Impl& group);
    std::optional<Block> map_new(int64_t bytes);
    char* mine(const Block& block) const { return block.by_rank[size_t(rank_)]; }
    const Block* block_of(const void* data) const;

    Communicator::Impl* group_;  // for allocating; blocks may be freed after its end
    int rank_, size_;
    // in the order of their creation, which is the same on all ranks
    std::deque<Block> blocks_;
    // In the first block: how many meetings each rank has reached, followed by the counters.
    uint32_t* arrived_ = nullptr;
    uint32_t meetings_ = 0;
    cudaEvent_t turn_ended_ = nullptr;
};

}  // namespace ultrascale
