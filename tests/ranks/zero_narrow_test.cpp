// What ZeRO sends in fewer bits: values within the format's rounding and exact where they can be
// represented, the same weights on every rank, and bytes as predicted; and broken on purpose (part
// of comm_test).
#include "lab/verify/whole_values.h"
#include "parallel_break.h"

namespace ultrascale {
using namespace ultrascale::data_parallel;
using namespace ultrascale::zero;
namespace {

constexpr int64_t part = 24;  // elements of a rank's shard

Tensor tensor_of(const std::vector<float>& values) {
    return Tensor::from_host(std::span<const float>(values), {int64_t(values.size())},
                             Memory::workspace);
}
// Element i of rank r's shard. small: an integer of four bits times the rank's power of two.
float value_of(int r, int64_t i, bool small) {
    if (small) return std::ldexp(float((i * 7 + r) % 31 - 15), r - 3);
    return std::sin(float(i + 100 * r)) * std::pow(3.0f, float(r));
}
std::vector<float> shard_of(int r, bool small) {
    std::vector<float> x;
    for (int64_t i = 0; i < part; ++i) x.push_back(value_of(r, i, small));
    return x;
}
std::vector<float> gathered(bool small) {
    const int n = world().size();
    QuantisedTransfer narrow(Sent::fp8, n * part, n);
    narrow.put(world().rank(), tensor_of(shard_of(world().rank(), small)));
    narrow.gather(world(), communication_stream());
    narrow.wait();
    const Tensor whole = Tensor::empty({n * part}, DType::fp32, Memory::workspace);
    for (int r = 0; r < n; ++r) narrow.get(whole.slice(r * part, (r + 1) * part), r);
    return whole.to_host<float>();
}

bool same_everywhere(const std::vector<float>& values) {
    const std::vector<std::string> all = world().gather_strings(bytes_of<float>(values));
    return std::ranges::all_of(all, [&](const std::string& one) { return one == all.front(); });
}

TEST(ZeroNarrow, GatheredShardsAreRoundedOnceAndTheSameEverywhere) {
    for (const bool small : {true, false}) {
        const std::vector<float> whole = gathered(small);
        for (int r = 0; r < world().size(); ++r) {
            float largest = 0;
            for (const float x : shard_of(r, small)) largest = std::max(largest, std::abs(x));
            for (int64_t i = 0; i < part; ++i) {
                const float x = value_of(r, i, small), y = whole[size_t(r * part + i)];
                if (small)
                    EXPECT_EQ(y, x);
                else
                    EXPECT_LE(std::abs(y - x),
                              std::max(std::abs(x) / 16, std::ldexp(largest, -18)));
            }
        }
        EXPECT_TRUE(same_everywhere(whole));
    }
}

std::vector<float> reduced(Sent sent, bool small, DType dtype) {
    const int n = world().size();
    std::vector<float> mine;  // slice p: the p-th part for which every rank has other numbers
    for (int p = 0; p < n; ++p)
        for (int64_t i = 0; i < part; ++i) mine.push_back(value_of(world().rank(), i + p, small));
    GradientBuffers::Reduction r{.unit = 0,
                                 .whole = Tensor::empty({n * part}, dtype, Memory::communication),
                                 .sum = Tensor::zeros({part}, dtype, Memory::communication),
                                 .add = false,
                                 .work = {}};
    ops::copy(r.whole, tensor_of(mine));
    start_reduction(r, world(), sent);
    r.work.wait();
    if (r.arrived) r.arrived();
    const Tensor sum = Tensor::empty({part}, DType::fp32, Memory::workspace);
    ops::copy(sum, r.sum);
    return sum.to_host<float>();
}

TEST(ZeroNarrow, SumsRoundEachRanksNumbersOnce) {
    for (const Sent sent : {Sent::fp8, Sent::bf16})
        for (const bool small : {true, false}) {
            const std::vector<float> sum = reduced(sent, small, DType::fp32);
            for (int64_t i = 0; i < part; ++i) {
                double exact = 0, magnitudes = 0;
                for (int r = 0; r < world().size(); ++r) {
                    const float x = value_of(r, i + world().rank(), small);
                    exact += x, magnitudes += std::abs(x);
                }
                if (small)
                    EXPECT_EQ(sum[size_t(i)], float(exact));
                else
                    EXPECT_LE(std::abs(sum[size_t(i)] - exact),
                              magnitudes / (sent == Sent::fp8 ? 16 : 256) + 1e-3);
            }
        }
    // Gradients in bf16 are added up in fp32, too, and rounded once, at the end.
    const std::vector<float> in_bf16 = reduced(Sent::fp8, true, DType::bf16);
    for (int64_t i = 0; i < part; ++i) {
        float exact = 0;
        for (int r = 0; r < world().size(); ++r) exact += value_of(r, i + world().rank(), true);
        EXPECT_EQ(in_bf16[size_t(i)], float(bf16(exact)));
    }
}

constexpr ZeroOptions in_fp8{.stage = 3, .gathers = Sent::fp8, .sums = Sent::fp8};

TEST(ZeroNarrow, MemoryAndCommunicationAreAsPredicted) {
    for (ZeroOptions zero :
         {in_fp8, ZeroOptions{.stage = 3, .prefetch = 0, .gathers = Sent::fp8},
          ZeroOptions{.stage = 3, .prefetch = 2, .sums = Sent::bf16},
          ZeroOptions{.stage = 3, .keep_gathered = true, .gathers = Sent::fp8}}) {
        const Checks checks = zero.gathers == Sent::plain ? train_zero<NarrowSums<Zero3>>(zero)
                                                          : train_zero<NarrowGathers>(zero);
        EXPECT_TRUE(checks.memory);
        EXPECT_TRUE(checks.communication);
        EXPECT_EQ(checks.verified, world().size() == 1);
    }
    const Checks checks = train_zero<NarrowSums<Zero2>>({.stage = 2, .sums = Sent::fp8});
    EXPECT_TRUE(checks.memory);
    EXPECT_TRUE(checks.communication);
}

TEST(ZeroNarrowBreak, NothingIsRoundedButItIsPredicted) {
    NEEDS_RANKS();
    struct Broken : Zero3 {
        Broken(ParameterList& parameters, std::vector<const Unit*> units, const Mesh& mesh,
               const Options& options, const ZeroOptions&)
            : Zero3(parameters, std::move(units), mesh, options, {.stage = 3}) {}
    };
    expect(train_zero<Broken>(in_fp8), true, false, false);
}

TEST(ZeroNarrowBreak, ARankComputesWithItsOwnExactShard) {
    NEEDS_RANKS();
    std::vector<float> whole = gathered(false);
    EXPECT_TRUE(same_everywhere(whole));
    std::ranges::copy(shard_of(world().rank(), false), whole.begin() + world().rank() * part);
    EXPECT_FALSE(same_everywhere(whole));
}

// The update must add to the exact shard: small steps vanish in four bits.
TEST(ZeroNarrowBreak, TheShardItselfIsRounded) {
    NEEDS_RANKS();
    struct Broken : Zero3 {
        using Zero3::Zero3;
        void update(double lr, const Tensor& squared_norm) override {
            Zero3::update(lr, squared_norm);
            for (size_t u = 0; u < layout_.size(); ++u) {
                const QuantisedTransfer rounded(Sent::fp8, layout_[u].shard, 1);
                rounded.put(0, value_shards_[u]);
                rounded.get(value_shards_[u], 0);
            }
        }
    };
    // Gathered exactly, so only the update differs.
    expect(train_zero<Broken>({.stage = 3}), false, true, true);
}

}  // namespace
}  // namespace ultrascale
