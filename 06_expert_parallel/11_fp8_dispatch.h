// Rows that travel in 8 bits (--dispatch-dtype fp8). A dispatch is most of what expert parallelism
// sends, and what it sends need not be exact: the experts' input is rounded to e4m3, in blocks of
// 128 numbers that share a scale (common/core/ops_fp8.h), and converted back where it arrives.
//
//     x   bf16   | h numbers of 2 bytes             |      2 h bytes
//     sent       | h numbers of 1 | h/128 scales |         h + 4 h/128 = 1.03 h bytes
//     there      | h numbers of 2 bytes             |      x', to which the experts apply
//
// A number of e4m3 has three bits after the leading one, so it is off by at most 1/16 of itself,
// and a row by at most 1/16 of its norm. (Numbers below 1/28,672 of their block's largest are
// subnormal, and off by up to half of the smallest step instead, which is nothing to the row.) On
// average a row is off by 1/40.
//
// The combine stays in the model's type: its rows are summed, and this sum is added to the residual
// stream. DeepSeek-V3 (arXiv 2412.19437, section 3.3.3) does the same, and also sends gradients to
// the experts in fp8; here --dispatch-dtype fp8-both does so. DeepSeek-V3's scales are powers of
// two, because its products read the numbers in 8 bits, and that of the weights' gradients needs
// them in other blocks, along the tokens. Our products read bf16, so any scale will do.
//
// Backward goes straight through: the gradient of x' is taken for that of x, because rounding's own
// gradient is 0 almost everywhere. What a layer sends, of each row that leaves the rank, with bf16:
//
//                 in forward             in backward
//                 dispatch   combine     dispatch   combine     sum, in h bytes
//     bf16             2 h       2 h          2 h       2 h     8
//     fp8           1.03 h       2 h          2 h       2 h     7.03
//     fp8-both      1.03 h       2 h       1.03 h       2 h     6.06
//
// Rows that stay on the rank are rounded as well, so that a result does not depend on the layout.
// To a dispatcher a packed row is a row with fewer elements, so any of them can carry it.
#pragma once

#include "kernels/ops_experts.h"
#include "token_dispatcher.h"

namespace ultrascale::expert_parallel {

// The bytes of a row of h numbers that travels.
inline int64_t travelling_bytes(int64_t h, DType dtype, bool fp8) {
    return (fp8 ? ops::packed_columns(h, dtype) : h) * dtype_bytes(dtype);
}
// Called with rows (N, h) and what is sent instead of them.
using SeePacked = std::function<void(const Tensor& rows, const Tensor& packed)>;

// Another dispatcher, whose dispatches carry packed rows.
class Fp8Dispatcher : public TokenDispatcher {
public:
    // `gradients`: whether a backward's dispatch is packed, too. Keeps a reference to `observer`,
    // which may be empty. The inner dispatcher has one chunk.
    Fp8Dispatcher(std::unique_ptr<TokenDispatcher> inner, bool gradients, const SeePacked& observer)
        : inner_(std::move(inner)), gradients_(gradients), observer_(observer) {}

    void permute(const Tensor& x, const Routed& routed) override {
        inner_->permute(packed(x), routed);
        packed_ = true;
    }
    void begin_backward(const Tensor& dy) override {
        packed_ = gradients_;
        inner_->begin_backward(gradients_ ? packed(dy) : dy);
    }
    ExpertRows finish_dispatch(int64_t c) override {
        ExpertRows in = inner_->finish_dispatch(c);
        if (packed_) in.rows = unpacked(std::exchange(in.rows, {}));
        return in;
    }

    void start_dispatch(int64_t c) override { inner_->start_dispatch(c); }
    void start_combine(int64_t c, ExpertRows rows) override {
        inner_->start_combine(c, std::move(rows));
    }
    void finish_combine(Tensor y, const Tensor& residual) override {
        inner_->finish_combine(y, residual);
    }
    void end_backward_of_weights(Tensor dweights) override {
        inner_->end_backward_of_weights(dweights);
    }
    void end_backward(Tensor dx) override { inner_->end_backward(dx); }
    Dispatched dispatched(int64_t layer, bool backward_follows, Tensor experts) const override {
        return inner_->dispatched(layer, backward_follows, std::move(experts));
    }

private:
    Tensor packed(const Tensor& rows) {
        columns_ = rows.cols();
        const Tensor out =
            activation({rows.rows(), ops::packed_columns(columns_, rows.dtype())}, rows.dtype());
        ops::pack_fp8_rows(out, rows);
        if (observer_) observer_(rows, out);
        return out;
    }
    Tensor unpacked(const Tensor& rows) const {
        const Tensor out = activation({rows.rows(), columns_}, rows.dtype());
        ops::unpack_fp8_rows(out, rows);
        return out;
    }

    std::unique_ptr<TokenDispatcher> inner_;
    bool gradients_, packed_ = false;  // packed_: the rows that travel are
    const SeePacked& observer_;
    int64_t columns_ = 0;  // h
};

}  // namespace ultrascale::expert_parallel
