// The borders f and f* of 1_plain.h as functions that later files replace. A region is what the
// ranks compute in parts, and the general linears ask it what to do at its borders. Here, on rung 1
// of their ladder, they do what the plain ones do. What is virtual becomes g and g* on rung 2
// (4_sequence_parallel.h).
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
// They are conjugate: each one's backward is the other's forward. So there are two operations.
// enter() is what f does in forward and what f* does in backward: nothing. leave() is what f* does
// in forward and what f does in backward: the all-reduce.
//
//                        forward              backward
//     column linear      enter(x), product    product, leave(dx)
//     row linear         product, leave(y)    enter(dy), product
//
// This table is all that 2_column_linear.h and 2_row_linear.h need of this file; the rest may be
// read with the later rungs. A Pending, a stream and chunks let a communication go on while
// something else is computed: rung 3 (5_async_backward.h, 6_chunked_linear.h).
#pragma once

#include <algorithm>
#include <vector>

#include "comm/comm.h"
#include "model/dropout.h"
#include "model/parts.h"
#include "tensor_options.h"
#include "train/interleave.h"

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

    // Returns all of the residual stream (x, or in backward its gradient dy), given what this rank
    // holds of it: on rung 1 that is all of it anyway, on rung 2 (g) 1/tp of the tokens.
    Tensor enter(const Tensor& x) const { return wait(begin_enter(x, stream())); }
    // Adds up the ranks' partial sums (of y, or in backward of dx), and returns what this rank
    // holds of the result: on rung 1 all of it, on rung 2 (g*) its 1/tp of the tokens.
    Tensor leave(Tensor partial) const { return wait(begin_leave(std::move(partial), stream())); }

    // What enter() and leave() begin. f in forward, f* in backward: nothing.
    virtual Pending begin_enter(const Tensor& x, Stream&) const { return {x}; }
    // f* in forward, f in backward: an all-reduce in place.
    virtual Pending begin_leave(Tensor partial, Stream& stream) const {
        Pending sum{empty_sum(partial), std::move(partial)};
        sum.chunks.push_back(sum_rows(sum.result, sum.partial, stream));
        return sum;
    }
    // Its two steps. The first says where the sum will be: on rung 1 it overwrites the partial sum.
    // The second makes the sum; 6_chunked_linear.h lets it make some rows at a time.
    virtual Tensor empty_sum(const Tensor& partial) const { return partial; }
    virtual Work sum_rows(Tensor sum, Tensor /*partial*/, Stream& stream) const {
        return group_.size() > 1 ? group_.all_reduce(sum, Reduce::sum, stream) : Work();
    }
    // Allocates this rank's partial sum, where other GPUs can read it if there is such memory.
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
    // Whether a linear's whole input is gathered again in backward instead of being kept (rung 2).
    virtual bool gathers_again() const { return false; }
    // Which of the micro-batch's B T tokens this rank's `rows` rows of the stream are (rung 2).
    virtual std::vector<TokenRange> tokens(int64_t rows) const { return {{0, 0, rows}}; }
    // Into how many chunks a GEMM with so many rows is cut (rung 3).
    int64_t chunks(int64_t rows) const { return row_chunks(options_, rows); }
    // An all-gather of what is not in the stream: `mine` from each rank.
    void gather(const Tensor& all, const Tensor& mine) const {
        Pending gathered{all};
        gathered.chunks.push_back(group_.all_gather(all, mine, stream()));
        wait(std::move(gathered));
    }
    // If a micro-batch runs in halves: the other half computes now, and this one goes on when that
    // one's turn ends (6_halves.h, rung 3).
    virtual void end_turn() const {
        if (in_halves()) yield_to_other();
    }

protected:
    const Communicator& group_;
    TensorOptions options_;

private:
    // A communication that is waited for at once is on the compute stream. In halves the other half
    // computes meanwhile, so it has a stream of its own.
    bool in_halves() const { return options_.overlap == Overlap::halves; }
    Stream& stream() const { return in_halves() ? communication_stream() : compute_stream(); }
    Tensor wait(Pending pending) const {
        if (!pending.chunks.empty()) end_turn();
        return pending.wait();
    }
};

}  // namespace ultrascale::tensor_parallel
