// --demo collectives: what each collective does, shown on tensors small enough to read, with the
// values of the playbook's appendix A0, "Parallel Programming Crash Course". a b c d are four
// ranks' tensors, S is their sum.
//
//                    rank 0   1    2    3
//   broadcast             a   -    -    -   ->  a   a   a   a
//   reduce                a   b    c    d   ->  S   b   c   d
//   all-reduce            a   b    c    d   ->  S   S   S   S    or the largest, or the mean
//   gather                a   b    c    d   ->  a b c d   -         -         -
//   all-gather            a   b    c    d   ->  a b c d   a b c d   a b c d   a b c d
//   scatter           (a0 a1 a2 a3 on rank 0)      ->  a0  a1  a2  a3
//   reduce-scatter    (a0 a1 a2 a3 and so on)      ->  S0  S1  S2  S3
//   all-to-all        rank r's slices r0 r1 r2 r3  ->  0r 1r 2r 3r: the transpose of who holds what
//
// Two rings step by step (5_ring_reduce.h, 6_ring_all_reduce.h) and a barrier follow. Every result
// is compared with the expected one.
#pragma once

#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "../5_ring_reduce.h"
#include "../6_ring_all_reduce.h"
#include "collective_example.h"

namespace ultrascale::data_parallel {

// Shows broadcast to all-to-all, in fp64, so that the sum over any number of ranks is exact.
inline bool demo_each_collective(const Communicator& world) {
    using Values = std::vector<double>;
    const int n = world.size(), me = world.rank();
    const auto tensor = [](const Values& v) {
        return Tensor::from_host<double>(v, {int64_t(v.size())}, Memory::workspace);
    };
    const auto blank = [](int64_t count) {
        return Tensor::zeros({count}, DType::fp64, Memory::workspace);
    };
    const Values ours(5, me + 1), sum(5, n * (n + 1) / 2);  // each rank's rank + 1, five times
    Values all;                                             // in rank order
    for (int r = 0; r < n; ++r) all.insert(all.end(), 5, r + 1);
    bool ok = true;
    {
        const Tensor x = tensor(me == 0 ? Values{1, 2, 3, 4, 5} : Values(5, 0));
        const CollectiveExample example(world, "broadcast(x, 0): every rank gets rank 0's tensor",
                                        x, 5);
        world.broadcast(x, 0);
        ok &= example.finish(x, {1, 2, 3, 4, 5});
    }
    {
        const Tensor x = tensor(ours);
        const CollectiveExample example(
            world, "reduce(x, 0): rank 0 gets the sum; the others keep what they had", x, 5);
        world.reduce(x, 0);
        ok &= example.finish(x, me == 0 ? sum : ours);
    }
    {
        const Tensor x = tensor(ours);
        const CollectiveExample example(world, "all_reduce(x): every rank gets the sum", x, 5);
        world.all_reduce(x);
        ok &= example.finish(x, sum);
    }
    for (const auto& [op, name, words, value] :
         {std::tuple(Reduce::max, "max", "the largest", double(n)),
          std::tuple(Reduce::average, "average", "the mean", (n + 1) / 2.0)}) {
        const Tensor x = tensor(ours);
        const CollectiveExample example(
            world, fmt::format("all_reduce(x, {}): every rank gets {}", name, words), x, 5);
        world.all_reduce(x, op);
        ok &= example.finish(x, Values(5, value));
    }
    {
        const Tensor in = tensor(ours), out = me == 0 ? blank(5 * n) : Tensor();
        const CollectiveExample example(
            world, "gather(out, in, 0): rank 0 gets every rank's tensor, in rank order", in, 5);
        world.gather(out, in, 0);
        ok &= example.finish(out, all);
    }
    {
        const Tensor in = tensor(ours), out = blank(5 * n);
        const CollectiveExample example(
            world, "all_gather(out, in): every rank gets every rank's tensor", in, 5);
        world.all_gather(out, in);
        ok &= example.finish(out, all);
    }
    {
        const Tensor in = me == 0 ? tensor(all) : Tensor(), out = blank(5);
        const CollectiveExample example(
            world, "scatter(out, in, 0): rank 0 deals out its slices, slice r to rank r", in, 5);
        world.scatter(out, in, 0);
        ok &= example.finish(out, ours);
    }
    {
        // Slice j of rank r is [r+1, 2(r+1)] to the power of j+1. After four slices the powers
        // begin again.
        Values mine, expected(2, 0);
        const auto power = [](int base, int j) { return std::pow(base, 1 + j % 4); };
        for (int j = 0; j < n; ++j)
            mine.insert(mine.end(), {power(me + 1, j), power(2 * (me + 1), j)});
        for (int r = 0; r < n; ++r)
            expected[0] += power(r + 1, me), expected[1] += power(2 * (r + 1), me);
        const Tensor in = tensor(mine), out = blank(2);
        const CollectiveExample example(
            world, "reduce_scatter(out, in): rank r gets slice r of the sum: half of an all-reduce",
            in, 2);
        world.reduce_scatter(out, in);
        ok &= example.finish(out, expected);
    }
    {
        Values mine, expected;  // rank r's slice for rank s: the digits r+1, s+1
        for (int r = 0; r < n; ++r)
            mine.push_back(10 * (me + 1) + r + 1), expected.push_back(10 * (r + 1) + me + 1);
        const Tensor in = tensor(mine), out = blank(n);
        const CollectiveExample example(
            world, "all_to_all(out, in): slice s of rank r becomes slice r of rank s: a transpose",
            in, 1);
        world.all_to_all(out, in);
        ok &= example.finish(out, expected);
    }
    return ok;
}

// Shows the plain ring on one number: rank r has r + 1.
inline bool demo_ring_reduce(const Communicator& world) {
    const int n = world.size();
    const Tensor x = Tensor::from_host<float>(std::vector<float>{float(world.rank() + 1)}, {1},
                                              Memory::workspace);
    print(
        fmt::format("\nring_reduce(x): the sum travels once round the ring, {} of the whole tensor",
                    format_count(n, "hop")));
    int hops = 0;
    ring_reduce(world, x, [&](int hop) {
        ++hops;
        const std::vector<std::string> held =
            world.gather_strings(fmt::format("{:g}", x.to_host<float>()[0]));
        print(fmt::format("  hop {}: rank {} sends {} to rank {}, which {}", hop, hop - 1,
                          hop < n ? std::to_string(hop * (hop + 1) / 2) : held[0], hop % n,
                          hop < n ? fmt::format("adds {}: {}", hop + 1, held[size_t(hop)])
                                  : "has the sum of all"));
    });
    const float sum = world.rank() == 0 ? float(n * (n + 1) / 2)
                                        : float((world.rank() + 1) * (world.rank() + 2) / 2);
    const bool ok = on_all_ranks(world, x.to_host<float>()[0] == sum && (n == 1 || hops == n));
    if (n > 1)
        print(
            fmt::format("  {}; it takes n (S/bw + latency), the ring all-reduce {:.3g} S/bw + {} "
                        "latency",
                        ok ? "ok" : "WRONG", 2.0 * (n - 1) / n, 2 * (n - 1)));
    return ok;
}

// The ranks' chunks in a ring all-reduce, before the first step and after each one.
struct RingMoment {
    std::vector<std::string> values;  // for each rank: its chunks' values, separated by spaces
    RingStep step = {};               // rank 0's; none in the first moment
};
using RingHistory = std::vector<RingMoment>;

// Shows the ring on n chunks of one element. Rank r starts with 10^r everywhere, so the digits of a
// sum show which ranks' parts it contains.
inline bool demo_ring(const Communicator& world, RingHistory& history) {
    const int n = world.size(), me = world.rank();
    const bool digits = n <= 8;  // fp32 holds eight of them: 11111111 < 2^24
    const float mine = digits ? float(std::pow(10, me)) : 1,
                sum = digits ? float((std::pow(10, n) - 1) / 9) : float(n);
    const size_t width = digits ? size_t(n) : std::to_string(n).size() + 1;
    const Tensor x =
        Tensor::from_host<float>(std::vector<float>(size_t(n), mine), {n}, Memory::workspace);
    const auto chunks = [&](int marked) {
        std::string text;
        const std::vector<float> values = x.to_host<float>();
        for (int c = 0; c < n; ++c) {
            const std::string value = digits ? fmt::format("{:0{}.0f}", values[size_t(c)], width)
                                             : fmt::format("{:{}.0f}", values[size_t(c)], width);
            text += c == marked ? "[" + value + "]" : " " + value + " ";
        }
        return text;
    };
    std::string numbers;
    for (int c = 0; c < n; ++c) numbers += fmt::format(" {:<{}} ", fmt::format("c{}", c), width);

    print(
        fmt::format("\nring_all_reduce(x): a reduce-scatter and an all-gather, 2(n-1) = {} steps, "
                    "chunks c0 to c{}",
                    2 * (n - 1), n - 1));
    print(digits ? "  rank r starts with 10^r: digit r of a sum, from the right, is 1 once rank "
                   "r's part is in it"
                 : "  all start with 1: a sum says how many ranks' parts are in it");
    print_by_rank(world, {numbers}, {chunks(-1)});
    history.push_back({world.gather_strings(chunks(-1))});
    int steps = 0;
    ring_all_reduce(world, x, RingDirections::one, [&](const RingStep& step) {
        ++steps;
        print(step.phase == RingStep::reduce_scatter
                  ? fmt::format("reduce-scatter, step {} of {}: what arrives is added",
                                step.step + 1, n - 1)
                  : fmt::format("all-gather, step {} of {}: what arrives is stored", step.step + 1,
                                n - 1));
        print_by_rank(
            world, {"", "", numbers},
            {fmt::format("sent c{} to {},", step.sent, step.to),
             fmt::format("received c{} from {}", step.received, step.from), chunks(step.received)});
        history.push_back({world.gather_strings(chunks(-1)), step});
    });
    const bool ok =
        x.to_host<float>() == std::vector<float>(size_t(n), sum) && steps == 2 * (n - 1);
    print("every rank has the sum:");
    print_by_rank(world, {"", ""},
                  {chunks(-1), ok ? "ok" : fmt::format("WRONG: expected {:.0f}", sum)});
    return ok;
}

// Rank r arrives 0.1 r s late; all leave when the last one has arrived.
inline bool demo_barrier(const Communicator& world) {
    // The time of day: processes of a machine share this clock, and machines agree on it to within
    // milliseconds.
    const auto now = [] {
        return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch())
            .count();
    };
    const auto latest = [&](double moment) {
        const Tensor x =
            Tensor::from_host<double>(std::vector<double>{moment}, {1}, Memory::workspace);
        world.all_reduce(x, Reduce::max);
        return x.to_host<double>()[0];
    };
    print(
        "\nbarrier(): nobody leaves before the last has arrived; rank r works (sleeps) 0.1 r s "
        "first");
    const double start = latest(now());
    std::this_thread::sleep_for(std::chrono::milliseconds(100 * world.rank()));
    const double arrived = now() - start;
    world.barrier();
    const double left = now() - start;
    const bool ok = left > latest(arrived) - 0.05;
    print_by_rank(world, {"arrived", "left", "waited", ""},
                  {fmt::format("{:.3f} s", arrived), fmt::format("{:.3f} s", left),
                   fmt::format("{:.3f} s", left - arrived),
                   ok ? "ok" : "WRONG: left before the last rank arrived"});
    return ok;
}

// All ranks call it; rank 0 prints. Returns false, on every rank, if some rank got a wrong result.
// The ring's history is for a picture.
inline bool demo_collectives(const Communicator& world, RingHistory& ring_history) {
    print(fmt::format("collectives on {}; a bar | separates two ranks' slices",
                      format_count(world.size(), "rank")));
    const bool collectives = demo_each_collective(world), reduce = demo_ring_reduce(world),
               ring = demo_ring(world, ring_history), barrier = demo_barrier(world);
    const Tensor wrong = Tensor::from_host<int32_t>(
        std::vector<int32_t>{!(collectives && reduce && ring && barrier)}, {1}, Memory::workspace);
    world.all_reduce(wrong, Reduce::max);
    const bool ok = wrong.to_host<int32_t>()[0] == 0;
    print(ok ? "\nall results are as expected" : "\nWRONG: see above");
    return ok;
}

}  // namespace ultrascale::data_parallel
