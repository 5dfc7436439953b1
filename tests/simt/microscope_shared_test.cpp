// The microscope on shared memory: turns at its banks, and races.
#include "microscope_fixture.h"

namespace ultrascale::test {
namespace {

using MicroscopeShared = Microscope;
using MicroscopeRaces = Microscope;

TEST_F(MicroscopeShared, ATransposesTile) {
    launch_transpose_unpadded(to, from);
    const KernelCounts unpadded = only_kernel();
    launch_transpose_padded(to, from);
    const KernelCounts padded = only_kernel();
    EXPECT_EQ(unpadded.name, "transpose<32>");
    const std::string read = "to[y * 32 + threadIdx.x] = tile[threadIdx.x][y]",
                      write = "tile[y][threadIdx.x] = from[";
    EXPECT_EQ(unpadded.at(read, shared_load).requests, 32);
    EXPECT_EQ(unpadded.at(read, shared_load).ways(), 32.0);
    EXPECT_EQ(unpadded.at(read, shared_load).wavefronts, 1024);
    EXPECT_EQ(padded.at(read, shared_load).ways(), 1.0);
    for (const KernelCounts& kernel : {unpadded, padded}) {
        EXPECT_EQ(kernel.at(write, shared_store).ways(), 1.0);
        EXPECT_EQ(kernel.total(global_load).sectors_per_request(), 4.0);
        EXPECT_EQ(kernel.total(global_store).sectors_per_request(), 4.0);
        EXPECT_EQ(kernel.total(shared_load).sectors, 0);
    }
}

TEST_F(MicroscopeShared, Banks) {
    launch_shared_patterns(to);
    const KernelCounts kernel = only_kernel();
    EXPECT_EQ(kernel.at("x[i] = 1", shared_store).requests, 32);
    EXPECT_EQ(kernel.at("x[i] = 1", shared_store).ways(), 1.0);
    EXPECT_EQ(kernel.at("// all the same", shared_load).ways(), 1.0);
    EXPECT_EQ(kernel.at("threadIdx.x * 2]", shared_load).ways(), 2.0);
    EXPECT_EQ(kernel.at("threadIdx.x * 4]", shared_load).ways(), 4.0);
    EXPECT_EQ(kernel.at("threadIdx.x / 2]", shared_load).ways(), 1.0);
    EXPECT_EQ(kernel.at("threadIdx.x % 2 * 32]", shared_load).ways(), 2.0);
}

TEST_F(MicroscopeShared, WideAccessesTakeHalvesAndQuartersOfAWarp) {
    launch_shared_float4(to);
    const KernelCounts kernel = only_kernel();
    const Counts store = kernel.at("make_float4", shared_store),
                 near = kernel.at("near =", shared_load);
    const Counts half = kernel.at("half =", shared_load), far = kernel.at("far =", shared_load);
    for (const Counts& counts : {store, near}) {
        EXPECT_EQ(counts.requests, 1);
        EXPECT_EQ(counts.wavefronts, 4);
        EXPECT_EQ(counts.ways(), 1.0);
    }
    EXPECT_EQ(half.wavefronts, 2);
    EXPECT_EQ(half.ways(), 1.0);
    EXPECT_EQ(far.requests, 1);
    EXPECT_EQ(far.ways(),
              4.0);  // four rows of all banks, of which all quarters want the first four
}

TEST_F(MicroscopeRaces, WriteThenReadByAnother) {
    launch_read_after_write(to, from, false);
    Observation seen = microscope.take();
    ASSERT_EQ(seen.races.size(), 1u);
    const simt::Race& race = seen.races[0];
    EXPECT_EQ(race.kernel, "read_after_write<false>");
    EXPECT_EQ(race.one.access, shared_store);
    EXPECT_EQ(race.one.source, "x[threadIdx.x] = from[threadIdx.x];");
    EXPECT_EQ(race.other.access, shared_load);
    EXPECT_EQ(race.other.source, "to[threadIdx.x] = x[(threadIdx.x + 32) % blockDim.x];");
    EXPECT_EQ(race.block.x, 0u);
    EXPECT_EQ(race.one.thread, (race.other.thread + 32) % 64);
    EXPECT_EQ(race.offset, race.one.thread * 4);
    EXPECT_EQ(race.count, 128);
    launch_read_after_write(to, from, true);
    EXPECT_TRUE(microscope.take().races.empty());
}

// Here the write comes before any of the reading threads has run.
TEST_F(MicroscopeRaces, ReadThenWriteByAnother) {
    launch_write_after_read(to, from, false);
    Observation seen = microscope.take();
    ASSERT_EQ(seen.races.size(), 1u);
    EXPECT_EQ(seen.races[0].one.source, "x[threadIdx.x] = from[64 * turn + int(threadIdx.x)];");
    EXPECT_EQ(seen.races[0].other.source, "sum += x[63 - threadIdx.x];");
    EXPECT_EQ(seen.races[0].offset, -1);
    launch_write_after_read(to, from, true);
    EXPECT_TRUE(microscope.take().races.empty());
}

TEST_F(MicroscopeRaces, TwoValuesInOnePlace) {
    launch_write_after_write(to, false);
    Observation seen = microscope.take();
    ASSERT_EQ(seen.races.size(), 1u);
    EXPECT_EQ(seen.races[0].one.access, shared_store);
    EXPECT_EQ(seen.races[0].other.access, shared_store);
    EXPECT_EQ(seen.races[0].one.line, seen.races[0].other.line);
    EXPECT_EQ(seen.races[0].one.thread, 0u);
    EXPECT_EQ(seen.races[0].other.thread, 1u);
    EXPECT_EQ(seen.races[0].count, 32);
    for (int i = 0; i < 96; ++i) from[i] = float(i);
    launch_colliding_structs(to, from);
    seen = microscope.take();
    ASSERT_EQ(seen.races.size(), 1u);
    EXPECT_EQ(seen.races[0].count, 48);
    launch_write_after_write(to, true);
    launch_write_of_the_same(to);
    launch_copied_structs(to, from);
    EXPECT_TRUE(microscope.take().races.empty());
}

TEST_F(MicroscopeRaces, OnlySyncwarpOrdersAWarpsLanes) {
    launch_warp_reduction(to, from, true);
    launch_chain_of_syncwarps(to, true);
    EXPECT_TRUE(microscope.take().races.empty());
    launch_warp_reduction(to, from, false);
    Observation seen = microscope.take();
    ASSERT_EQ(seen.races.size(), 2u);  // with the first store and with that of another turn
    for (const simt::Race& race : seen.races)
        EXPECT_EQ(race.one.thread / 32, race.other.thread / 32);
    launch_warp_reduction_by_shuffle(to, from);
    EXPECT_EQ(microscope.take().races.size(), 1u);
    launch_chain_of_syncwarps(to, false);
    EXPECT_EQ(microscope.take().races.size(), 1u);
    launch_across_warps_with_syncwarp(to, from);
    seen = microscope.take();
    ASSERT_EQ(seen.races.size(), 1u);
    EXPECT_NE(seen.races[0].one.thread / 32, seen.races[0].other.thread / 32);
}

TEST_F(MicroscopeRaces, OfAtomicsWithOthersOnly) {
    const Tensor count = Tensor::zeros({1}, DType::int32, Memory::workspace);
    launch_counter(count.as<int32_t>(), true);
    EXPECT_TRUE(microscope.take().races.empty());
    launch_counter(count.as<int32_t>(), false);
    const Observation seen = microscope.take();
    ASSERT_EQ(seen.races.size(), 1u);
    EXPECT_EQ(seen.races[0].one.access, shared_atomic);
    EXPECT_EQ(seen.races[0].other.access, shared_load);
}

TEST_F(MicroscopeRaces, ByteForByte) {
    launch_neighbouring_bytes(to);
    const Observation seen = microscope.take();
    EXPECT_TRUE(seen.races.empty()) << simt::table(seen);
    EXPECT_EQ(seen.kernels[0].total(shared_store).requests, 4);
}

TEST_F(MicroscopeRaces, AWordThatAllHaveRead) {
    launch_many_readers(to, true);
    EXPECT_TRUE(microscope.take().races.empty());
    launch_many_readers(to, false);
    EXPECT_EQ(microscope.take().races.size(), 1u);
}

}  // namespace
}  // namespace ultrascale::test
