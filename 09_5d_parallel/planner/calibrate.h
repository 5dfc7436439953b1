// --calibrate FILE: measures the ranks that run, all at the same time, as in training, and writes
// the numbers of hardware.h. Each rate is measured at two sizes: they tell how fast a large
// operation is, and what a small one loses:
//
//     product     n^3 and (n/8)^3: the rate of large ones, and `half`; n^3 in fp8; of random
//                 numbers, and on a GPU after a second of them: it slows down as it gets hot
//     attention   causal, forward and backward
//     memory      SwiGLU, as a rate of bytes (on a CPU its exponentials count); a sum of eight
//                 numbers: what any call costs; an update of AdamW
//     links       an all-gather, large and tiny, a large reduce-scatter, and a message whose sender
//                 computes: bytes/s and seconds a hop, in a node and from node to node; products
//                 while an all-gather runs, or messages round a ring: what they take longer
//     process     what it holds besides its tensors, after all this; on a CPU also after training
//
// A run without --tp-overlap hides nothing of tensor parallelism, and the loss here reads or writes
// a logit five times.
#pragma once

#include <fstream>

#include "08_mixed_precision/kernels/ops_quantised.h"
#include "core/device.h"
#include "core/ops.h"
#include "core/random_tensor.h"
#include "hardware.h"
#include "lab/report/median_seconds.h"
#include "train/run.h"

namespace ultrascale::five_d {

// Returns the bytes that this process holds besides its tensors. On a GPU this is the device's
// memory that its context, libraries and communicators take. On a CPU it is the highest resident
// memory: the part of the program that has run, and the buffers of MPI and OpenBLAS.
inline double process_besides_tensors() {
    if (device_is_gpu()) return double(device_overhead().context);
    std::ifstream status("/proc/self/status");
    for (std::string word; status >> word;)
        if (double kib = 0; word == "VmHWM:" && status >> kib)
            return 1024 * kib - double(total(memory_at_peak()));
    return 0;
}

class Calibration {
public:
    explicit Calibration(DType dtype)
        : world_(Communicator::world()),
          dtype_(dtype),
          bytes_(double(dtype_bytes(dtype))),
          gpu_(device_is_gpu()) {}

