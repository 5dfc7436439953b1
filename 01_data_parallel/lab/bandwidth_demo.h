// --demo bandwidth: how fast each collective is, from 1 KiB up, and whether its result is right.
//
// nccl-tests' two numbers (doc/PERFORMANCE.md in NVIDIA/nccl-tests), for a tensor of S bytes and a
// call of t seconds:
//   algbw = S / t             what the program sees
//   busbw = algbw * factor    what the busiest link carries, comparable between collectives and
//                             with the hardware's data sheet
// The factor is how many bytes a rank must send per byte of the tensor, with the best possible
// algorithm: 2(n-1)/n for an all-reduce, (n-1)/n for all-gather, reduce-scatter and all-to-all (a
// rank's own slice stays where it is), 1 for broadcast and send/recv.
//
//   algbw ^             _________   limited by the links: time grows with S
//         |          __/
//         |      ___/
//         |_____/                   limited by latency: every size takes the same time
//         +-------------------> S
//
// The 5th and the 95th percentile stand beside the median's busbw: a twentieth of the calls were
// slower than one, and a twentieth faster than the other (call_times.h).
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "../6_ring_all_reduce.h"
#include "call_times.h"
#include "train/run.h"

namespace ultrascale::data_parallel {

// The tensors of one message size. Each has n equal slices; rank r's input is (r+1) * pattern.
struct BandwidthBuffers {
    Tensor pattern, in, out;  // (n * slice) fp32
    int n;
    Tensor slice(const Tensor& x, int r) const {
        return x.slice(r * (x.numel() / n), (r + 1) * (x.numel() / n));
    }
};

// One collective of the table. The call writes `out`; if `in_place`, `out` is also its input.
struct BandwidthCase {
    std::string name, call_text, factor_text;
    double factor;
    bool in_place;
    int slices;  // how many slices of `out` the call writes
    std::function<void(const BandwidthBuffers&)> call;
    struct Expected {
        int times, slice;  // slice `slice` of the pattern, `times` times
    };
    std::function<Expected(int r)> expected;  // what slice r of `out` must hold
};

inline std::vector<BandwidthCase> bandwidth_cases(const Communicator& world) {
    using B = BandwidthBuffers;
    const int n = world.size(), me = world.rank(), right = (me + 1) % n, left = (me + n - 1) % n,
              sum = n * (n + 1) / 2;
    const double spread = double(n - 1) / n;
    const Communicator* const w = &world;
    const auto is_sum = [sum](int r) { return BandwidthCase::Expected{sum, r}; };
    return {
        {"send/recv", "send_recv: to the right neighbour, from the left one", "1", 1, false, n,
         [=](const B& b) {
             w->send_recv({{Transfer::send, b.in, right}, {Transfer::recv, b.out, left}});
         },
         [=](int r) {
             return BandwidthCase::Expected{left + 1, r};
         }},
        {"broadcast", "broadcast", "1", 1, true, n, [=](const B& b) { w->broadcast(b.out, 0); },
         [=](int r) {
             return BandwidthCase::Expected{1, r};
         }},
        {"all-gather", "all_gather", "(n-1)/n", spread, false, n,
         [=](const B& b) { w->all_gather(b.out, b.slice(b.in, me)); },
         [=](int r) {
             return BandwidthCase::Expected{r + 1, r};
         }},
        {"reduce-scatter", "reduce_scatter", "(n-1)/n", spread, false, 1,
         [=](const B& b) { w->reduce_scatter(b.slice(b.out, 0), b.in); },
         [=](int) {
             return BandwidthCase::Expected{sum, me};
         }},
        {"all-to-all", "all_to_all", "(n-1)/n", spread, false, n,
         [=](const B& b) { w->all_to_all(b.out, b.in); },
         [=](int r) {
             return BandwidthCase::Expected{r + 1, me};
         }},
        {"all-reduce", "all_reduce", "2(n-1)/n", 2 * spread, true, n,
         [=](const B& b) { w->all_reduce(b.out); }, is_sum},
        {"ring one way", "ring_all_reduce, all to the right", "2(n-1)/n", 2 * spread, true, n,
         [=](const B& b) { ring_all_reduce(*w, b.out, RingDirections::one); }, is_sum},
        {"ring both", "ring_all_reduce, half to the right and half to the left", "2(n-1)/n",
         2 * spread, true, n, [=](const B& b) { ring_all_reduce(*w, b.out, RingDirections::both); },
         is_sum},
    };
}

// Makes one call on known values. The result is checked on the device: the expected values are
// subtracted, and zeros must remain. All numbers are integers that fp32 represents exactly.
inline bool result_is_right(const Communicator& world, const BandwidthCase& c,
                            const BandwidthBuffers& b) {
    ops::copy(b.in, b.pattern);
    ops::scale(b.in, float(world.rank() + 1));
    if (c.in_place)
        ops::copy(b.out, b.in);
    else
        ops::fill(b.out, -1);
    c.call(b);
    const Tensor left_over = Tensor::zeros({1}, DType::fp64, Memory::workspace);
    for (int r = 0; r < c.slices; ++r) {
        const BandwidthCase::Expected expected = c.expected(r);
        ops::add(b.slice(b.out, r), b.slice(b.pattern, expected.slice), -float(expected.times));
        ops::accumulate_sum_squares(left_over, {b.slice(b.out, r)});
    }
    return on_all_ranks(world,
                        left_over.to_host<double>()[0] == 0);  // false for NaN, too
}

// What carries the messages between the ranks.
inline const char* carrier() {
    return device_is_gpu() ? "NCCL between GPUs; by MPI through the host where ranks share one"
                           : "MPI between processes on CPUs";
}

// All ranks call it; rank 0 prints. It holds three tensors of largest_bytes. Returns false, on
// every rank, if some result was wrong.
inline bool demo_bandwidth(const Options& options, const Communicator& world,
                           int64_t largest_bytes) {
    if (largest_bytes > memory_limit() / 3)
        user_error("--largest-mib {:.0f}: three tensors of that size do not fit in {}",
                   double(largest_bytes) / (1 << 20), format_bytes(double(memory_limit())));
    const int n = world.size();
    print(fmt::format(
        "bandwidth of collectives on {}, fp32; median times of the slowest rank; GB = 10^9 bytes",
        format_count(n, "rank")));
    print(fmt::format("  carried by {}", carrier()));
    Report report("01_data_parallel", options, {}, 0);
    if (n == 1) {
        print("  one rank has nothing to communicate: start more, mpirun -n 4 ...");
        return report.finish(), true;
    }

    std::vector<int64_t> slices;  // elements of one rank's slice, by size
    for (int64_t bytes = 1024; bytes < largest_bytes; bytes *= 4)
        slices.push_back(std::max<int64_t>(1, bytes / 4 / n));
    slices.push_back(std::max<int64_t>(1, largest_bytes / 4 / n));
    // 251 is prime, so a slice or chunk that lands in the wrong place has wrong values.
    std::vector<float> values(size_t(slices.back() * n));
    for (size_t i = 0; i < values.size(); ++i) values[i] = float(1 + i % 251);
    const Tensor pattern =
        Tensor::from_host<float>(values, {int64_t(values.size())}, Memory::workspace);
    values = {};
    const Tensor in = Tensor::empty(pattern.shape(), DType::fp32, Memory::communication);
    const Tensor out = Tensor::empty(pattern.shape(), DType::fp32, Memory::communication,
                                     world.symmetric_memory());
    if (world.symmetric_memory())
        print(
            "  from 1 MiB on, all-gather, reduce-scatter and all-reduce use the copy engines "
            "(--copy-engines on)");

    const std::vector<BandwidthCase> cases = bandwidth_cases(world);
    std::vector<std::vector<double>> seconds(cases.size());  // [case][size], medians
    bool all_right = true;
    for (size_t c = 0; c < cases.size(); ++c) {
        const BandwidthCase& collective = cases[c];
        const bool ring = collective.name.starts_with("ring");
        print(fmt::format("\n{}    busbw = algbw * {} = algbw * {:.4g}", collective.call_text,
                          collective.factor_text, collective.factor));
        print(fmt::format("  {:>11} {:>11} {:>9} {:>9} {:>17}   result{}", "", "", "algbw", "busbw",
                          "5 %   and   95 %", ring ? "   2(n-1)/n S /  time /" : ""));
        print(fmt::format("  {:>11} {:>11} {:>9} {:>9} {:>17}{}", "size", "time us", "GB/s", "GB/s",
                          "of calls", ring ? "           bw(send/recv)    that" : ""));
        for (size_t s = 0; s < slices.size(); ++s) {
            const int64_t count = slices[s] * n;
            const BandwidthBuffers buffers{pattern.slice(0, count), in.slice(0, count),
                                           out.slice(0, count), n};
            const bool right = result_is_right(world, collective, buffers);
            all_right &= right;
            const CallTimes times = call_times(world, [&] { collective.call(buffers); });
            seconds[c].push_back(times.median);
            const double t = times.median, bytes = double(count * 4), algbw = bytes / t;
            const double bw = bytes / seconds[0][s],
                         formula = collective.factor * bytes / bw;  // case 0: send/recv
            const auto busbw = [&](double of) { return collective.factor * bytes / of / 1e9; };
            print(fmt::format("  {:>11} {:>11.1f} {:>9.3g} {:>9.3g} {:>8.3g} {:>8.3g}   {}{}",
                              format_bytes(bytes), t * 1e6, algbw / 1e9, busbw(t), busbw(times.p95),
                              busbw(times.p5), right ? "ok" : "WRONG",
                              ring ? fmt::format("{:>{}.1f} us {:>7.2f}", formula * 1e6,
                                                 right ? 16 : 13, t / formula)
                                   : ""));
            std::fflush(stdout);
            report.row({{"collective", collective.name},
                        {"bytes", count * 4},
                        {"us", t * 1e6},
                        {"algbw_gb_per_second", algbw / 1e9},
                        {"busbw_gb_per_second", busbw(t)},
                        {"busbw_p5_gb_per_second", busbw(times.p95)},
                        {"busbw_p95_gb_per_second", busbw(times.p5)},
                        {"right", right}});
        }
    }

    print("\nbusbw in GB/s, side by side");
    std::string heads = fmt::format("  {:>10}", "size");
    for (const BandwidthCase& c : cases)
        heads += fmt::format(" {:>10}", c.name == "reduce-scatter" ? "red.-scat."
                                        : c.name == "ring one way" ? "ring one"
                                                                   : c.name);
    print(heads);
    for (size_t s = 0; s < slices.size(); ++s) {
        std::string line = fmt::format("  {:>10}", format_bytes(double(slices[s] * n * 4)));
        for (size_t c = 0; c < cases.size(); ++c)
            line += fmt::format(" {:>10.3g}",
                                double(slices[s] * n * 4) / seconds[c][s] * cases[c].factor / 1e9);
        print(line);
    }
    print(all_right ? "\nall results are right" : "\nWRONG results: see above");
    report.finish();
    return all_right;
}

}  // namespace ultrascale::data_parallel
