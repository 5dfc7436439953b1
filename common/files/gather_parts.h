// Tensors of which every rank holds parts, put together on rank 0 one at a time: how a sharded
// model is saved.
#pragma once

#include <vector>

#include "comm/comm.h"
#include "model/parameter.h"

namespace ultrascale {

class GatherParts {
public:
    // All ranks of `group` (nullptr: this rank has everything) call it with what they hold. Parts
    // that are the same on several ranks (replicas) are taken from the first of them.
    GatherParts(const Communicator* group, std::vector<TensorPart> mine);

    struct Whole {
        std::string name;
        Shape shape;
        DType dtype;
    };
    // On every rank the same list, by name: however the tensors are spread, the same file is
    // written.
    const std::vector<Whole>& tensors() const { return tensors_; }

    // All ranks call it for the same tensor: on rank 0 the tensor, elsewhere nothing. It is an
    // error of the program if the parts do not cover it.
    Tensor gather(size_t tensor) const;

private:
    struct Piece {  // of one tensor
        int rank;
        std::vector<Range> slice;
        int64_t begin, count;
    };
    static bool same(const std::vector<Range>& a, const std::vector<Range>& b);
    Tensor own(const std::string& name, const Piece& piece) const;  // this rank's

    const Communicator* group_;
    std::vector<TensorPart> mine_;
    std::vector<Whole> tensors_;
    std::vector<std::vector<Piece>> pieces_;  // of each tensor
};

}  // namespace ultrascale
