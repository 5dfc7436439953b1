// Rung 1 of the ladder of linears begins here, with f and f*, the two borders of a region that the
// ranks compute in parts.
//
//          every rank holds x | each has its columns (heads, features) | every rank holds y
//
//     forward    x ----- f ----> column linear --> ... --> row linear ---- f* ---> y
//     backward   dx <--- f ----- column linear <-- ... <-- row linear <--- f* ---- dy
//
//                         f                f*
//     forward             nothing          all-reduce
//     backward            all-reduce       nothing
//
// They are conjugate: each one's backward is the other's forward. Why f sums in backward: every
// rank used the same x, so the gradient of x is the sum of what the ranks get from their own
// columns. Why f* does nothing: each rank's partial sum enters y with factor one, so the gradient
// of each is dy. (Shoeybi et al. 2019, Megatron-LM; the playbook's appendix "TP backward pass".)
//
// A layer has two regions, so its forward makes two all-reduces of (B, T, h), its backward two:
//
//     attention      norm - f - q, k, v: column - this rank's heads - o: row - f* - residual
//     feed-forward   norm - f - gate, up: column - SwiGLU - down: row ------- f* - residual
//
// So there are two operations. enter() is what f does in forward and what f* does in backward:
// nothing. leave() is what f* does in forward and what f does in backward: the all-reduce. A column
// linear calls enter() in its forward and leave() in its backward; a row linear does the reverse.
//
// Next: 2_column_linear.h and 2_row_linear.h. What is virtual here becomes g and g* on rung 2
// (4_sequence_parallel.h). Streams and chunks matter on rung 3 (5_async_backward.h,
// 6_chunked_linear.h): on rung 1 read enter(), leave() and what they call, begin_enter() and
// begin_leave(), as if they had waited already.
#pragma once

#include <algorithm>
#include <vector>

#include "comm/comm.h"
#include "model/dropout.h"
#include "model/parts.h"
#include "tensor_options.h"

namespace ultrascale::tensor_parallel {

// The result of a communication that may not have finished yet: wait() waits and returns it. On
// rung 3 it may be in chunks, and wait(c) waits for chunk c only.
struct Pending {
    Tensor result;
    Tensor partial = {};            // the input of a sum; freed by wait()
    std::vector<Work> chunks = {};  // one Work for each chunk; empty if nothing was communicated

    Tensor wait() {
        for (Work& work : chunks) work.wait();
        partial = {};
        return std::move(result);
    }
    int64_t count() const { return std::max<int64_t>(1, int64_t(chunks.size())); }
    void wait(int64_t chunk) {
        if (!chunks.empty()) chunks[size_t(chunk)].wait();
    }
};

class ParallelRegion {
public:
    ParallelRegion(const Communicator& group, const TensorOptions& options)
        : group_(group), options_(options) {}
    virtual ~ParallelRegion() = default;

    // From what this rank holds of the residual stream (x, or in backward its gradient dy) to all
    // of it. On rung 1 each rank holds all of it anyway; on rung 2 (g) it holds 1/tp of the tokens.
    Tensor enter(const Tensor& x) const { return begin_enter(x, compute_stream()).wait(); }
    // Adds up the ranks' partial sums (of y, or in backward of dx) and returns what this rank holds
    // of the result: on rung 1 all of it, on rung 2 (g*) its 1/tp of the tokens.
    Tensor leave(Tensor partial) const {
        return begin_leave(std::move(partial), compute_stream()).wait();
    }

    // f forward, f* backward: nothing.
    virtual Pending begin_enter(const Tensor& x, Stream&) const { return {x}; }
    // f* forward, f backward: all-reduce, in place.
    virtual Pending begin_leave(Tensor partial, Stream& stream) const {
        Pending sum{empty_sum(partial), std::move(partial)};
        sum.chunks.push_back(sum_rows(sum.result, sum.partial, stream));
        return sum;
    }
    // Its two steps: where the sum will be (on rung 1 it overwrites the partial sum); and the sum,
    // which 6_chunked_linear.h makes of some rows at a time.
    virtual Tensor empty_sum(const Tensor& partial) const { return partial; }
    virtual Work sum_rows(Tensor sum, Tensor /*partial*/, Stream& stream) const {
        return group_.size() > 1 ? group_.all_reduce(sum, Reduce::sum, stream) : Work();
    }
    // Allocates this rank's partial sum.
    virtual Tensor empty_partial(Shape shape, DType dtype) const {
        return Tensor::empty(std::move(shape), dtype, Memory::activation,
                             group_.symmetric_memory());
    }
    // The shape of the residual stream on this rank: (B, T, h) on rung 1, (B T / tp, h) on rung 2.
    virtual Shape stream_shape(const Batch& batch, int64_t h) const {
        return {batch.sequences(), batch.length(), h};
    }
    const Communicator& group() const { return group_; }

    // ---- What the later rungs ask ---------------------------------------------------------------
    // Whether a linear's whole input is gathered again in backward, instead of being kept (rung 2).
    virtual bool gathers_again() const { return false; }
    // Which of the micro-batch's B T tokens this rank's `rows` rows of the stream are (rung 2).
    virtual std::vector<TokenRange> tokens(int64_t rows) const { return {{0, 0, rows}}; }
    // Into how many chunks a GEMM with so many rows is cut (rung 3).
    int64_t chunks(int64_t rows) const { return row_chunks(options_, rows); }

protected:
    const Communicator& group_;
    TensorOptions options_;
};

}  // namespace ultrascale::tensor_parallel
