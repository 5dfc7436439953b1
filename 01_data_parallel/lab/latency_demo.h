// --demo latency: the cost of a ring all-reduce's 2(n-1) hops, by formula for up to 1,024 ranks,
// and measured with pretended hops.
//
//     t = 2(n-1)/n * S/bw  +  2(n-1) * latency          S bytes on n ranks
//         transfer: at most     hops: grows with n,
//         2 S/bw, for any n     whatever S is
//
//     share of the links' bandwidth that is left = transfer / t
//
// The hops cost as much as the transfer at S = n * bw * latency. A payload that is large for 8
// ranks is small for 512: its chunks, S/n, are too short to fill a link. The playbook: "Data
// Parallelism", where it says that ring latency begins to limit at about 512 GPUs.
//
// Pretended hops: a rank of a ring of N sends 2(N-1) chunks of S/N to its right neighbour, whoever
// that is. So the existing ranks send each other exactly the messages that a ring of N ranks would
// send. All N ranks would send them at the same time, each over a link of its own.
#pragma once

#include "../6_ring_all_reduce.h"
#include "call_times.h"
#include "lab/measure/measure.h"

namespace ultrascale::data_parallel {

// One hop: its bandwidth in bytes/s, and its latency in seconds.
struct Link {
    double bandwidth, latency;
};
struct RingSeconds {
    double transfer, hops;
    double all() const { return transfer + hops; }
    double share_of_bandwidth() const { return all() > 0 ? transfer / all() : 1; }
};
inline RingSeconds ring_seconds(double n, double bytes, const Link& link) {
    return {2 * (n - 1) / n * bytes / link.bandwidth, 2 * (n - 1) * link.latency};
}
// The plain ring's time (5_ring_reduce.h) for S = `bytes`, links of `bandwidth` bytes/s and
// `latency` s.
inline double ring_reduce_seconds(double n, double bytes, double bandwidth, double latency) {
    return n > 1 ? n * (bytes / bandwidth + latency) : 0;
}
// The bytes at which hops cost as much as the transfer.
inline double ring_break_even(double n, const Link& link) {
    return n * link.bandwidth * link.latency;
}

// Sends, receives and adds what a rank of a ring of `n` does in an all-reduce of x (fp32; n must
// divide its size), with this group's neighbours in place of the ring's. x's values become
// meaningless sums. `inbox` has room for a chunk.
inline void pretended_ring(const Communicator& group, const Tensor& x, const Tensor& inbox,
                           int64_t n) {
    const int size = group.size(), right = (group.rank() + 1) % size,
              left = (group.rank() + size - 1) % size;
    const int64_t length = x.numel() / n;
    const auto chunk = [&](int64_t c) { return x.slice(c * length, (c + 1) * length); };
    for (int64_t step = 0; step < 2 * (n - 1); ++step) {
        const int64_t sent = step % n, received = (step + 1) % n;
        const bool adds = step < n - 1;
        const Tensor to = adds ? inbox.slice(0, length) : chunk(received);
        group.send_recv({{Transfer::send, chunk(sent), right}, {Transfer::recv, to, left}});
        if (adds) ops::add(chunk(received), to);
    }
}

namespace ring_latency {

inline void print_grid(const Link& link) {
    constexpr int exponents[] = {12, 16, 20, 24, 28, 32};
    std::string head = fmt::format("  {:>6}", "ranks");
    for (int e : exponents) head += fmt::format(" {:>10}", format_bytes(std::exp2(e)));
    print(head + "   half at");
    for (int n = 2; n <= 1024; n *= 2) {
        std::string line = fmt::format("  {:>6}", n);
        for (int e : exponents)
            line += fmt::format(" {:>8.1f} %",
                                100 * ring_seconds(n, std::exp2(e), link).share_of_bandwidth());
        print(line + fmt::format(" {:>9}", format_bytes(ring_break_even(n, link))));
    }
}

// Prints a line for each n: the time as a bar of transfer (=) and hops (-).
inline void print_curve(double bytes, const Link& link) {
    constexpr double width = 56;
    const double longest = ring_seconds(1024, bytes, link).all();
    print(fmt::format("\n{} on n ranks, by formula: = transfer, - hops", format_bytes(bytes)));
    for (int n = 2; n <= 1024; n *= 2) {
        const RingSeconds t = ring_seconds(n, bytes, link);
        const auto bar = [&](double seconds, char of) {
            return std::string(size_t(std::lround(width * seconds / longest)), of);
        };
        print(fmt::format("  {:>6} {:>9.3f} ms  |{}{}", n, t.all() * 1e3, bar(t.transfer, '='),
                          bar(t.hops, '-')));
    }
}

// Measures a hop on this machine: its latency with the smallest message, its bandwidth with the
// largest.
inline Link measured_link(const Communicator& world, const Tensor& x, const Tensor& inbox) {
    const auto hop = [&](int64_t count) {
        const Tensor out = x.slice(0, count), in = inbox.slice(0, count);
        const int n = world.size(), me = world.rank();
        return call_times(world,
                          [&] {
                              world.send_recv({{Transfer::send, out, (me + 1) % n},
                                               {Transfer::recv, in, (me + n - 1) % n}});
                              ops::add(out, in);  // as in the ring
                          })
            .median;
    };
    const double latency = hop(1), longest = hop(inbox.numel());
    return {double(inbox.bytes()) / std::max(longest - latency, 1e-9), latency};
}

}  // namespace ring_latency

// All ranks call it; rank 0 prints. `link` is a link of the pretended cluster, for the formula.
inline void demo_ring_latency(const Options& options, const Communicator& world, const Link& link,
                              int64_t largest_bytes) {
    using namespace ring_latency;
    if (largest_bytes > memory_limit() / 2)
        user_error("--largest-mib {:.0f}: it and half of it for a chunk do not fit in {}",
                   double(largest_bytes) / (1 << 20), format_bytes(double(memory_limit())));
    print(
        fmt::format("ring all-reduce by formula, on links of {:.4g} Gbit/s with {:.4g} us a hop: "
                    "the share of",
                    link.bandwidth * 8 / 1e9, link.latency * 1e6));
    print("their bandwidth that is left, by ranks and payload; half of it at n * bandwidth * hop");
    print_grid(link);
    print_curve(1 << 26, link);

    Report report("01_data_parallel", options, {}, 0);
    if (world.size() == 1) {
        print("\none rank has no neighbour to measure a hop with: start more, mpirun -n 4 ...");
        return report.finish();
    }
    const int64_t most = std::max<int64_t>(largest_bytes / 4, 4096);
    const Tensor x = Tensor::zeros({most}, DType::fp32, Memory::communication),
                 inbox = Tensor::zeros({most / 2 + 64}, DType::fp32, Memory::communication);
    const Link here = measured_link(world, x, inbox);
    print(fmt::format(
        "\nmeasured with {}' hops in place of n; a hop here takes {:.1f} us + bytes / {:.3g} GB/s",
        format_count(world.size(), "rank"), here.latency * 1e6, here.bandwidth / 1e9));
    print(fmt::format("  {:>6} {:>11} {:>11} {:>7} {:>11} {:>12} {:>12} {:>9}", "n", "payload",
                      "a chunk", "hops", "formula ms", "measured ms", "/ formula", "hops' part"));
    for (int64_t bytes : {int64_t(16) << 10, largest_bytes / 16, largest_bytes}) {
        const Tensor payload =
            x.slice(0, std::min(most, std::max<int64_t>(bytes / 4, 1024)) / 512 * 512);
        for (int n : {2, 8, 64, 512}) {
            const double size = double(payload.bytes());
            const RingSeconds formula = ring_seconds(n, size, here);
            const double measured =
                measure_call(world, [&] { pretended_ring(world, payload, inbox, n); });
            print(
                fmt::format("  {:>6} {:>11} {:>11} {:>7} {:>11.3f} {:>12.3f} {:>12.2f} {:>8.0f} %",
                            n, format_bytes(size), format_bytes(size / n), 2 * (n - 1),
                            formula.all() * 1e3, measured * 1e3, measured / formula.all(),
                            100 * (1 - formula.share_of_bandwidth())));
            report.row({{"ranks", n},
                        {"bytes", payload.bytes()},
                        {"formula_ms", formula.all() * 1e3},
                        {"transfer_ms", formula.transfer * 1e3},
                        {"measured_ms", measured * 1e3}});
        }
    }
    report.finish();
}

}  // namespace ultrascale::data_parallel
