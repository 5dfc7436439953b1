// Breaks the techniques of 01_data_parallel on purpose, one at a time, and expects --verify, the
// memory check or the communication check to fail, on any number of ranks (part of comm_test).
#include "01_data_parallel/1_naive.h"
#include "01_data_parallel/2_overlap.h"
#include "01_data_parallel/3_buckets.h"
#include "01_data_parallel/6_ring_all_reduce.h"
#include "01_data_parallel/6_tree_all_reduce.h"
#include "01_data_parallel/7_hierarchical.h"
#include "01_data_parallel/8_reduce_dtype.h"
#include "parallel_break.h"

namespace ultrascale {
using namespace ultrascale::data_parallel;
using namespace ultrascale::zero;
namespace {

constexpr int64_t full_bucket = 5000;  // elements

TEST(DataParallelBreak, UnchangedTechniquesPass) {
    expect(train_data_parallel<NaiveSync>(), true, true, true);
    expect(train_data_parallel<OverlapSync>(), true, true, true);
    expect(train_data_parallel<BucketSync>(full_bucket), true, true, true);
    expect(train_data_parallel<RingSync>(RingDirections::both), true, true, true);
    expect(train_data_parallel<TreeSync>(3), true, true, true);
    expect(train_data_parallel<HierarchicalSync>(full_bucket,
                                                 Nodes{.ranks = world().size() % 2 == 0 ? 2 : 1}),
           true, true, true);
}

TEST(DataParallelBreak, NaiveForgetsTheLastParameter) {
    NEEDS_RANKS();
    struct Broken : NaiveSync {
        using NaiveSync::NaiveSync;
        void finish() override {
            for (size_t i = 0; i + 1 < parameters_.size(); ++i)
                ranks_.all_reduce(parameters_.begin()[ptrdiff_t(i)]->grad);
        }
    };
    expect(train_data_parallel<Broken>(), false, true, false);
}

TEST(DataParallelBreak, TheRingsLastChunkDoesNotArrive) {
    NEEDS_RANKS();
    struct Broken : RingSync {
        using RingSync::RingSync;
        void finish() override {
            const Tensor all = parameters_.flat_grads(),
                         chunk = all.slice(part_begin(all.numel(), 1, 2), all.numel());
            const Tensor before = Tensor::empty(chunk.shape(), chunk.dtype(), Memory::workspace);
            ops::copy(before, chunk);
            RingSync::finish();
            if (ranks_.rank() == 0) ops::copy(chunk, before);
        }
    };
    expect(train_data_parallel<Broken>(RingDirections::one), false, true, true);
}

// The root of the first tree has the sum, and one of its children does not get the last chunk.
TEST(DataParallelBreak, TheTreesLastChunkDoesNotComeDown) {
    NEEDS_RANKS();
    struct Broken : TreeSync {
        using TreeSync::TreeSync;
        void finish() override {
            const Tensor all = parameters_.flat_grads(),
                         half = all.slice(0, part_begin(all.numel(), 1, 2)),
                         chunk = half.slice(part_begin(half.numel(), chunks() - 1, chunks()),
                                            half.numel());
            const Tensor before = Tensor::empty(chunk.shape(), chunk.dtype(), Memory::workspace);
            ops::copy(before, chunk);
            TreeSync::finish();
            if (tree_places(ranks_.rank(), ranks_.size())[0].depth == 1) ops::copy(chunk, before);
        }
    };
    expect(train_data_parallel<Broken>(3), false, true, true);
}

// The sums are right, but they take twice as many messages as are predicted.
TEST(DataParallelBreak, EachHalfTakesTurns) {
    NEEDS_RANKS();
    struct Broken : TreeSync {
        using TreeSync::TreeSync;
        void finish() override {
            const Tensor all = parameters_.flat_grads();
            for (int half : {0, 1})
                tree_all_reduce(ranks_,
                                all.slice(part_begin(all.numel(), half, 2),
                                          part_begin(all.numel(), half + 1, 2)),
                                chunks());
        }
    };
    const Checks checks = train_data_parallel<Broken>(3);
    EXPECT_TRUE(checks.verified) << checks.printed;
    EXPECT_FALSE(checks.communication) << checks.printed;
}

TEST(DataParallelBreak, TheLastBucketIsForgotten) {
    NEEDS_RANKS();
    struct Broken : BucketSync {
        using BucketSync::BucketSync;
        void gradient_complete(Parameter& parameter, const Context& context) override {
            if (bucket_of_.at(&parameter) + 1 < buckets_.size())
                BucketSync::gradient_complete(parameter, context);
        }
    };
    expect(train_data_parallel<Broken>(full_bucket), false, true, false);
}

// The sums travel in fp32, so that verify detects the mistake.
TEST(DataParallelBreak, TheSumStaysOnTheWire) {
    NEEDS_RANKS();
    expect(train_data_parallel<ReduceDtypeSync>(full_bucket, DType::fp32), true, true, true);
    struct Broken : ReduceDtypeSync {
        using ReduceDtypeSync::ReduceDtypeSync;
        void arrived(Bucket& bucket) override {
            const Tensor own =
                Tensor::empty(of(bucket).shape(), of(bucket).dtype(), Memory::workspace);
            ops::copy(own, of(bucket));
            ReduceDtypeSync::arrived(bucket);
            ops::copy(of(bucket), own);
        }
    };
    expect(train_data_parallel<Broken>(full_bucket, DType::fp32), false, true, true);
}

TEST(DataParallelBreak, TheNodesNeverMeet) {
    NEEDS_RANKS();
    if (world().size() % 2 != 0) GTEST_SKIP() << "needs two nodes of as many ranks";
    struct Broken : HierarchicalSync {
        using HierarchicalSync::HierarchicalSync;
        // Sums only inside the node.
        void start(Bucket& bucket, const Tensor& gradients) override {
            bucket.under_way.push_back(
                node.all_reduce(gradients, Reduce::sum, communication_stream()));
        }
        const Communicator node = world().split(world().rank() / (world().size() / 2),
                                                world().rank(), "half of the ranks");
    };
    expect(train_data_parallel<Broken>(full_bucket, Nodes{.ranks = world().size() / 2}), false,
           true, false);
}

TEST(DataParallelBreak, OneParameterIsNotSummed) {
    NEEDS_RANKS();
    for (const char* name : {"model.norm.weight", "model.layers.1.self_attn.k_proj.weight",
                             "model.embed_tokens.weight"}) {
        static std::string dropped;
        dropped = name;
        struct Broken : OverlapSync {
            using OverlapSync::OverlapSync;
            void gradient_complete(Parameter& parameter, const Context& context) override {
                if (parameter.name != dropped) OverlapSync::gradient_complete(parameter, context);
            }
        };
        expect(train_data_parallel<Broken>(), false, true, false);
    }
}

// 4_accumulation.h sums after each micro-batch.
TEST(DataParallelBreak, TheSumsOverMicroBatchesAreNotTakenBack) {
    expect(train_accumulated<NaiveSync>(true), true, true, true);
    expect(train_accumulated<BucketSync>(true, full_bucket), true, true, true);
    struct Broken : Accumulation {
        using Accumulation::Accumulation;
        void begin_step(int64_t) { Accumulation::begin_step(1); }
    };
    expect(train_accumulated<BucketSync, Broken>(true, full_bucket), false, true, true);
}

TEST(DataParallelBreak, SynchronisedAfterEveryMicroBatch) {
    NEEDS_RANKS();
    struct Broken : OverlapSync {
        using OverlapSync::OverlapSync;
        void begin_micro_batch(
            ParameterList& parameters) {  // sums again what has already been summed
            if ((*parameters.begin())->complete) finish();
            for (const auto& p : parameters) p->contributions = p->missing = p->uses;
        }
    };
    expect(train_data_parallel<Broken>(), false, true, false);
}

}  // namespace
}  // namespace ultrascale
