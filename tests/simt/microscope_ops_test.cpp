// The microscope on the operations' kernels: wide accesses, and no races in any of their tests.
#include "tests/test_util.h"
#include "microscope_fixture.h"
#include "core/ops.h"

namespace ultrascale::test {
namespace {

using MicroscopeOps = Microscope;

TEST_F(MicroscopeOps, RmsNormReadsSixteenBytesALane) {
    constexpr int64_t N = 5, h = 512;
    for (const DType dtype : {DType::fp32, DType::bf16}) {
        const Tensor x = random_tensor({N, h}, dtype, 1), weight = random_tensor({h}, dtype, 2),
                     y = poisoned({N, h}, dtype);
        const Tensor rstd = poisoned({N}, DType::fp32);
        ops::rmsnorm_forward(y, rstd, x, weight, 1e-5f);
        const KernelCounts kernel = only_kernel();
        EXPECT_EQ(kernel.name, dtype == DType::fp32 ? "forward_kept<32, 4, float>"
                                                    : "forward_kept<32, 8, bf16>");
        EXPECT_EQ(kernel.file, "ops_rmsnorm.cu");
        for (const auto& [line, access] : {std::pair("load_row<group>(kept, x", global_load),
                                           {"load_up_to<n>(weight, i, h)", global_load},
                                           {"store(y + i", global_store}}) {
            const Counts counts = kernel.at(line, access);
            EXPECT_EQ(counts.requests, N * h * dtype_bytes(dtype) / (32 * 16)) << line;
            EXPECT_EQ(counts.active_threads(), 32.0) << line;
            EXPECT_EQ(counts.sectors_per_request(), 16.0) << line;
            EXPECT_EQ(counts.sectors, counts.ideal_sectors) << line;
        }
        EXPECT_EQ(kernel.total(global_store).requests,
                  kernel.at("store(y + i", global_store).requests + N);  // rstd by one lane
    }
}

// Watches all of the operations' own tests, which are also in this program: none of their kernels
// may have a race.
class WatchesOperations : public testing::EmptyTestEventListener {
    std::unique_ptr<simt::Microscope> microscope_;
    void OnTestStart(const testing::TestInfo& test) override {
        if (std::string(test.test_suite_name()).starts_with("Ops"))
            microscope_ = std::make_unique<simt::Microscope>();
    }
    void OnTestEnd(const testing::TestInfo&) override {
        if (!microscope_) return;
        Observation seen = microscope_->take();
        microscope_.reset();
        EXPECT_FALSE(seen.kernels.empty());
        seen.kernels.clear();
        EXPECT_TRUE(seen.races.empty()) << simt::table(seen);
    }
};
[[maybe_unused]] const bool watches = [] {
    testing::UnitTest::GetInstance()->listeners().Append(new WatchesOperations);
    return true;
}();

}  // namespace
}  // namespace ultrascale::test
