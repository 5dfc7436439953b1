// Measures how close memory-bound operations come to the memory's bandwidth:
// build/cuda/kernel_bench
//
// The sizes are SmolLM-1.7B's (hidden 2048, feed-forward 8192, vocabulary 49152, 32 heads of 64)
// with 16384 tokens in bf16, or 512 tokens on the CPU. Prints a line per operation: the median time
// of a call, the bandwidth (the bytes that it must move at least, reading each input once and
// writing each output once, per second), and its share of the bandwidth of a plain copy of as many
// bytes. Calls follow each other without waiting for the device, as in training.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <set>

#include "04_context_parallel/kernels/ops_attention_merge.h"
#include "comm/comm.h"
#include "core/device.h"
#include "core/ops.h"
#include "core/random_tensor.h"
#include "lab/report/median_seconds.h"

using namespace ultrascale;

static const bool on_gpu = device_is_gpu();
static const int64_t N = on_gpu ? 16384 : 512,
                     optimizer_elements = on_gpu ? 510'000'000 : 4'000'000,
                     copy_elements = int64_t(1) << (on_gpu ? 28 : 24);
static constexpr int64_t h = 2048, F = 8192, V = 49152, H = 32, D = 64;

// Measures the operation, and for comparison a plain copy that reads half as many bytes and writes
// the other half.
static void report(const char* name, double bytes, const std::function<void()>& call) {
    static const Tensor from = Tensor::zeros({copy_elements}, DType::fp32, Memory::workspace);
    static const Tensor to = Tensor::zeros({copy_elements}, DType::fp32, Memory::workspace);
    const int64_t n = std::min(copy_elements, int64_t(bytes / 8));
    const std::vector<double> seconds =
        median_seconds({call, [&] { ops::copy(to.slice(0, n), from.slice(0, n)); }});
    const double rate = bytes / seconds[0], copy_rate = double(8 * n) / seconds[1];
    std::printf("%-32s %9.4f %9.1f %9.1f %7.1f %%\n", name, seconds[0] * 1e3, rate / 1e9,
                copy_rate / 1e9, 100 * rate / copy_rate);
    std::fflush(stdout);
}

static double bytes_of(std::initializer_list<Tensor> tensors) {
    double sum = 0;
    for (const Tensor& t : tensors) sum += double(t.bytes());
    return sum;
}

static void elementwise() {
    Tensor x = random_tensor({copy_elements}, DType::fp32),
           y = random_tensor({copy_elements}, DType::fp32);
    Tensor x16 = random_tensor({copy_elements}),
           total = Tensor::zeros({1}, DType::fp64, Memory::workspace);
    report("copy fp32", bytes_of({x, y}), [&] { ops::copy(y, x); });
    report("copy fp32 -> bf16", bytes_of({x, x16}), [&] { ops::copy(x16, x); });
    report("copy bf16 -> fp32", bytes_of({x, x16}), [&] { ops::copy(y, x16); });
    report("fill bf16", bytes_of({x16}), [&] { ops::fill(x16, 1); });
    report("add fp32 += bf16", bytes_of({y, y, x16}), [&] { ops::add(y, x16); });
    report("scale bf16", bytes_of({x16, x16}), [&] { ops::scale(x16, 1); });
    report("accumulate_sum fp32", bytes_of({x}), [&] { ops::accumulate_sum(total, x); });
    report("accumulate_sum_squares bf16", bytes_of({x16}),
           [&] { ops::accumulate_sum_squares(total, {x16}); });
}

static void layers() {
    {
        Tensor x = random_tensor({N, h}), y = random_tensor({N, h}), dx = random_tensor({N, h}),
               weight = random_tensor({h});
        Tensor rstd = Tensor::empty({N}, DType::fp32, Memory::workspace),
               dweight = random_tensor({h});
        report("rmsnorm_forward", bytes_of({x, y, weight, rstd}),
               [&] { ops::rmsnorm_forward(y, rstd, x, weight, 1e-5f); });
        ops::fill(y, 0.01f);
        report("rmsnorm_backward", bytes_of({dx, y, x, weight, rstd}),
               [&] { ops::rmsnorm_backward(dx, dweight, y, x, rstd, weight); });
        report("rmsnorm_backward with residual", bytes_of({dx, dx, y, x, weight, rstd}),
               [&] { ops::rmsnorm_backward(dx, dweight, y, x, rstd, weight, dx); });
    }
    {
        Tensor qkv = random_tensor({1, N, 3 * h}), q = random_tensor({1, N, H, D}),
               k = random_tensor({1, N, H, D});
        Tensor v = random_tensor({1, N, H, D});
        std::vector<int32_t> numbers(size_t(N), 0);
        for (int64_t i = 0; i < N; ++i) numbers[size_t(i)] = int32_t(i % 2048);
        std::vector<float> turns(D / 2);
        for (size_t i = 0; i < turns.size(); ++i)
            turns[i] = std::pow(10000.0f, -float(i) / float(D / 2));
        Tensor positions = Tensor::from_host<int32_t>(numbers, {1, N}, Memory::workspace);
        Tensor frequencies = Tensor::from_host<float>(turns, {D / 2}, Memory::workspace);
        report("rope_forward", 2 * bytes_of({qkv}),
               [&] { ops::rope_forward(q, k, v, qkv, positions, frequencies); });
        report("rope_backward", 2 * bytes_of({qkv}),
               [&] { ops::rope_backward(qkv, q, k, v, positions, frequencies); });
    }
    Tensor gate_up = random_tensor({N, 2 * F}), dgate_up = random_tensor({N, 2 * F}),
           out = random_tensor({N, F});
    report("swiglu_forward", bytes_of({gate_up, out}), [&] { ops::swiglu_forward(out, gate_up); });
    report("swiglu_backward", bytes_of({gate_up, out, out, dgate_up}),
           [&] { ops::swiglu_backward(dgate_up, out, gate_up); });
}

