// Tensor parallelism with nothing else (--plain): n ranks compute a product together, and each
// holds 1/n of its weight. A product can be cut in two ways. Put one behind the other, and nothing
// is communicated between them. Here are Y = X A and then Z = Y B on two ranks:
//
//     column linear    Y = X A    A by columns: A = [ A_0 | A_1 ]    Y = [ X A_0 | X A_1 ]
//     row linear       Z = Y B    B by rows:    B = [ B_0 ]          Z = Y_0 B_0 + Y_1 B_1
//                                                   [ B_1 ]
//
//               X        f     X A_r                Y_r B_r          f*       Z
//     rank 0    all ---------> Y_0 ---------------> Y_0 B_0 ---+-- sum ---> all
//     rank 1    all ---------> Y_1 ---------------> Y_1 B_1 ---+-- sum ---> all
//
// A rank holds all of X and Z, and its own part of A, Y and B. It computes its columns of Y from
// all of X. A row linear needs only the same columns of Y, and gives one summand of Z: an
// all-reduce (MPI_Allreduce, ncclAllReduce) gives every rank their sum. Between the two there may
// be what works on columns or heads apart. With d for the gradient, backward goes the other way:
//
//     row linear       dY_r = dZ B_r^T              dZ is on every rank: nothing is communicated
//     column linear    dX = sum of dY_r A_r^T       every rank used all of X: an all-reduce
//     weights          dB_r = Y_r^T dZ,  dA_r = X^T dY_r      from what this rank has
//
// So the border f does nothing in forward and sums in backward; f* sums in forward and does nothing
// in backward. A layer has two such pairs, with two all-reduces in forward and two in backward:
//
//     attention        f - q, k, v: column - attention of this rank's heads - o: row - f*
//     feed-forward     f - gate, up: column - SwiGLU of its features ---- down: row - f*
//
// Each of them is of all of (B, T, h): B sequences of T tokens, h numbers a token. Everything else
// (norms, residuals) every rank computes alike. Shoeybi et al. 2019, Megatron-LM,
// https://arxiv.org/abs/1909.08053.
//
// The classes below replace the Linears of a layer (8_tensor_parallel.h; the embedding and the
// head are in 3_vocabulary_*.h). multiply(y, x) is y = x W^T, because a weight W lies as (out, in):
// the columns of A are rows of W. What later files add: each rank normalises only a part of the
// tokens; something is computed while the ranks communicate. Both need a more general f and f*,
// which begin in 1_parallel_region.h.
#pragma once

#include "comm/comm.h"
#include "core/ops.h"
#include "model/activation.h"
#include "model/parts.h"

namespace ultrascale::tensor_parallel {

// Returns memory for `width` numbers of each token of the micro-batch.
inline Tensor for_tokens(const Context& context, int64_t width, DType dtype) {
    return activation({context.batch.sequences(), context.batch.length(), width}, dtype);
}

class PlainColumnLinear : public Linear {
public:
    // `weights`: the rows of W that this rank holds; one after the other they form W_r. What is not
    // overridden, as the weight's gradient from what `saved` keeps, is as on one device.
    PlainColumnLinear(std::vector<Parameter*> weights, const Communicator& ranks)
        : Linear(std::move(weights)), ranks_(ranks) {}

    // exercise 03.1 begin: forward: Y_r = X W_r^T; backward: dX = sum over r of dY_r W_r
    // x is (B, T, h), the result (B, T, this rank's outputs).
    Tensor forward(const Tensor& x, Saved& saved, Context& context,
                   const Tensor& /*residual*/) override {
        const Tensor y = for_tokens(context, outputs(), x.dtype());
        multiply(y, x);
        saved.keep("x", x);  // for the weight's gradient
        return y;
    }

    Tensor backward_input(const Tensor& dy, Saved& saved, Context& context) override {
        const Tensor dx = for_tokens(context, inputs(), dy.dtype());
        multiply_backward(dx, dy);
        if (ranks_.size() > 1) ranks_.all_reduce(dx);  // in place
        saved.keep("dy", dy);
        return dx;
    }
    // exercise 03.1 end

private:
    const Communicator& ranks_;
};

class PlainRowLinear : public Linear {
public:
    // `weights`: one weight, of which this rank holds the columns W_r.
    PlainRowLinear(std::vector<Parameter*> weights, const Communicator& ranks)
        : Linear(std::move(weights)), ranks_(ranks) {}

    // exercise 03.2 begin: forward: Y = sum over r of X_r W_r^T; backward: dX_r = dY W_r
    // x is (B, T, this rank's inputs), the result (B, T, h).
    Tensor forward(const Tensor& x, Saved& saved, Context& context,
                   const Tensor& residual) override {
        const Tensor y = for_tokens(context, outputs(), x.dtype());
        multiply(y, x);
        if (ranks_.size() > 1) ranks_.all_reduce(y);
        if (residual) ops::add(y, residual);  // after the sum: before it, each rank would add it
        saved.keep("x", x);
        return y;
    }

    Tensor backward_input(const Tensor& dy, Saved& saved, Context& context) override {
        const Tensor dx = for_tokens(context, inputs(), dy.dtype());
        multiply_backward(dx, dy);  // dy is whole on every rank
        saved.keep("dy", dy);
        return dx;
    }
    // exercise 03.2 end

private:
    const Communicator& ranks_;
};

}  // namespace ultrascale::tensor_parallel
