// Breaks the techniques of 02_zero on purpose, one at a time, and expects --verify, the memory
// check or the communication check to fail, on any number of ranks (part of comm_test).
#include "parallel_break.h"

namespace ultrascale {
using namespace ultrascale::data_parallel;
using namespace ultrascale::zero;
namespace {

TEST(ZeroBreak, UnchangedStagesPass) {
    expect(train_plain_zero<PlainZero1>(), true, true, true);
    expect(train_plain_zero<MuonZero1>(true), true, true, true);
    expect(train_zero<Zero0>({.stage = 0}), true, true, true);
    expect(train_zero<Zero1>({.stage = 1}), true, true, true);
    expect(train_zero<Zero2>({.stage = 2}), true, true, true);
    expect(train_zero<Zero3>({.stage = 3}), true, true, true);
    expect(train_zero<Offloaded<Zero2>>({.stage = 2, .offload = true}), true, true, true);
    expect(train_zero<Zero3>({.stage = 3, .keep_gathered = true}), true, true, true);
    expect(train_zero<Zero3>({.stage = 3, .cut = Cut::model}), true, true, true);
    expect(train_zero<EveryMicroBatch<Zero0>>({.stage = 0, .every_micro_batch = true}), true, true,
           true);
    expect(train_zero<EveryMicroBatch<Zero1>>({.stage = 1, .every_micro_batch = true}), true, true,
           true);
}

TEST(ZeroBreak, PlainForgetsToGather) {
    NEEDS_RANKS();
    struct Broken : PlainZero1 {
        using PlainZero1::PlainZero1;
        void update(double lr, const Tensor& squared_norm) override {
            optimizer_->step(lr, squared_norm);
        }
    };
    expect(train_plain_zero<Broken>(), false, true, false);
}

TEST(ZeroBreak, PlainUpdatesWithItsOwnGradient) {
    NEEDS_RANKS();
    struct Broken : PlainZero1 {
        using PlainZero1::PlainZero1;
        void end_micro_batch() override {
            const Tensor copy = Tensor::empty(gradients_.shape(), DType::fp32, Memory::workspace);
            ops::copy(copy, gradients_);
            PlainZero1::end_micro_batch();
            ops::copy(gradients_, copy);
        }
    };
    expect(train_plain_zero<Broken>(), false, true, true);
}

// Two halves of a matrix, each orthogonalized alone, as if a shard ended in the middle.
TEST(ZeroBreak, MuonOrthogonalizesPieces) {
    struct Broken : MuonZero1 {
        using MuonZero1::MuonZero1;
        TrainingState start() override {
            const TrainingState state = MuonZero1::start();
            std::vector<AdamW::Item> pieces;
            for (const AdamW::Item& item : mine_) {
                if (!Muon::updates(*item.parameter)) {
                    pieces.push_back(item);
                    continue;
                }
                const Shape& shape = item.parameter->shape;
                const int64_t half = shape[0] / 2 * shape[1], all = item.value.numel();
                for (const auto& [first, last] : {Range{0, half}, Range{half, all}}) {
                    halves_.push_back(std::make_unique<Parameter>(*item.parameter));
                    halves_.back()->shape[0] = (last - first) / shape[1];
                    pieces.push_back({halves_.back().get(), 0, item.value.slice(first, last),
                                      item.grad.slice(first, last)});
                }
            }
            optimizer_ = make_optimizer(pieces, options_.optimizer);
            return state;
        }
        std::vector<std::unique_ptr<Parameter>> halves_;
    };
    expect(train_plain_zero<Broken>(true), false, true, true);
}

TEST(ZeroBreak, SumsOfMicroBatchesForgetTheFirst) {
    struct Broken : EveryMicroBatch<Zero1> {
        using EveryMicroBatch<Zero1>::EveryMicroBatch;
        void begin_micro_batch(int64_t, bool last) override { Zero1::begin_micro_batch(0, last); }
    };
    expect(train_zero<Broken>({.stage = 1, .every_micro_batch = true}), false, true, true);
}

TEST(ZeroBreak, Zero0ForgetsAUnit) {
    NEEDS_RANKS();
    struct Broken : Zero0 {
        using Zero0::Zero0;
        void gradient_complete(Parameter& parameter, const Context& context) override {
            if (layout_.flat_of(parameter) != 1) Zero0::gradient_complete(parameter, context);
        }
    };
    expect(train_zero<Broken>({.stage = 0}), false, true, false);
}

TEST(ZeroBreak, TheHostUpdatesWithoutAUnitsGradient) {
    struct Broken : Offloaded<Zero2> {
        using Offloaded<Zero2>::Offloaded;
        void update(double lr, const Tensor& squared_norm) override {
            ops::fill(grad_shards_[1], 0);
            Zero2::update(lr, squared_norm);
        }
    };
    expect(train_zero<Broken>({.stage = 2, .offload = true}), false, true, true);
}

// Returns all of a unit's flat values.
Tensor whole_values(const FlatUnit& unit) {
    return unit.segments.front().parameter->value.extended_view({unit.padded});
}

TEST(ZeroBreak, Zero1SkipsAnAllGather) {
    NEEDS_RANKS();
    struct Broken : Zero1 {
        using Zero1::Zero1;
        void update(double lr, const Tensor& squared_norm) override {
            for (size_t u = 0; u < layout_.size(); ++u) {
                optimizers_[u].step(lr, squared_norm);
                if (u != 1)
                    gathers_[u] = ranks_of(u).all_gather(whole_values(layout_[u]), value_shards_[u],
                                                         communication_stream());
            }
        }
    };
    expect(train_zero<Broken>({.stage = 1}), false, true, false);
}

TEST(ZeroBreak, Zero1GathersFromTheWrongShard) {
    NEEDS_RANKS();
    struct Broken : Zero1 {
        using Zero1::Zero1;
        void update(double lr, const Tensor& squared_norm) override {
            for (size_t u = 0; u < layout_.size(); ++u) {
                optimizers_[u].step(lr, squared_norm);
                const Tensor whole = whole_values(layout_[u]);
                Tensor shard = value_shards_[u];
                if (u == 1 && world().rank() == 0) {  // the neighbour's old values
                    shard = Tensor::empty(shard.shape(), shard.dtype(), Memory::workspace);
                    ops::copy(shard, whole.slice(shard.numel(), 2 * shard.numel()));
                }
                gathers_[u] = ranks_of(u).all_gather(whole, shard, communication_stream());
            }
        }
    };
    expect(train_zero<Broken>({.stage = 1}), false, true, true);
}

TEST(ZeroBreak, Zero2AddsAReductionTwice) {
    struct Broken : Zero2 {
        using Zero2::Zero2;
        void wait_for_gradients() override {
            Zero2::wait_for_gradients();
            if (first_) ops::add(grad_shards_[2], grad_shards_[2]);
        }
    };
    expect(train_zero<Broken>({.stage = 2}), false, true, true);
}

TEST(ZeroBreak, Zero2KeepsAGradientThatWasReduced) {
    struct Broken : Zero2 {
        using Zero2::Zero2;
        Tensor kept;
        void gradient_complete(Parameter& parameter, const Context& context) override {
            if (parameter.name == "lm_head.weight")
                kept = parameter.grad;  // keeps the whole unit's gradients
            Zero2::gradient_complete(parameter, context);
        }
    };
    expect(train_zero<Broken>({.stage = 2}), true, false, true);
}

TEST(ZeroBreak, Zero3UpdatesAStaleShard) {
    struct Broken : Zero3 {
        using Zero3::Zero3;
        void update(double lr, const Tensor& squared_norm) override {
            const Tensor stale =
                Tensor::empty(value_shards_[1].shape(), DType::fp32, Memory::workspace);
            ops::copy(stale, value_shards_[1]);
            Zero3::update(lr, squared_norm);
            if (world().rank() == 0)
                ops::copy(value_shards_[1], stale);  // the update went to a copy
        }
    };
    expect(train_zero<Broken>({.stage = 3}), false, true, true);
}

TEST(ZeroBreak, Zero3ComputesWithStaleParameters) {
    struct Broken : Zero3 {
        using Zero3::Zero3;
        Tensor stale;
        void before(const Unit& unit, Pass pass, const Context& context) override {
            Zero3::before(unit, pass, context);
            if (unit.name != "layers.1") return;
            const Tensor value = unit.parameters.back()->value;
            if (!stale)
                stale = Tensor::empty(value.shape(), value.dtype(), Memory::workspace),
                ops::copy(stale, value);
            ops::copy(value, stale);
        }
    };
    expect(train_zero<Broken>({.stage = 3}), false, true, true);
}

TEST(ZeroBreak, Zero3LeaksAGatheredBuffer) {
    struct Broken : Zero3 {
        using Zero3::Zero3;
        Tensor kept;
        void after(const Unit& unit, Pass pass, const Context& context) override {
            if (unit.name == "layers.0")
                kept = unit.parameters.front()->value;  // keeps the whole unit
            Zero3::after(unit, pass, context);
        }
    };
    expect(train_zero<Broken>({.stage = 3}), true, false, true);
}

// Parameters that are kept beyond the step's last micro-batch have their values from before the
// update.
TEST(ZeroBreak, Zero3KeepsParametersTooLong) {
    struct Broken : Zero3 {
        using Zero3::Zero3;
        void begin_micro_batch(int64_t micro_batch, bool) override {
            Zero3::begin_micro_batch(micro_batch, false);
        }
    };
    const Checks checks = train_zero<Broken>({.stage = 3, .keep_gathered = true});
    EXPECT_FALSE(checks.verified);
    EXPECT_FALSE(checks.communication);
}

// Without the option the same mistake has no effect.
TEST(ZeroBreak, Zero3KeepsNothingUnlessAsked) {
    struct Unaware : Zero3 {
        using Zero3::Zero3;
        void begin_micro_batch(int64_t micro_batch, bool) override {
            Zero3::begin_micro_batch(micro_batch, false);
        }
    };
    expect(train_zero<Unaware>({.stage = 3}), true, true, true);
}

// The model is one unit, but it is reduced as if its first unit were the whole model.
TEST(ZeroBreak, OneUnitIsReducedTooEarly) {
    struct Broken : Zero3 {
        using Zero3::Zero3;
        void gradient_complete(Parameter& parameter, const Context& context) override {
            Zero3::gradient_complete(parameter, context);
            if (parameter.name != "lm_head.weight") return;
            for (size_t more = 1; more < layout_[0].segments.size(); ++more)
                Zero3::gradient_complete(parameter, context);
        }
    };
    const Checks checks = train_zero<Broken>({.stage = 3, .cut = Cut::model});
    EXPECT_FALSE(checks.communication);
}

TEST(ZeroBreak, Zero3PrefetchesLessThanPredicted) {
    struct Broken : Zero3 {
        Broken(ParameterList& parameters, std::vector<const Unit*> units, const Mesh& mesh,
               const Options& options, ZeroOptions zero)
            : Zero3(parameters, std::move(units), mesh, options, (zero.prefetch = 0, zero)) {}
    };
    const Checks checks = train_zero<Broken>({.stage = 3, .prefetch = 2});
    EXPECT_TRUE(checks.verified);
    EXPECT_FALSE(checks.memory);
}

}  // namespace
}  // namespace ultrascale