    // Measures all but a process's bytes. All ranks call it. Throws UserError if nodes differ in
    // size.
    Hardware measure() const {
        const Nodes nodes = current_nodes();
        if (!nodes.all_equal())
            user_error("--calibrate: {} on nodes of at most {}: all nodes must have as many",
                       format_count(world_.size(), "rank"), nodes.ranks);
        Hardware h{.name = "this", .dtype = dtype_, .memory = double(memory_limit())};
        h.nodes = {.ranks = nodes.ranks, .cards = nodes.ranks, .crossing = nodes.crossing};
        h.logit_bytes = 5 * bytes_;
        measure_products(h), measure_attention(h), measure_memory(h);
        const int me = world_.rank(), index = nodes.index_in_node(me);
        const Communicator inside = world_.split(nodes.node_of(me), me, "inside"),
                           across = world_.split(index, me, "across");
        h.inside = measure_link(inside, nodes.crossing);
        h.between = across.size() > 1 ? measure_link(across, nodes.crossing) : h.inside;
        if (inside.size() == 1) h.inside = h.between;
        // If ranks of a node share a card, one that sends alone is faster. (In pretended nodes each
        // rank has a card.)
        if (!nodes.placed.empty() && across.size() > 1 && nodes.ranks > 1)
            h.nodes.cards = int(std::clamp(std::round(nodes.ranks * h.between.bytes_per_second /
                                                      lone_rate(across, index == 0)),
                                           1.0, double(nodes.ranks)));
        return h;
    }

private:
    Tensor tensor(Shape shape) const { return tensor(std::move(shape), dtype_); }
    Tensor tensor(Shape shape, DType dtype) const {
        return Tensor::zeros(std::move(shape), dtype, Memory::workspace);
    }
    Tensor random(const Shape& shape) const { return random_tensor(shape, dtype_); }
    // Returns a call that multiplies two matrices (n, n).
    std::function<void()> product(int64_t n) const {
        return [a = random({n, n}), b = random({n, n}), c = tensor({n, n})] {
            ops::matmul(c, a, ops::Transpose::no, b, ops::Transpose::yes);
        };
    }
    // Returns the seconds of a call: the median of five batches, on the slowest rank. A batch lasts
    // longer than a time slice, so ranks that share a processor are measured as they will train.
    double seconds(const std::function<void()>& call) const {
        const auto batch = [&](int calls) {
            compute_stream().synchronize();
            world_.barrier();
            return largest_of_ranks(world_, seconds_per_call(call, calls));
        };
        const int calls = std::clamp(int(0.05 / std::max(batch(2), 1e-7)), 2, 100'000);
        return median({batch(calls), batch(calls), batch(calls), batch(calls), batch(calls)});
    }

    void measure_products(Hardware& h) const {
        const auto rate = [](int64_t n, double seconds) {
            return 2 * std::pow(double(n), 3) / seconds;
        };
        const int64_t n = gpu_ ? 8192 : 512, small = n / 8;
        const auto large = product(n);
        for (double heated = 0; gpu_ && heated < 1;) heated += 10 * seconds_per_call(large, 10);
        const double large_seconds = seconds(large), large_rate = rate(n, large_seconds),
                     c = std::cbrt(large_rate / rate(small, seconds(product(small))));
        // Both rates are limit / (1 + half/n)^3, so (1 + half/small) = c (1 + half/n).
        h.product_half = std::max((c - 1) / (1 / double(small) - c / double(n)), 0.0);
        const double limit = large_rate * std::pow(1 + h.product_half / double(n), 3);
        h.peak = std::max(device_peak(dtype_).flops, limit);
        h.product_share = limit / h.peak;
        if (*ops::fp8_missing(ops::ScaleGroup::tensor)) return;
        const auto in_8_bits = [&] {
            return ops::empty_quantised(n, n, DType::e4m3, ops::ScaleGroup::tensor,
                                        Memory::workspace);
        };
        const ops::Quantised a = in_8_bits(), b = in_8_bits();
        const Tensor x = random({n, n}), d = tensor({n, n});
        ops::quantise(a, {}, x, {}), ops::quantise(b, {}, x, {});
        h.fp8_times = large_seconds / seconds([&] { ops::matmul_fp8(d, a, b, {}); });
    }
    void measure_attention(Hardware& h) const {
        const int64_t T = gpu_ ? 4096 : 128, H = 8, D = gpu_ ? 128 : 16;
        const auto heads = [&] { return random({1, T, H, D}); };
        const Tensor q = heads(), k = heads(), v = heads(), o = heads(), dq = heads(), dk = heads(),
                     dv = heads();
        const Tensor lse = tensor({1, H, T}, DType::fp32), delta = tensor({1, H, T}, DType::fp32);
        const double flops = 2 * double(T) * double(T) * double(H * D);  // half is masked
        const double forward = seconds([&] { ops::attention_forward(o, lse, q, k, v, {}); });
        const double backward = seconds([&] {
            ops::attention_delta(delta, o, o);
            ops::attention_backward(dq, dk, dv, o, q, k, v, lse, delta, {});
        });
        // Without a data sheet the peak is the rate of products, and attention may be faster.
        const double fastest = std::max(flops / forward, 2.5 * flops / backward);
        if (fastest > h.peak) h.product_share *= h.peak / fastest, h.peak = fastest;
        h.attention_forward = flops / forward / h.peak;
        h.attention_backward = 2.5 * flops / backward / h.peak;
    }
    void measure_memory(Hardware& h) const {
        const Tensor x = tensor({8}), y = tensor({8});
        h.operation = seconds([&] { ops::add(y, x); });
        const auto rate = [&](double bytes, const std::function<void()>& call) {
            return bytes / std::max(seconds(call) - h.operation, 1e-9);
        };
        const int64_t rows = 256, features = gpu_ ? 1 << 17 : 1 << 9;
        const Tensor gate_up = tensor({rows, 2 * features}), out = tensor({rows, features});
        h.memory_rate =
            rate(double(gate_up.bytes() + out.bytes()), [&] { ops::swiglu_forward(out, gate_up); });

        const int64_t numbers = gpu_ ? 1 << 26 : 1 << 18;
        const Tensor value = tensor({numbers}), gradient = tensor({numbers}, DType::fp32),
                     m = tensor({numbers}, DType::fp32), v = tensor({numbers}, DType::fp32),
                     master = dtype_ == DType::fp32 ? value : tensor({numbers}, DType::fp32),
                     norm = tensor({1}, DType::fp64);
        const ops::AdamWSettings settings{1e-3F, 0.9F, 0.95F, 1e-8F, 1, 1};
        const std::vector<ops::AdamWItem> items{{value, master, m, v, gradient, 0.1F}};
        h.update_rate = rate(ops::adamw_cost(items, settings).bytes,
                             [&] { ops::adamw(items, norm, settings); });
    }
    LinkRate measure_link(const Communicator& group, Crossing crossing) const {
        const int64_t n = group.size();
        if (n == 1) return {nothing_sent, 0, nothing_sent, 0};
        const auto time = [&](int64_t numbers, Collective kind) {
            const Tensor mine = tensor({numbers}), all = tensor({n * numbers});
            return seconds([&] {
                kind == Collective::all_gather ? group.all_gather(all, mine)
                                               : group.reduce_scatter(mine, all);
            });
        };
        // 2^18 numbers, on a GPU 2^26, but fewer if --inter-gbps makes a link slow.
        int64_t numbers = (1 << 14) / n;
        for (int i = 0; i < (gpu_ ? 3 : 1) && time(numbers, Collective::all_gather) < 5e-3; ++i)
            numbers *= 16;
        const double tiny = time(8, Collective::all_gather);
        const auto rate = [&](Collective kind) {
            return double((n - 1) * numbers) * bytes_ / std::max(time(numbers, kind) - tiny, 1e-9);
        };
        const double gathered = rate(Collective::all_gather);
        const Tensor mine = tensor({numbers}), all = tensor({n * numbers});
        const int next = int((group.rank() + 1) % n), before = int((group.rank() + n - 1) % n);
        return {
            gathered,
            tiny / (crossing == Crossing::exchange ? 1 : double(n - 1)),
            rate(Collective::reduce_scatter),
            measure_message(group, gathered),
            measure_slowing([&](Stream& stream) { return group.all_gather(all, mine, stream); }),
            measure_slowing([&](Stream& stream) {
                return group.send_recv(
                    {{Transfer::send, all.slice(0, numbers), next}, {Transfer::recv, mine, before}},
                    stream);
            })};
    }
    // Returns the bytes/s that a rank's card sends in an all-gather between nodes while no other
    // rank of its node sends. `sends`: whether this rank takes part.
    double lone_rate(const Communicator& across, bool sends) const {
        const int64_t n = across.size(), numbers = (1 << (gpu_ ? 26 : 18)) / n;
        const Tensor mine = tensor({numbers}), all = tensor({n * numbers});
        const double taken = seconds([&] {
            if (sends) across.all_gather(all, mine);
        });
        return double((n - 1) * numbers) * bytes_ / taken;
    }
    // Runs products that take twice as long as this communication, without it and during it.
    // Returns the additional time, divided by the communication's own.
    double measure_slowing(const std::function<Work(Stream&)>& communicate) const {
        const auto one = product(gpu_ ? 4096 : 256);
        const auto multiply = [&](int times) {
            for (int i = 0; i < times; ++i) one();
        };
        Stream& stream = communication_stream();
        const double alone = seconds([&] { communicate(stream).wait(); });
        const int times = int(std::clamp(2 * alone / seconds(one), 1.0, 1e4)) + 1;
        const double products = seconds([&] { multiply(times); }),
                     both = seconds([&] {
                         Work work = communicate(stream);
                         multiply(times);
                         work.wait();
                     });
        return std::clamp((both - products) / alone, 0.0, 1.0);
    }
    // Measures a message whose sender goes on computing, as in a pipeline. It takes longer: on a
    // CPU the thread that sends waits for a core, on a GPU its kernel waits for multiprocessors.
    double measure_message(const Communicator& group, double bytes_per_second) const {
        const auto multiply = product(gpu_ ? 8192 : 512);
        const Tensor x = tensor({gpu_ ? 1 << 22 : 1 << 14});
        Stream stream("message");
        std::vector<double> taken;
        for (int round = 0; round < 16; ++round) {
            const int sender = round % 2;
            compute_stream().synchronize();
            group.barrier();
            const double begin = now_seconds();
            double own = 0;
            if (group.rank() == sender) {
                const Work sent = group.send(x, 1 - sender, stream);
                for (int i = 0; i < 3; ++i) multiply();
            } else if (group.rank() == 1 - sender) {
                group.recv(x, sender, stream).wait();
                compute_stream().synchronize();
                own = now_seconds() - begin;
            }
            taken.push_back(largest_of_ranks(group, own));
        }
        return std::max(median(taken) - double(x.bytes()) / bytes_per_second, 0.0);
    }

    static constexpr double nothing_sent = 1e12;  // bytes/s of a rank alone
    const Communicator& world_;
    DType dtype_;
    double bytes_;  // of a number
    bool gpu_;
};

}  // namespace ultrascale::five_d
