// The microscope (common/emulator/microscope.h) on global memory, with small kernels whose counts
// are known exactly; and its table.
#include "microscope_fixture.h"

namespace ultrascale::test {
namespace {

using MicroscopeGlobal = Microscope;

TEST_F(MicroscopeGlobal, OneFloatALaneIsFourSectors) {
    launch_copy_floats(to, from, 256);
    const KernelCounts kernel = only_kernel();
    EXPECT_EQ(kernel.name, "copy_scalars<float>");
    EXPECT_EQ(kernel.file, "microscope_kernels.cu");
    EXPECT_EQ(kernel.launches, 1);
    EXPECT_EQ(kernel.blocks, 8);
    EXPECT_EQ(kernel.threads, 256);
    ASSERT_EQ(kernel.lines.size(), 2u);  // threadIdx, blockIdx and the arguments do not count
    EXPECT_EQ(kernel.lines[0].source, "const T x = from[i * stride + offset];");
    EXPECT_EQ(kernel.lines[1].source, "to[i * stride + offset] = x;");
    EXPECT_EQ(kernel.lines[1].line, kernel.lines[0].line + 1);
    EXPECT_EQ(kernel.lines[0].access, global_load);
    EXPECT_EQ(kernel.lines[1].access, global_store);
    for (const simt::LineCounts& line : kernel.lines) {
        EXPECT_EQ(line.file, "microscope_kernels.cu");
        EXPECT_EQ(line.bytes, 4);
        EXPECT_EQ(line.counts.requests, 8);
        EXPECT_EQ(line.counts.lanes, 256);
        EXPECT_EQ(line.counts.active_threads(), 32.0);
        EXPECT_EQ(line.counts.sectors, 32);
        EXPECT_EQ(line.counts.sectors_per_request(), 4.0);
        EXPECT_EQ(line.counts.ideal_sectors, 32);
        EXPECT_EQ(line.counts.bytes_asked, 1024);
        EXPECT_EQ(line.counts.bytes_moved(), 1024);
        EXPECT_EQ(line.counts.wavefronts, 0);
    }
}

TEST_F(MicroscopeGlobal, StridesAndOffsets) {
    struct Case {
        int stride, offset;
        double sectors, ideal;
    };
    for (const Case& c : {Case{1, 0, 4, 4},
                          {1, 1, 5, 4},
                          {1, 8, 4, 4},
                          {2, 0, 8, 4},
                          {4, 0, 16, 4},
                          {8, 0, 32, 4},
                          {32, 0, 32, 4},
                          {33, 0, 32, 4}}) {
        launch_copy_floats(to, from, 64, c.stride, c.offset);
        const KernelCounts kernel = only_kernel();
        for (const Access access : {global_load, global_store}) {
            const Counts counts = kernel.total(access);
            EXPECT_EQ(counts.sectors_per_request(), c.sectors) << c.stride << " " << c.offset;
            EXPECT_EQ(counts.ideal_sectors, 2 * c.ideal);
            EXPECT_EQ(counts.bytes_asked, 256);
        }
    }
}

TEST_F(MicroscopeGlobal, SixteenBytesALaneAreOneRequest) {
    launch_copy_float4(to, from, 64);
    launch_sum_float4(to, from, 64);
    launch_scale_packs(to, from, 256);
    launch_scale_packs_bf16(to_bf16, from_bf16, 512);
    const Observation all = microscope.take();
    ASSERT_EQ(all.kernels.size(), 4u);
    EXPECT_EQ(all.kernels[2].name, "scale_packs<float, 4>");
    EXPECT_EQ(all.kernels[3].name, "scale_packs<bf16, 8>");
    for (const KernelCounts& kernel : all.kernels) {
        const Counts loads = kernel.total(global_load), stores = kernel.total(global_store);
        EXPECT_EQ(loads.requests, 2) << kernel.name;
        EXPECT_EQ(loads.sectors_per_request(), 16.0) << kernel.name;
        EXPECT_EQ(loads.bytes_asked, 1024) << kernel.name;
        EXPECT_EQ(stores.requests, 2) << kernel.name;
        EXPECT_EQ(stores.sectors_per_request(), kernel.name == "sum_float4" ? 4.0 : 16.0)
            << kernel.name;
        for (const simt::LineCounts& line : kernel.lines)
            EXPECT_EQ(line.bytes,
                      kernel.name == "sum_float4" && line.access == global_store ? 4 : 16)
                << kernel.name;
    }
    // The line where load() was inlined, not a line inside it.
    EXPECT_EQ(all.kernels[3].at("load<n>(from + i)", global_load).requests, 2);
}

TEST_F(MicroscopeGlobal, Bf16IsTwoSectors) {
    launch_copy_bf16(to_bf16, from_bf16, 128);
    const Counts counts = loads();
    EXPECT_EQ(counts.requests, 4);
    EXPECT_EQ(counts.sectors_per_request(), 2.0);
}

TEST_F(MicroscopeGlobal, CacheHintsAreLoadsOfTheKernelsLine) {
    launch_cached_loads(to, from);
    const KernelCounts kernel = only_kernel();
    EXPECT_EQ(kernel.at("__ldg", global_load).sectors, 4);
    EXPECT_EQ(kernel.at("__stcs", global_store).sectors, 4);
    EXPECT_EQ(kernel.total().requests, 2);
}

TEST_F(MicroscopeGlobal, OneAddressForAllIsOneSector) {
    launch_broadcast(to, from);
    const Counts counts = loads();
    EXPECT_EQ(counts.requests, 1);
    EXPECT_EQ(counts.sectors, 1);
    EXPECT_EQ(counts.ideal_sectors, 1);
    EXPECT_EQ(counts.lanes, 32);
    EXPECT_EQ(counts.bytes_asked, 128);
}

TEST_F(MicroscopeGlobal, Divergence) {
    launch_some_lanes(to, from);
    const Counts counts = loads();
    EXPECT_EQ(counts.requests, 6);  // 3 blocks of 2 warps
    EXPECT_EQ(counts.active_threads(), 8.0);
    EXPECT_EQ(counts.sectors_per_request(), 1.0);
}

TEST_F(MicroscopeGlobal, AnIncompleteLastWarp) {
    launch_copy_floats(to, from, 100);
    const Counts counts = loads();
    EXPECT_EQ(counts.requests, 4);
    EXPECT_EQ(counts.lanes, 100);
    EXPECT_EQ(counts.active_threads(), 25.0);
    EXPECT_EQ(counts.sectors, 13);
}

TEST_F(MicroscopeGlobal, ReadModifyWriteIsALoadAndAStore) {
    launch_read_modify_write(to);
    const KernelCounts kernel = only_kernel();
    EXPECT_EQ(kernel.total(global_load).requests, 1);
    EXPECT_EQ(kernel.total(global_store).requests, 1);
}

TEST_F(MicroscopeGlobal, LoopsOfDifferentLengths) {
    launch_different_trips(to, from);
    Counts counts = loads();
    EXPECT_EQ(counts.requests, 32);
    EXPECT_EQ(counts.active_threads(), 16.5);
    EXPECT_EQ(counts.sectors,
              8 * (4 + 3 + 2 + 1));  // turn i: lanes i to 31, a sector for 8 of them
    launch_nested_trips(to, from);
    counts = loads();
    EXPECT_EQ(counts.requests,
              6);  // each time 32 lanes, then the 16 odd ones: nobody is a turn ahead
    EXPECT_EQ(counts.lanes, 3 * 48);
    EXPECT_EQ(counts.sectors, 3 * (4 + 4));
    launch_half_warps_apart(to, from);
    counts = loads();
    EXPECT_EQ(counts.requests, 3);
    EXPECT_EQ(counts.active_threads(), 32.0);
}

TEST_F(MicroscopeGlobal, LongLoopsAndManyBlocks) {
    constexpr int turns = 5000, blocks = 3;
    launch_long_loop(to, from, turns, blocks);
    const KernelCounts kernel = only_kernel();
    const Counts all_lanes = kernel.at("% 4096", global_load),
                 some = kernel.at("if (threadIdx.x % 2 == 0)", global_load);
    EXPECT_EQ(all_lanes.requests, turns * 2 * blocks);
    EXPECT_EQ(all_lanes.sectors_per_request(), 4.0);
    EXPECT_EQ(some.requests, turns * 2 * blocks);
    EXPECT_EQ(some.active_threads(), 16.0);
    EXPECT_EQ(some.sectors_per_request(), 4.0);
    EXPECT_EQ(some.ideal_sectors, some.requests * 2);
}

TEST_F(MicroscopeGlobal, StructsThatNoSingleAccessCopies) {
    launch_struct_of_three(to, from);
    launch_unaligned_struct(to, from);
    const Observation all = microscope.take();
    for (int64_t floats : {3, 4}) {
        const Counts counts = all.kernels.at(size_t(floats - 3)).total(global_load);
        EXPECT_EQ(counts.requests, floats);
        EXPECT_EQ(counts.bytes_asked, 128 * floats);
        EXPECT_EQ(counts.sectors_per_request(),
                  4.0 * double(floats));  // each request touches all of them
        EXPECT_EQ(counts.ideal_sectors, 4 * floats);
    }
}

TEST_F(MicroscopeGlobal, Atomics) {
    launch_atomics_of_each_kind(to, 48);
    const KernelCounts kernel = only_kernel();
    const Counts global = kernel.at("atomicAdd", global_atomic),
                 shared = kernel.at("atomicAdd", shared_atomic);
    EXPECT_EQ(global.requests, 1);
    EXPECT_EQ(global.lanes, 4);
    EXPECT_EQ(global.sectors, 1);
    EXPECT_EQ(shared.requests, 2);
    EXPECT_EQ(shared.wavefronts, 32 + 16);  // one after another
    EXPECT_EQ(to_tensor.to_host<float>()[3], 48);
}

TEST_F(MicroscopeGlobal, TakesBeginAnew) {
    launch_broadcast(to, from);
    launch_broadcast(to, from);
    EXPECT_EQ(only_kernel().launches, 2);
    launch_broadcast(to, from);
    EXPECT_EQ(only_kernel().total(global_load).requests, 1);
    EXPECT_TRUE(microscope.take().kernels.empty());
    EXPECT_THROW(simt::Microscope(), std::logic_error);
}

TEST(MicroscopeOff, SeesNothingAfterItsEnd) {
    const Tensor x = floats(64);
    { simt::Microscope microscope; }
    launch_broadcast(x.as<float>(), x.as<float>());
    simt::Microscope microscope;
    EXPECT_TRUE(microscope.take().kernels.empty());
}

TEST_F(Microscope, PrintsATable) {
    launch_transpose_unpadded(to, from);
    launch_read_after_write(to, from, false);
    const std::string text = simt::table(microscope.take());
    for (const char* part :
         {"transpose<32> (microscope_kernels.cu:", "\n  1 launch, 1 block, 256 threads",
          "shared load", "32.0-way bank conflicts", "asked for 4096 bytes, moved 4096, ideal 4096",
          "RACE in read_after_write<false>\n  block (0, 0, 0)"})
        EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
    size_t begin = 0;
    for (size_t end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1)
        EXPECT_LE(end - begin, 100u) << text.substr(begin, end - begin);
}

}  // namespace
}  // namespace ultrascale::test