static void loss() {
    for (const int64_t vocabulary : {V, int64_t(128256)}) {
        Tensor logits = random_tensor({N, vocabulary}),
               losses = Tensor::empty({N}, DType::fp32, Memory::workspace);
        std::vector<int32_t> numbers(size_t(N), 0);
        for (int64_t i = 0; i < N; ++i) numbers[size_t(i)] = int32_t(i * 977 % vocabulary);
        Tensor targets = Tensor::from_host<int32_t>(numbers, {N}, Memory::workspace);
        char name[64];
        std::snprintf(name, sizeof name, "cross_entropy %ld", long(vocabulary));
        report(name, bytes_of({logits, logits}),
               [&] { ops::cross_entropy(losses, logits, targets, 1e-4f); });
        std::snprintf(name, sizeof name, "cross_entropy %ld, losses only", long(vocabulary));
        report(name, bytes_of({logits}), [&] { ops::cross_entropy(losses, logits, targets, 0); });
    }
}

// The tokens have the frequencies of words: the r-th most frequent occurs about 1 / r times as
// often as the first.
static void embedding() {
    std::mt19937 generator(2);
    std::uniform_real_distribution<double> uniform;
    std::vector<int32_t> numbers(size_t(N), 0);
    for (int32_t& token : numbers)
        token = int32_t(std::min(std::pow(double(V), uniform(generator)), double(V)) - 1);
    const auto distinct = double(std::set<int32_t>(numbers.begin(), numbers.end()).size());
    Tensor tokens = Tensor::from_host<int32_t>(numbers, {N}, Memory::workspace),
           weight = random_tensor({V, h}), x = random_tensor({N, h});
    const double rows =
        distinct * double(h * dtype_bytes(DType::bf16));  // rows of the weight that occur
    report("embedding_forward", bytes_of({x}) + rows,
           [&] { ops::embedding_forward(x, tokens, weight); });
    report("embedding_backward", bytes_of({x}) + 2 * rows,
           [&] { ops::embedding_backward(weight, tokens, x); });
}

// The additional operations of context parallelism: a block's result is merged into the result so
// far, in fp32, and the rows of 8 ranks' chunks are put into the sequence's order.
static void context_parallelism() {
    const Tensor o = random_tensor({1, N, H, D}, DType::fp32),
                 o_block = random_tensor({1, N, H, D}), lse = random_tensor({1, H, N}, DType::fp32),
                 lse_block = random_tensor({1, H, N}, DType::fp32);
    report("attention_merge fp32 bf16", bytes_of({o, o, o_block, lse, lse, lse_block}),
           [&] { ops::attention_merge(o, lse, o_block, lse_block); });
    const Tensor x = random_tensor({N, h}), y = random_tensor({N, h});
    for (const int64_t rows : {int64_t(16), N, N * H}) {
        std::vector<int32_t> numbers;
        for (int64_t i = 0; i < rows; ++i) numbers.push_back(int32_t(i % 8 * (rows / 8) + i / 8));
        const Tensor index = Tensor::from_host<int32_t>(numbers, {rows}, Memory::workspace);
        char name[64];
        std::snprintf(name, sizeof name, "gather_rows, %ld bytes each", long(x.bytes() / rows));
        report(name, bytes_of({x, y, index}), [&] { ops::gather_rows(y, x, index); });
    }
}

// The optimizer updates a third of the model, as 22 parameters: those of two layers and the
// embedding.
static void optimizer() {
    for (const DType dtype : {DType::bf16, DType::fp32}) {  // the gradients' dtype
        const int64_t n = optimizer_elements;
        Tensor value = random_tensor({n}), master = random_tensor({n}, DType::fp32),
               m = random_tensor({n}, DType::fp32);
        Tensor v = random_tensor({n}, DType::fp32), gradient = random_tensor({n}, dtype);
        Tensor norm = Tensor::zeros({1}, DType::fp64, Memory::workspace);
        ops::fill(v, 1);
        std::vector<ops::AdamWItem> items;
        std::vector<Tensor> gradients;
        for (int64_t i = 0, parts = 22; i < parts; ++i) {
            const int64_t each = n / parts / h * h;  // parameters are whole rows of h
            const auto part = [&](const Tensor& t) {
                return t.slice(each * i, i + 1 < parts ? each * (i + 1) : n);
            };
            items.push_back({part(value), part(master), part(m), part(v), part(gradient), 0.1f});
            gradients.push_back(part(gradient));
        }
        const char* name = dtype == DType::bf16 ? "bf16" : "fp32";
        char line[64];
        std::snprintf(line, sizeof line, "gradient norm, %s", name);
        report(line, bytes_of({gradient}), [&] { ops::accumulate_sum_squares(norm, gradients); });
        std::snprintf(line, sizeof line, "adamw, %s gradients", name);
        report(line, 2 * bytes_of({master, m, v}) + bytes_of({gradient, value}), [&] {
            ops::adamw(items, norm,
                       {.lr = 1e-4f,
                        .beta1 = 0.9f,
                        .beta2 = 0.95f,
                        .eps = 1e-8f,
                        .step = 10,
                        .max_norm = 1});
        });
    }
}

int main() {
    Communicator::world();
    std::printf("%s, %ld tokens\n%-32s %9s %9s %9s %9s\n", device_description().c_str(), long(N),
                "", "median ms", "GB/s", "copy GB/s", "of copy");
    elementwise();
    layers();
    loss();
    embedding();
    context_parallelism();
    optimizer();
    finalize_communication();
}
