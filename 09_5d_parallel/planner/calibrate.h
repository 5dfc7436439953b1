// --calibrate FILE: measures the ranks that run, all at the same time, as in training, and writes
// what hardware.h needs. Two sizes of each give a rate and what a small one lacks:
//
//     product     n^3 and (n/8)^3: the rate of large ones, and `half`
//     attention   causal, forward and backward
//     memory      SwiGLU, as a rate of bytes (on a CPU its exponentials count); and a sum of eight
//                 numbers: what any call costs
//     links       an all-gather, large and tiny: bytes/s and seconds a hop, in a node and across
//
// Nothing of tensor parallelism is hidden in a run without --tp-overlap, and the loss here reads or
// writes a logit five times.
#pragma once

#include "core/device.h"
#include "core/median_seconds.h"
#include "core/ops.h"
#include "hardware.h"
#include "train/run.h"

namespace ultrascale {

class Calibration {
public:
    // `node`: ranks that share the fast links; 0: all.
    Calibration(DType dtype, int node)
        : world_(Communicator::world()),
          dtype_(dtype),
          gpu_(device_is_gpu()),
          node_(node > 0 ? std::min(node, world_.size()) : world_.size()) {}

    // All ranks call it.
    Hardware measure() const {
        Hardware h{.name = "this", .node = node_, .memory = double(memory_limit())};
        h.logit_bytes = 5 * double(dtype_bytes(dtype_));
        products(h), attention(h), memory(h);
        const Communicator inside = world_.split(world_.rank() / node_, world_.rank(), "inside"),
                           across = world_.split(world_.rank() % node_, world_.rank(), "across");
        h.inside = link(inside);
        h.between = world_.size() > node_ ? link(across) : h.inside;
        if (inside.size() == 1) h.inside = h.between;
        return h;
    }

private:
    Tensor tensor(Shape shape) const {
        return Tensor::zeros(std::move(shape), dtype_, Memory::workspace);
    }
    // The median of three batches, of the slowest rank. A batch lasts longer than a time slice, so
    // that ranks which share a processor are measured as they will train.
    double seconds(const std::function<void()>& call) const {
        const auto batch = [&](int calls) {
            compute_stream().synchronize();
            world_.barrier();
            return largest_of_ranks(world_, seconds_per_call(call, calls));
        };
        const int calls = std::clamp(int(0.1 / std::max(batch(2), 1e-7)), 2, 100'000);
        return median({batch(calls), batch(calls), batch(calls)});
    }

    void products(Hardware& h) const {
        const auto rate = [&](int64_t n) {
            const Tensor a = tensor({n, n}), b = tensor({n, n}), c = tensor({n, n});
            return 2 * std::pow(double(n), 3) /
                   seconds([&] { ops::matmul(c, a, ops::Transpose::no, b, ops::Transpose::yes); });
        };
        const int64_t n = gpu_ ? 8192 : 512, small = n / 8;
        const double large_rate = rate(n), c = std::cbrt(large_rate / rate(small));
        // (1 + half/small) = c (1 + half/n)
        h.product_half = std::max((c - 1) / (1 / double(small) - c / double(n)), 0.0);
        const double limit = large_rate * std::pow(1 + h.product_half / double(n), 3);
        const double sheet = device_peak(dtype_).flops;
        h.peak = sheet > 0 ? sheet : limit;
        h.product_share = limit / h.peak;
    }
    void attention(Hardware& h) const {
        const int64_t T = gpu_ ? 4096 : 128, H = 8, D = gpu_ ? 128 : 16;
        const auto heads = [&] { return tensor({1, T, H, D}); };
        const Tensor q = heads(), k = heads(), v = heads(), o = heads(), dq = heads(), dk = heads(),
                     dv = heads();
        const Tensor lse = Tensor::zeros({1, H, T}, DType::fp32, Memory::workspace),
                     delta = Tensor::zeros({1, H, T}, DType::fp32, Memory::workspace);
        const double flops = 2 * double(T) * double(T) * double(H * D);
        const double forward = seconds([&] { ops::attention_forward(o, lse, q, k, v, {}); });
        const double backward = seconds([&] {
            ops::attention_delta(delta, o, o);
            ops::attention_backward(dq, dk, dv, o, q, k, v, lse, delta, {});
        });
        h.attention_forward = flops / forward / h.peak;
        h.attention_backward = 2.5 * flops / backward / h.peak;
    }
    void memory(Hardware& h) const {
        const auto time = [&](int64_t features) {
            const Tensor gate_up = tensor({256, 2 * features}), out = tensor({256, features});
            return seconds([&] { ops::swiglu_forward(out, gate_up); });
        };
        const Tensor x = tensor({8}), y = tensor({8});
        h.operation = seconds([&] { ops::add(y, x); });
        const int64_t features = gpu_ ? 1 << 17 : 1 << 9;
        h.memory_rate = 3 * double(256 * features * dtype_bytes(dtype_)) /
                        std::max(time(features) - h.operation, 1e-9);
    }
    LinkRate link(const Communicator& group) const {
        const int64_t n = group.size();
        if (n == 1) return {h_alone, 0};
        const auto time = [&](int64_t numbers) {
            const Tensor mine = tensor({numbers}), all = tensor({n * numbers});
            return seconds([&] { group.all_gather(all, mine); });
        };
        const int64_t numbers = (gpu_ ? 1 << 26 : 1 << 18) / n;
        const double tiny = time(8), large = time(numbers);
        return {double((n - 1) * numbers * dtype_bytes(dtype_)) / std::max(large - tiny, 1e-9),
                tiny / double(n - 1)};
    }

    static constexpr double h_alone = 1e12;  // bytes/s of a rank to itself: nothing is sent
    const Communicator& world_;
    DType dtype_;
    bool gpu_;
    int node_;
};

}  // namespace ultrascale
