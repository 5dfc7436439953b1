// Assembles tensors whose parts are spread over the ranks on rank 0, one at a time, to save a
// sharded model.
#pragma once

#include <vector>

#include "comm/comm.h"
#include "model/parameter.h"

namespace ultrascale {

class GatherParts {
public:
    // All ranks of `group` (nullptr: this rank has everything) call it with their parts. If several
    // ranks hold the same part (replicas), it is taken from the first of them.
    GatherParts(const Communicator* group, std::vector<TensorPart> mine);

    struct Whole {
        std::string name;
        Shape shape;
        DType dtype;
    };
    // All tensors, the same list on every rank, sorted by name, so that the file is the same for
    // every distribution of the tensors.
    const std::vector<Whole>& tensors() const { return tensors_; }

    // All ranks call it for the same tensor. Returns the tensor on rank 0, and an empty one
    // elsewhere. If the parts do not cover the tensor, it fails check().
    Tensor gather(size_t tensor) const;

private:
    struct Piece {  // of one tensor
        int rank;
        std::vector<Range> slice;
        int64_t begin, count;
    };
    static bool same(const std::vector<Range>& a, const std::vector<Range>& b);
    Tensor own(const std::string& name, const Piece& piece) const;  // this rank's part

    const Communicator* group_;
    std::vector<TensorPart> mine_;
    std::vector<Whole> tensors_;
    std::vector<std::vector<Piece>> pieces_;  // per tensor
};

}  // namespace ultrascale
