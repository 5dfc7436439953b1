#include "core/memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

#include "core/device.h"
#include "core/error.h"
#include "core/ops.h"
#include "core/stream.h"
#include "core/tensor.h"

// The address sanitizer defines this function if the program is linked with it. This file is
// compiled without it (Makefile, PLAIN_SOURCES).
extern "C" __attribute__((weak)) void __asan_init();

namespace ultrascale {
namespace {

Tensor floats(int64_t count, Memory category) {
    return Tensor::empty({count}, DType::fp32, category);
}

MemoryByCategory difference(const MemoryByCategory& a, const MemoryByCategory& b) {
    MemoryByCategory d{};
    for (int c = 0; c < memory_categories; ++c) d[size_t(c)] = a[size_t(c)] - b[size_t(c)];
    return d;
}

TEST(Memory, CountsEveryByteInItsCategory) {
    const MemoryByCategory before = memory_now();
    {
        std::vector<Tensor> held;
        for (int c = 0; c < memory_categories; ++c) held.push_back(floats(c + 1, Memory(c)));
        for (int c = 0; c < memory_categories; ++c)
            EXPECT_EQ(difference(memory_now(), before)[size_t(c)], 4 * (c + 1))
                << memory_names[size_t(c)];
    }
    EXPECT_EQ(memory_now(), before);
}

TEST(Memory, OfTheHostIsBesideTheDevices) {
    memory_reset_peak();
    const MemoryByCategory before = memory_now();
    const Tensor zeros = Tensor::zeros({100}, DType::fp32, Memory::host),
                 ones = floats(100, Memory::host);
    EXPECT_TRUE(zeros.on_host() && zeros.slice(10, 20).on_host());
    EXPECT_FALSE(floats(1, Memory::workspace).on_host());
    const Tensor copy = floats(50, Memory::checkpoint);
    EXPECT_TRUE(copy.on_host());
    EXPECT_EQ(difference(memory_now(), before)[int(Memory::host)], 800);
    EXPECT_EQ(difference(memory_now(), before)[int(Memory::checkpoint)], 200);
    EXPECT_EQ(total(memory_now()), total(before));
    EXPECT_EQ(zeros.to_host<float>(), std::vector<float>(100, 0.0f));

    const int64_t limit = memory_limit();
    memory_set_limit(total(before));
    EXPECT_NO_THROW(floats(1000, Memory::host));
    EXPECT_THROW(floats(1000, Memory::workspace), OutOfMemory);
    memory_set_limit(limit);
}

TEST(Memory, WhatIsHeldAsideLeavesNoTrace) {
    memory_reset_peak();
    floats(100, Memory::activation);
    const MemoryByCategory peak = memory_peak_by_category(), at_peak = memory_at_peak();
    memory_timeline_record(true);
    const size_t points = memory_timeline().size();
    Tensor kept;
    {
        const UncountedMemory aside;
        floats(1000, Memory::activation);
        floats(1000, Memory::workspace);
    }
    EXPECT_EQ(memory_peak_by_category(), peak);
    EXPECT_EQ(memory_at_peak(), at_peak);
    EXPECT_EQ(memory_timeline().size(), points);
    {
        const UncountedMemory aside;
        kept = floats(200, Memory::activation);
    }
    EXPECT_EQ(difference(memory_peak_by_category(), peak)[int(Memory::activation)],
              400);  // but what is kept still counts
    kept = {};
    EXPECT_EQ(memory_timeline().size(), points + 1);  // and the timeline goes on
    memory_timeline_record(false);
}

// Copies run to the device and back in separate streams; events order them.
TEST(Memory, CopiesBetweenHostAndDeviceWhileBothGoOn) {
    constexpr int64_t count = 1 << 20;
    std::vector<float> numbers(count);
    for (int64_t i = 0; i < count; ++i) numbers[size_t(i)] = float(i);
    const Tensor device = Tensor::from_host<float>(numbers, {count}, Memory::workspace),
                 back = floats(count, Memory::workspace);
    const Tensor host = floats(count, Memory::host);
    Stream there("there"), here("here");
    there.wait(compute_stream().record());
    copy_async(host, device, there);
    here.wait(there.record());
    copy_async(back, host, here);
    compute_stream().wait(here.record());
    EXPECT_EQ(back.to_host<float>(), numbers);
    EXPECT_EQ(host.to_host<float>(), numbers);
    EXPECT_THROW(copy_async(host, device.slice(0, 5), there), std::logic_error);
}

TEST(Memory, CountsStorageOnceHoweverManyViewsHoldIt) {
    const MemoryByCategory before = memory_now();
    Tensor whole = floats(100, Memory::activation), part = whole.slice(10, 20), copy = whole,
           shaped = whole.view({10, 10});
    EXPECT_EQ(difference(memory_now(), before)[int(Memory::activation)], 400);
    whole = {}, copy = {}, shaped = {};
    EXPECT_EQ(difference(memory_now(), before)[int(Memory::activation)],
              400);  // the slice keeps all of it alive
    part = {};
    EXPECT_EQ(memory_now(), before);
}

// A step frees and takes the same sizes again and again. Other blocks that are kept lie between
// them, so that freed blocks do not join into larger ones. (There are few of them: malloc has a
// list of up to seven small blocks of a size, which a tensor's own fields reuse. Beyond that, the
// fields might be cut out of a block that was just freed.)
TEST(Memory, WhatWasFreedIsTakenAgain) {
    if (device_is_gpu()) GTEST_SKIP() << "the driver places blocks";
    if (__asan_init != nullptr) GTEST_SKIP() << "the sanitizer withholds what is freed";
    constexpr int blocks = 3, steps = 5;
    Tensor taken[blocks], kept[blocks];
    std::array<uintptr_t, blocks> at[steps];
    for (auto& addresses : at) {
        for (Tensor& tensor : taken) tensor = {};
        for (size_t i = 0; i < blocks; ++i) {
            taken[i] = floats(1 << 18, Memory::workspace);
            addresses[i] = uintptr_t(taken[i].data());
            if (!kept[i].data()) kept[i] = floats(1 << 14, Memory::workspace);
        }
        std::ranges::sort(addresses);
    }
    // In the second step a block may still move, since something small may lie in its place.
    for (int step = 2; step < steps; ++step) EXPECT_EQ(at[step], at[1]) << "step " << step;
    for (const uintptr_t address : at[0]) EXPECT_EQ(address % 256, 0U);
}

TEST(Memory, PeaksByCategoryAndOfTheSum) {
    memory_reset_peak();
    const MemoryByCategory before = memory_now();
    {
        Tensor a = floats(100, Memory::activation);
        a = {};
        Tensor w = floats(60, Memory::workspace), b = floats(50, Memory::activation);
    }
    const MemoryByCategory peak = difference(memory_peak_by_category(), before),
                           at_peak = difference(memory_at_peak(), before);
    EXPECT_EQ(peak[int(Memory::activation)], 400);  // not when the workspace peaks
    EXPECT_EQ(peak[int(Memory::workspace)], 240);
    EXPECT_EQ(at_peak[int(Memory::activation)], 200);
    EXPECT_EQ(at_peak[int(Memory::workspace)], 240);
    memory_reset_peak();
    EXPECT_EQ(memory_peak_by_category(), memory_now());
    EXPECT_EQ(memory_at_peak(), memory_now());
}

TEST(Memory, AnEmptyTensorTakesNothing) {
    const MemoryByCategory before = memory_now();
    Tensor nothing = floats(0, Memory::activation);
    EXPECT_EQ(memory_now(), before);
    EXPECT_EQ(nothing.numel(), 0);
}

TEST(Memory, TimelineHasAPointForEveryChangeWhileItIsOn) {
    const size_t begin = memory_timeline().size();
    const int64_t before = memory_now()[int(Memory::gradient)];
    floats(10, Memory::gradient);
    EXPECT_EQ(memory_timeline().size(), begin);
    memory_timeline_record(true);
    Tensor a = floats(10, Memory::gradient), b = floats(5, Memory::gradient);
    a = {};
    memory_timeline_record(false);
    b = {};
    ASSERT_EQ(memory_timeline().size(), begin + 3);
    const int64_t expected[] = {40, 60, 20};
    for (size_t i = 0; i < 3; ++i) {
        const MemoryPoint& point = memory_timeline()[begin + i];
        EXPECT_EQ(point.bytes[int(Memory::gradient)] - before, expected[i]);
        if (i > 0) {
            EXPECT_GE(point.seconds, memory_timeline()[begin + i - 1].seconds);
        }
    }
}

class Limited : public testing::Test {
protected:
    int64_t kept = memory_limit();
    void TearDown() override { memory_set_limit(kept); }
};

TEST_F(Limited, RefusesWhatDoesNotFitAndSaysWhatIsHeld) {
    Tensor held = floats(1 << 18, Memory::optimizer);  // 1 MiB
    const MemoryByCategory before = memory_now();
    memory_set_limit(total(before) + 4000);
    Tensor fits = floats(1000, Memory::activation);
    try {
        floats(1, Memory::gradient);
        FAIL() << "past the limit";
    } catch (const OutOfMemory& error) {
        const std::string text = error.what();
        for (const char* words : {"out of memory: 4 B more for gradients", "optimizer 1.00 MiB",
                                  "activations 3.91 KiB"})
            EXPECT_NE(text.find(words), std::string::npos) << text;
        EXPECT_EQ(text.find('\n'), std::string::npos);
    }
    fits = {};
    EXPECT_EQ(memory_now(), before);  // the refused allocation left nothing
    EXPECT_NO_THROW(floats(1000, Memory::gradient));
}

// A measurement for the report must not stop a run that fits into memory.
TEST_F(Limited, TheMatmulRateIsMeasuredOnWhatFits) {
    memory_set_limit(total(memory_now()) +
                     (46 << 20));  // not 48 MiB; 12, and on a GPU 32 for cuBLAS
    EXPECT_GT(ops::measure_matmul_rate(DType::fp32, 2048), 1e6);
    memory_set_limit(total(memory_now()));
    EXPECT_THROW(ops::measure_matmul_rate(DType::fp32, 2048), OutOfMemory);
}

TEST_F(Limited, SizesBeyondAnyMachine) {
    EXPECT_THROW(floats(int64_t(1) << 60, Memory::activation), UserError);
    if (__asan_init != nullptr) return;  // the sanitizer would end the program
    memory_set_limit(INT64_MAX);         // the machine itself refuses
    EXPECT_THROW(floats(int64_t(1) << 46, Memory::activation), UserError);
}

TEST(Memory, FormatsBytes) {
    EXPECT_EQ(format_bytes(0), "0 B");
    EXPECT_EQ(format_bytes(1023), "1023 B");
    EXPECT_EQ(format_bytes(1024), "1.00 KiB");
    EXPECT_EQ(format_bytes(1536.0 * 1024), "1.50 MiB");
    EXPECT_EQ(format_bytes(12.34 * 1024 * 1024 * 1024), "12.3 GiB");
    EXPECT_EQ(format_bytes(std::ldexp(1, 60)), "1024.0 PiB");
}

}  // namespace
}  // namespace ultrascale
