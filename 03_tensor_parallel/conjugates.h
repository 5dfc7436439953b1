// What stands at the two borders of a region that is computed in parts: f and f*.
//
//          every rank holds x | each rank has its columns (heads, features) | every rank holds y
//
//     forward    x ---- f ------> column linear ---> ... ---> row linear ----- f* ----> y         f  : nothing       f* : all-reduce
//     backward   dx <--- f ------ column linear <--- ... <--- row linear <---- f* ----- dy        f  : all-reduce    f* : nothing
//
// They are conjugate: each one's backward is the other's forward. Why f sums in backward: every
// rank used the same x, so x's gradient is the sum of what each of them makes of its own columns.
// Why f* does nothing: each rank's partial sum enters y with factor one, so the gradient of each is
// dy. (Shoeybi et al. 2019, Megatron-LM; the playbook's appendix "TP backward pass".)
//
// gather() is f forward and f* backward; sum() is f* forward and f backward. sequence_parallel.h
// puts g and g* in their place.
#pragma once

#include <algorithm>
#include <vector>

#include "comm/comm.h"
#include "tensor_options.h"
#include "model/parts.h"

namespace ultrascale {

// A tensor (N, h) whose rows arrive chunk by chunk.
struct Incoming {
    Tensor whole;
    std::vector<Work> chunks;  // none: it is there

    const Tensor& wait() {
        for (Work& work : chunks) work.wait();
        return whole;
    }
    int64_t count() const { return std::max<int64_t>(1, int64_t(chunks.size())); }
    void wait(int64_t chunk) {
        if (!chunks.empty()) chunks[size_t(chunk)].wait();
    }
};

// A sum over ranks that leaves chunk by chunk.
struct Outgoing {
    Tensor partial;  // (N, h): this rank's
    Tensor result;   // what this rank keeps of the sum
    std::vector<Work> chunks;

    Tensor wait() {
        for (Work& work : chunks) work.wait();
        partial = {};
        return std::move(result);
    }
};

class Conjugates {
public:
    Conjugates(const Communicator& group, const TensorOptions& options)
        : group_(group), options_(options) {}
    virtual ~Conjugates() = default;

    virtual Incoming gather(const Tensor& x, bool /*beside*/) const { return {x, {}}; }
    // A sum over ranks: room for this rank's summands; begin it, then hand over chunk after chunk
    // of its rows as they are computed.
    virtual Tensor empty_partial(Shape shape, DType dtype) const {
        return Tensor::empty(std::move(shape), dtype, Memory::activation,
                             group_.symmetric_memory());
    }
    virtual Outgoing begin_sum(Tensor partial) const { return {partial, partial, {}}; }
    virtual void sum_chunk(Outgoing& sum, int64_t c, int64_t chunks, bool beside) const {
        if (group_.size() > 1)
            sum.chunks.push_back(group_.all_reduce(chunk_of(sum.partial, c, chunks), Reduce::sum,
                                                   stream_for(beside)));
    }
    // All of it at once.
    virtual Outgoing sum(Tensor partial, bool beside) const {
        Outgoing sum = begin_sum(std::move(partial));
        sum_chunk(sum, 0, 1, beside);
        return sum;
    }

    // Into how many chunks a GEMM with so many rows is cut for overlap.h.
    int64_t chunks(int64_t rows) const { return row_chunks(options_, rows); }
    // Shape of the residual stream for these rows (B, T, h), and where this rank's rows lie among
    // them.
    virtual Shape stream_shape(const Batch& batch, int64_t h) const {
        return {batch.sequences(), batch.length(), h};
    }
    struct Stretch {
        int64_t local, global, rows;
    };
    virtual std::vector<Stretch> stretches(int64_t rows) const { return {{0, 0, rows}}; }

    bool gathers() const {
        return options_.sequence_parallel;
    }  // otherwise what gather() returns is what it was given
    bool gathers_again() const { return gathers() && !options_.keep_gathered; }
    // A linear's whole input in backward, from what was kept of it.
    Incoming gather_again(const Tensor& kept, bool beside) const {
        return gathers_again() ? gather(kept, beside) : Incoming{kept, {}};
    }
    bool backward_overlaps() const { return options_.overlap != Overlap::none; }
    const Communicator& group() const { return group_; }

protected:
    const Communicator& group_;
    TensorOptions options_;
};

}  // namespace ultrascale
