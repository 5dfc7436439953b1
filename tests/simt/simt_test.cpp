// CUDA kernels on the CPU (common/emulator): threads, blocks and warps behave as in CUDA's guide.
// Behaviour that the guide leaves undefined is an error that names the place.
#include "emulator/simt.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <numeric>

#include "core/tensor.h"
#include "kernels.h"

namespace ultrascale::test {
namespace {

Tensor ints(int64_t count) { return Tensor::zeros({count}, DType::int32, Memory::workspace); }
Tensor floats(int64_t count) { return Tensor::zeros({count}, DType::fp32, Memory::workspace); }

TEST(Simt, EveryThreadKnowsItsPlace) {
    const Tensor out = ints(6 * 24);
    launch_indices(out.as<int32_t>(), 3, 2, 4, 3, 2);
    const std::vector<int32_t> got = out.to_host<int32_t>();
    size_t i = 0;
    for (int by = 0; by < 2; ++by)
        for (int bx = 0; bx < 3; ++bx)
            for (int z = 0; z < 2; ++z)
                for (int y = 0; y < 3; ++y)
                    for (int x = 0; x < 4; ++x)
                        EXPECT_EQ(got[i++], ((by * 10 + bx) * 10 + z) * 10000 + y * 100 + x);
}

TEST(Simt, SharedMemoryAndBarriers) {
    constexpr int blocks = 37, count = 128 * blocks - 50;
    std::vector<float> x(count);
    std::iota(x.begin(), x.end(), 1.0f);
    const Tensor from = Tensor::from_host<float>(x, {count}, Memory::workspace),
                 sums = floats(blocks);
    launch_block_sums(sums.as<float>(), from.as<float>(), count, blocks);
    const std::vector<float> got = sums.to_host<float>();
    for (int b = 0; b < blocks; ++b) {
        float sum = 0;
        for (int i = 128 * b; i < std::min(128 * (b + 1), count); ++i) sum += x[size_t(i)];
        EXPECT_EQ(got[size_t(b)], sum) << b;
    }
}

TEST(Simt, WarpOperations) {
    const Tensor out = ints(32 * 8);
    launch_warp_operations(out.as<int32_t>());
    const std::vector<int32_t> got = out.to_host<int32_t>();
    for (int lane = 0; lane < 32; ++lane) {
        const int32_t* mine = &got[size_t(8 * lane)];
        EXPECT_EQ(mine[0], 25);
        EXPECT_EQ(mine[1], lane ^ 3);
        EXPECT_EQ(mine[2], lane < 30 ? lane + 2 : lane);
        EXPECT_EQ(mine[3], lane >= 2 ? lane - 2 : lane);
        EXPECT_EQ(mine[4], 0x49249249);
        EXPECT_EQ(mine[5], 2);
        EXPECT_EQ(mine[6], 31);
        EXPECT_EQ(mine[7], (lane ^ 3) + 100 * (lane / 8 * 8 + 1));
    }
}

TEST(Simt, PartsOfAWarpGoTheirOwnWays) {
    const Tensor out = ints(64);
    launch_half_warps(out.as<int32_t>());
    const std::vector<int32_t> got = out.to_host<int32_t>();
    for (int lane = 0; lane < 32; ++lane) {
        EXPECT_EQ(got[size_t(lane)], lane < 16 ? lane ^ 1 : 33);
        EXPECT_EQ(got[size_t(32 + lane)], int32_t(0xffff0000));
    }
}

TEST(Simt, AtomicsFromAllBlocks) {
    const Tensor counter = ints(1), sum = floats(1);
    launch_atomics(counter.as<int32_t>(), sum.as<float>(), 100);
    EXPECT_EQ(counter.to_host<int32_t>()[0], 6400);
    EXPECT_EQ(sum.to_host<float>()[0], 3200);
}

// ---- mistakes -----------------------------------------------------------------------------------

void expect_error(const std::function<void()>& launch, const std::vector<std::string>& telling) {
    try {
        launch();
        ADD_FAILURE() << "no error; expected one with " << telling.front();
    } catch (const simt::KernelError& error) {
        for (const std::string& part : telling)
            EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
}

TEST(SimtError, ABarrierThatNotAllReach) {
    expect_error(
        launch_barrier_that_half_the_block_misses,
        {"kernel kernels.cu:", "32 threads (the first is 0) wait at __syncthreads (kernels.cu:",
         "1 thread (the first is 40) wait at __syncwarp (kernels.cu:",
         "31 threads (the first is 32) ended"});
    expect_error(launch_barrier_after_threads_have_ended,
                 {"40 threads (the first is 0) wait at __syncthreads",
                  "24 threads (the first is 40) ended"});
}

TEST(SimtError, AWarpsOperationThatNotAllReach) {
    expect_error(launch_shuffle_that_a_lane_misses,
                 {"31 threads (the first is 0) wait at __shfl_sync (kernels.cu:",
                  "1 thread (the first is 7) ended"});
    expect_error(launch_shuffle_of_different_kinds,
                 {"__ballot_sync", "while other lanes are at __shfl_sync"});
    expect_error(launch_mask_without_its_caller, {"__ballot_sync", "mask 0x1", "thread (1, 0, 0)"});
    const Tensor out = ints(4);
    expect_error([&] { launch_shuffle_from_outside_the_mask(out.as<int32_t>()); },
                 {"from lane 9, which the mask leaves out"});
}

TEST(SimtError, OutOfBounds) {
    const Tensor from = floats(100), to = floats(100);
    launch_copy(to.as<float>(), from.as<float>(), 100);
    expect_error([&] { launch_copy(to.as<float>(), from.as<float>(), 101); },
                 {"block (3, 0, 0), thread (4, 0, 0): reads 4 bytes out of bounds at kernels.cu:",
                  "400 bytes from the beginning of an allocation of 400"});
    const Tensor longer = floats(128);
    expect_error([&] { launch_copy(to.as<float>(), longer.as<float>(), 128); },
                 {"thread (4, 0, 0): writes 4 bytes out of bounds"});
    Tensor gone = floats(50);
    float* left_over = gone.as<float>();
    gone = {};
    expect_error([&] { launch_copy(to.as<float>(), left_over, 10); },
                 {"thread (0, 0, 0): reads 4 bytes out of bounds"});
    expect_error([] { launch_write_past_shared_memory(40); },
                 {"thread (32, 0, 0): writes 4 bytes out of bounds"});
    expect_error(launch_read_null, {"reads 4 bytes out of bounds", "in no allocation"});
}

TEST(SimtError, PastASharedArray) {
    const Tensor out = ints(32);
    launch_another_array(out.as<int32_t>());
    EXPECT_EQ(out.to_host<int32_t>()[0], 31);
    expect_error([] { launch_write_past_shared_array(32); },
                 {"thread (32, 0, 0): writes 4 bytes out of bounds",
                  "128 bytes from the beginning of __shared__ tile of 128"});
    expect_error([] { launch_write_past_shared_array(35); },
                 {"thread (29, 0, 0): writes 4 bytes out of bounds"});
}

// Reading it is not an error, but gives neither the last block's values nor zeros.
TEST(SimtError, UnwrittenSharedMemory) {
    const Tensor out = floats(20 * 32);
    launch_unwritten(out.as<float>(), 20);
    const std::vector<float> got = out.to_host<float>();
    for (size_t i = 0; i < got.size(); ++i)
        EXPECT_TRUE(i % 2 == 0 ? got[i] == 1 : std::isnan(got[i])) << i << " " << got[i];
}

TEST(SimtError, Misaligned) {
    const Tensor from = floats(36), to = floats(20);
    launch_vectors(to.as<float>() + 2, from.as<float>() + 4);
    expect_error([&] { launch_vectors(to.as<float>(), from.as<float>() + 2); },
                 {"thread (0, 0, 0): reads 16 bytes at an address that is no multiple of 16, at "
                  "kernels.cu:"});
    expect_error([&] { launch_vectors(to.as<float>() + 1, from.as<float>()); },
                 {"writes 8 bytes at an address that is no multiple of 8"});
}

TEST(SimtError, ALaunchTooLarge) {
    expect_error(launch_too_many_threads, {"kernel kernels.cu:", "1025 threads"});
    launch_nothing({1, 65535, 1}, {1, 1, 64}, 99 << 10);
    expect_error([] { launch_nothing({1, 1, 1}, {1, 1, 65}, 0); }, {"a block of 65 threads in z"});
    expect_error(
        [] {
            launch_nothing({1, 0, 1}, {1, 1, 1}, 0);
        },
        {"kernel kernels.cu:", "a grid of (1, 0, 1) blocks"});
    expect_error(
        [] {
            launch_nothing({1, 65536, 1}, {1, 1, 1}, 0);
        },
        {"a grid of (1, 65536, 1) blocks"});
    expect_error(
        [] {
            launch_nothing({1, 1, 65536}, {1, 1, 1}, 0);
        },
        {"a grid of (1, 1, 65536) blocks"});
    expect_error(
        [] {
            launch_nothing({1u << 31, 1, 1}, {1, 1, 1}, 0);
        },
        {"a grid of (2147483648, 1, 1) blocks"});
    expect_error(
        [] {
            launch_nothing({1, 1, 1}, {1, 1, 1}, (99 << 10) + 1);
        },
        {"101377 bytes of dynamic shared memory"});
}

}  // namespace
}  // namespace ultrascale::test
