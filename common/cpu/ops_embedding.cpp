// Embedding: a gather of rows, and its gradient, a scatter-add.
#include <cstring>

#include "ops_common.h"

namespace ultrascale::ops {

namespace {

template <class T>
void gather(T* out, const int32_t* tokens, const T* weight, int64_t first_row, int64_t N, int64_t V,
            int64_t h) {
#pragma omp parallel for if (N * h > parallel_threshold)
    for (int64_t n = 0; n < N; ++n) {
        const int64_t row = tokens[n] - first_row;
        if (row >= 0 && row < V)
            std::memcpy(out + n * h, weight + row * h, size_t(h) * sizeof(T));
        else
            std::memset(static_cast<void*>(out + n * h), 0, size_t(h) * sizeof(T));
    }
}

// Adds the rows of dout listed in `tokens` to row `row` of dweight, summed in fp32 and in order, so
// that a frequent token's gradient is rounded to bf16 only once.
template <class W, class T>
void add_rows(W* dweight, const T* dout, const int32_t* list, int64_t count, float* sum,
              int64_t h) {
    std::fill(sum, sum + h, 0.0f);
    for (int64_t i = 0; i < count; ++i) {
        const T* dy = dout + list[i] * h;
#pragma omp simd
        for (int64_t c = 0; c < h; ++c) sum[c] += float(dy[c]);
    }
#pragma omp simd
    for (int64_t c = 0; c < h; ++c) store(dweight[c], float(dweight[c]) + sum[c]);
}

}  // namespace

void embedding_forward(Tensor out, const Tensor& tokens, const Tensor& weight, int64_t first_row) {
    const int64_t N = tokens.numel(), V = weight.size(0), h = weight.cols();
    check(out.numel() == N * h, "embedding_forward: out is (N, h)");
    OpSpan span("embedding_forward", 0, bytes_of(out, out, tokens));
    with_type(out.dtype(), [&]<class T>(T) {
        gather(out.as<T>(), tokens.as<int32_t>(), weight.as<T>(), first_row, N, V, h);
    });
}

void embedding_backward(Tensor dweight, const Tensor& tokens, const Tensor& dout,
                        int64_t first_row) {
    const int64_t N = tokens.numel(), V = dweight.size(0), h = dweight.cols();
    check(dout.numel() == N * h, "embedding_backward: dout is (N, h)");
    OpSpan span("embedding_backward", double(N * h), bytes_of(dout, dout, dout, tokens));

    // Sort the tokens' indices by row, keeping their order within a row: end[r] becomes the end of
    // row r's list.
    Tensor list_tensor = Tensor::empty({N}, DType::int32, Memory::workspace);
    Tensor end_tensor = Tensor::zeros({V + 1}, DType::int32, Memory::workspace);
    int32_t *list = list_tensor.as<int32_t>(), *end = end_tensor.as<int32_t>();
    const int32_t* token = tokens.as<int32_t>();
    auto row_of = [&](int64_t n) { return token[n] - first_row; };
    auto held = [&](int64_t row) { return row >= 0 && row < V; };
    for (int64_t n = 0; n < N; ++n)
        if (held(row_of(n))) ++end[row_of(n) + 1];
    for (int64_t r = 0; r < V; ++r) end[r + 1] += end[r];
    for (int64_t n = 0; n < N; ++n)
        if (held(row_of(n))) list[end[row_of(n)]++] = int32_t(n);

    Tensor sums = Tensor::empty({omp_get_max_threads(), h}, DType::fp32, Memory::workspace);
    with_type(dweight.dtype(), [&]<class W>(W) {
        with_type(dout.dtype(), [&]<class T>(T) {
            W* weights = dweight.as<W>();
            const T* dy = dout.as<T>();
            float* scratch = sums.as<float>();
#pragma omp parallel for schedule(dynamic, 8) if (N * h > parallel_threshold)
            for (int64_t r = 0; r < V; ++r) {
                const int64_t begin = r == 0 ? 0 : end[r - 1], count = end[r] - begin;
                if (count > 0)
                    add_rows(weights + r * h, dy, list + begin, count,
                             scratch + omp_get_thread_num() * h, h);
            }
        });
    });
}

}  // namespace ultrascale::ops
