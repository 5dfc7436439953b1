// Breaks 02_zero's shards inside nodes (--shard-size and --secondary-shard, with half of the ranks
// as a node) on purpose, and expects that --verify or the check of communication finds it.
#include "parallel_break.h"

namespace ultrascale {
using namespace ultrascale::data_parallel;
using namespace ultrascale::zero;
namespace {

// Half of the ranks share a set of shards.
ZeroOptions in_two_groups(int stage) { return {.stage = stage, .shard_size = world().size() / 2}; }
#define NEEDS_TWO_GROUPS() \
    if (world().size() % 2 != 0) GTEST_SKIP() << "needs two groups of as many ranks"

TEST(ZeroHybridBreak, HybridStagesPass) {
    NEEDS_TWO_GROUPS();
    expect(train_zero<Zero1>(in_two_groups(1)), true, true, true);
    expect(train_zero<Zero2>(in_two_groups(2)), true, true, true);
    expect(train_zero<Zero3>(in_two_groups(3)), true, true, true);
    expect(train_zero<Offloaded<Zero2>>(
               {.stage = 2, .shard_size = world().size() / 2, .offload = true}),
           true, true, true);
    expect(train_zero<EveryMicroBatch<Zero1>>(
               {.stage = 1, .shard_size = world().size() / 2, .every_micro_batch = true}),
           true, true, true);
}

TEST(ZeroHybridBreak, SecondaryShardsPass) {
    NEEDS_TWO_GROUPS();
    const ZeroOptions zero{.stage = 3, .secondary_shard = world().size() / 2};
    expect(train_zero<SecondaryShards>(zero), true, true, true);
    expect(train_zero<Offloaded<SecondaryShards>>(
               {.stage = 3, .secondary_shard = zero.secondary_shard, .offload = true}),
           true, true, true);
}

TEST(ZeroHybridBreak, SecondaryShardsHaveTheWeightsOfTheFirstStep) {
    NEEDS_TWO_GROUPS();
    struct Broken : SecondaryShards {
        using SecondaryShards::SecondaryShards;
        void begin_step(int64_t micro_batches) override { Zero3::begin_step(micro_batches); }
        void update(double lr, const Tensor& squared_norm) override {
            Zero3::update(lr, squared_norm);
        }
    };
    expect(train_zero<Broken>({.stage = 3, .secondary_shard = world().size() / 2}), false, true,
           false);
}

TEST(ZeroHybridBreak, ReplicasNeverMeet) {
    NEEDS_TWO_GROUPS();
    struct Broken : Zero2 {
        using Zero2::Zero2;
        void begin_micro_batch(int64_t m, bool) override {  // so that no sum starts early
            Zero2::begin_micro_batch(m, false);
        }
        Tensor sum_squares() override { return sum_squares_of(grad_shards_); }
    };
    expect(train_zero<Broken>(in_two_groups(2)), false, true, false);
}

TEST(ZeroHybridBreak, ReplicasMeetAfterEveryMicroBatch) {
    NEEDS_TWO_GROUPS();
    struct Broken : Zero2 {
        using Zero2::Zero2;
        void end_micro_batch() override {  // sums again what has already been summed
            Zero2::end_micro_batch();
            sum_over_replica_groups(grad_shards_);
        }
    };
    expect(train_zero<Broken>(in_two_groups(2)), false, true, false);
}

TEST(ZeroHybridBreak, ReplicasDriftApart) {
    NEEDS_TWO_GROUPS();
    struct Broken : Zero1 {
        using Zero1::Zero1;
        void update(double lr, const Tensor& squared_norm) override {
            const double wrong = mesh_.group("replica").rank() == 0 ? lr : 2 * lr;
            Zero1::update(wrong, squared_norm);
        }
    };
    expect(train_zero<Broken>(in_two_groups(1)), false, true, true);
}

}  // namespace
}  // namespace ultrascale
