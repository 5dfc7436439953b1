// This is rung 3, too, after 5_async_backward.h. In forward there is no second GEMM that could hide
// the communication. So the GEMM itself is cut into chunks of rows (tokens): while one chunk is
// communicated, the next one is computed.
//
//   a row linear's     compute   [ Y 1st half ][ Y 2nd half ]
//   forward            network                 [ sum 1st    ][ sum 2nd    ]
//
//   a column linear's  compute                 [ Y 1st half ][ Y 2nd half ]
//   forward, rung 2    network   [ gather 1st ][ gather 2nd ]
//
// A row linear's backward on rung 2 gathers dY in the same way as a column linear gathers X. The
// next operation needs all of Y, so the last chunk's sum (or the first chunk's gather) stays
// exposed; and smaller GEMMs are less efficient. Wang et al. 2023, "Overlap communication with
// dependent computation via decomposition".
#pragma once

#include "2_row_linear.h"
#include "5_async_backward.h"

namespace ultrascale::tensor_parallel {

class ChunkedColumnLinear : public AsyncColumnLinear {
public:
    using AsyncColumnLinear::AsyncColumnLinear;

    Tensor forward(const Tensor& x, Saved& saved, Context& context,
                   const Tensor& residual) override {
        if (region_.chunks(context.batch.tokens.numel()) == 1)
            return AsyncColumnLinear::forward(x, saved, context, residual);
        const TraceName name(TraceName::part, name_);
        check(!residual, "a column linear's output is in parts: it has no residual to add");
        Pending in = region_.begin_enter(x, communication_stream());
        Tensor y = empty_output(x.dtype(), context);
        const int64_t n = in.count();  // 1 on rung 1, where nothing is gathered
        for (int64_t c = 0; c < n; ++c) {
            in.wait(c);
            gemm_->multiply(chunk_of(y, c, n), chunk_of(in.result, c, n));
        }
        saved.keep("x", in.result);
        keep_input(x, saved);
        return y;
    }
};

class ChunkedRowLinear : public RowLinear {
public:
    using RowLinear::RowLinear;

    Tensor forward(const Tensor& x, Saved& saved, Context& context,
                   const Tensor& residual) override {
        const int64_t n = region_.chunks(x.rows());
        if (n == 1) return RowLinear::forward(x, saved, context, residual);
        const TraceName name(TraceName::part, name_);
        saved.keep("x", x);
        Tensor partial = region_.empty_partial({x.rows(), outputs()}, x.dtype());
        Pending sum{region_.empty_sum(partial), std::move(partial)};
        for (int64_t c = 0; c < n; ++c) {
            const Tensor rows = chunk_of(sum.partial, c, n);
            gemm_->multiply(rows, chunk_of(x, c, n));
            sum.chunks.push_back(
                region_.sum_rows(chunk_of(sum.result, c, n), rows, communication_stream()));
        }
        Tensor y = sum.wait().view(region_.stream_shape(context.batch, outputs()));
        if (residual) ops::add(y, residual);
        return y;
    }

    Tensor backward_input(const Tensor& dy, Saved& saved, Context& context) override {
        if (region_.chunks(context.batch.tokens.numel()) == 1)
            return RowLinear::backward_input(dy, saved, context);
        const TraceName name(TraceName::part, name_);
        Pending in = region_.begin_enter(dy, communication_stream());
        Tensor dx = empty_dx(dy.dtype(), context);
        const int64_t n = in.count();  // 1 on rung 1, where nothing is gathered
        for (int64_t c = 0; c < n; ++c) {
            in.wait(c);
            gemm_->multiply_backward(chunk_of(dx, c, n), chunk_of(in.result, c, n));
        }
        saved.keep("dy", in.result);
        return dx;
    }
};

}  // namespace ultrascale::tensor_parallel
