// Measures how long collectives take:  mpirun -n 8 build/cpu/comm_bench [largest size in bytes]
//
// Prints a line per collective and size: the median time of a call (the slowest rank's median), and
// the two bandwidths of nccl-tests (doc/PERFORMANCE.md in NVIDIA/nccl-tests): algbw = size / time,
// and busbw = algbw times the bytes that the busiest link must carry per byte: 2 (n-1)/n for
// all-reduce, (n-1)/n for all-gather, reduce-scatter and all-to-all, else 1. On GPUs that can
// access each other's memory, large calls of the first three use copy engines (comm.h).
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>

#include "comm/comm.h"
#include "core/trace.h"

using namespace ultrascale;

// Returns the longest time that any rank took.
static double slowest_rank(double seconds) {
    const Communicator& world = Communicator::world();
    Tensor slowest =
        Tensor::from_host<double>(std::vector<double>{seconds}, {1}, Memory::workspace);
    world.all_reduce(slowest, Reduce::max);
    return slowest.to_host<double>()[0];
}

static double slowest_median(const std::function<void()>& call) {
    const auto time = [&] {
        const double begin = now_seconds();
        call();
        compute_stream().synchronize();
        return now_seconds() - begin;
    };
    Communicator::world().barrier();
    time();  // warms up
    const int repetitions = std::clamp(int(0.3 / slowest_rank(time())), 5, 1000);
    std::vector<double> seconds(size_t(repetitions), 0.0);
    Communicator::world().barrier();
    for (double& s : seconds) s = time();
    std::nth_element(seconds.begin(), seconds.begin() + repetitions / 2, seconds.end());
    return slowest_rank(seconds[size_t(repetitions / 2)]);
}

int main(int argc, char** argv) {
    int64_t largest = argc > 1 ? std::atoll(argv[1]) : 16 << 20;
    const Communicator& world = Communicator::world();
    int n = world.size(), next = (world.rank() + 1) % n, previous = (world.rank() + n - 1) % n;
    double spread = double(n - 1) / n;
    if (world.rank() == 0) {
        std::printf("%d ranks\n%-15s %10s %12s %12s %12s\n", n, "", "bytes", "median us",
                    "algbw GB/s", "busbw GB/s");
    }
    auto report = [&](const char* name, int64_t bytes, double bus,
                      const std::function<void()>& call) {
        double seconds = slowest_median(call);
        if (world.rank() > 0) return;
        double algbw = double(bytes) / seconds / 1e9;
        std::printf("%-15s %10ld %12.1f %12.3f %12.3f\n", name, long(bytes), seconds * 1e6, algbw,
                    algbw * bus);
        std::fflush(stdout);
    };
    report("barrier", 0, 0, [&] { world.barrier(); });
    for (int64_t bytes = 4; bytes <= largest; bytes *= 8) {
        int64_t slice = std::max<int64_t>(1, bytes / 4 / n), full = slice * n;  // fp32 elements
        Tensor x = Tensor::zeros({bytes / 4}, DType::fp32, Memory::communication,
                                 world.symmetric_memory());
        Tensor part = Tensor::zeros({slice}, DType::fp32, Memory::communication);
        Tensor whole =
            Tensor::zeros({full}, DType::fp32, Memory::communication, world.symmetric_memory());
        Tensor other = Tensor::zeros({full}, DType::fp32, Memory::communication);
        report("all-reduce", bytes, 2 * spread, [&] { world.all_reduce(x); });
        report("reduce-scatter", full * 4, spread, [&] { world.reduce_scatter(part, whole); });
        report("all-gather", full * 4, spread, [&] { world.all_gather(whole, part); });
        report("all-to-all", full * 4, spread, [&] { world.all_to_all(other, whole); });
        report("broadcast", bytes, 1, [&] { world.broadcast(x, 0); });
        report("reduce", bytes, 1, [&] { world.reduce(x, 0); });
        report("ring send/recv", full * 4, 1, [&] {
            world.send_recv({{Transfer::send, whole, next}, {Transfer::recv, other, previous}});
        });
    }
    finalize_communication();
}
