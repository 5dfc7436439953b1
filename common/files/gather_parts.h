// Assembles tensors whose parts are spread over the ranks on rank 0, one at a time, to save a
// sharded model. Values travel between hosts: no device takes part, and nothing is counted.
#pragma once

#include <map>
#include <vector>

#include "comm/comm.h"
#include "model/parameter.h"

namespace ultrascale {

class GatherParts {
public:
    // All ranks of `group` (nullptr: this rank has everything) call it with their parts. If several
    // ranks hold the same part (replicas), it is taken from the first of them.
    GatherParts(const Communicator* group, const std::vector<TensorPart>& mine);

    struct Whole {
        std::string name;
        Shape shape;
        DType dtype;
    };
    // All tensors, the same list on every rank, sorted by name, so that the file is the same for
    // every distribution of the tensors.
    const std::vector<Whole>& tensors() const { return tensors_; }

    // The bytes that are taken from this rank.
    int64_t own_bytes() const;
    // Allocates copies of what is taken from this rank, in host memory (Memory::checkpoint).
    // gather() reads these from then on, and another thread may call it.
    void keep_copies();
    // Queues the copying on the compute stream. `mine` has the same parts as before, with new
    // values. Returns before the copies are complete.
    void copy(const std::vector<TensorPart>& mine);

    // All ranks call it for the same tensor. Returns the tensor's bytes on rank 0, and none
    // elsewhere. If the parts do not cover the tensor, it fails check().
    std::vector<char> gather(size_t tensor) const;

private:
    struct Piece {  // of one tensor
        int rank;
        std::vector<Range> slice;
        int64_t begin, count;
        bool operator==(const Piece& other) const;  // whichever rank has it
    };
    static Piece piece_of(const TensorPart& part, int rank = 0);
    // This rank's part, or nullptr if it is taken from another rank.
    const TensorPart* own(const std::string& name, const Piece& piece) const;

    const Communicator* group_;
    int rank_;
    std::multimap<std::string, TensorPart> mine_;  // what is taken from this rank, by name
    std::vector<Whole> tensors_;
    std::vector<std::vector<Piece>> pieces_;  // per tensor
};

}  // namespace ultrascale
