// A sketch of chapter 05 on what common/ has, kept as a test: two stages of one model in 1F1B and
// in zero-bubble order, beside data parallelism by buckets and by ZeRO, with a tied weight that
// both stages hold, and with an update that is confirmed in the next step.
#include "sketch_pipeline.h"

#include <gtest/gtest.h>

#include "01_data_parallel/lab/predict.h"
#include "02_zero/9_stages.h"
#include "core/threads.h"

namespace ultrascale::pipeline {
using namespace ultrascale::data_parallel;
using namespace ultrascale::zero;
namespace {

// What is done wrong.
struct Breaks {
    bool forget_tied = false, forget_layer = false, count_tied_twice = false;
};

// What both runs below have in common.
struct Setting {
    Setting(bool zero_bubble, Breaks breaks, double clip) {
        use_threads(ranks_on_this_node());
        options.optimizer.clip = clip;
        options.steps = steps;
        options.micro_batch = B, options.grad_accum = A;
        options.verify = true;
        mesh.add_copies(mesh.group("pp").split(0, stage, "tied"));
        for (const auto& p : parameters()) {
            if (breaks.forget_tied) p->replica_groups.clear();
            if (breaks.forget_layer && p->name.ends_with("layers.2.mlp.up_proj.weight"))
                p->split_over = {"dp"};  // so that its gradient is not summed
        }
        actions = schedule(zero_bubble, stage);
    }
    ParameterList& parameters() { return model.parameters(); }
    Run make_run() const {
        return Run("sketch", options, shape,
                   {.micro_batch = B, .count = dp.size(), .replica = dp.rank()});
    }

    const Communicator& world = Communicator::world();
    Options options;
    StepShape shape{.config = config, .model = {}, .micro_batch = B, .seq = T};
    Mesh mesh{world, {{"pp", 2}, {"dp", world.size() / 2}}};
    const Communicator& dp = mesh.group("dp");
    const int stage = mesh.group("pp").rank();
    Llama model{config,
                {},
                default_factories(config, {}),
                {2 * stage, 2 * stage + 2, stage == 0, stage == 1}};
    Stages stages{mesh.group("pp")};
    std::vector<Action> actions;
};

struct Checks {
    bool verified, sent_as_predicted;
};
Checks checks_of(Run& run, const PredictedCommunication& step_communication) {
    const bool sent =
        on_all_ranks(Communicator::world(),
                     counted_as_predicted(step_communication, steps, communication_counts()));
    const bool verified = run.finish([](Report&) { return true; });
    testing::internal::GetCapturedStdout();
    return {verified, sent};
}

Checks train_with_buckets(bool zero_bubble, Breaks breaks = {}) {
    testing::internal::CaptureStdout();
    Setting s(zero_bubble, breaks, 0.5);
    ParameterList& parameters = s.parameters();
    parameters.allocate_values(DType::fp32);
    parameters.allocate_grads(DType::fp32);
    PlainUpdater optimizer(parameters, s.options, &s.mesh);
    Run run = s.make_run();
    run.load(optimizer.start());
    BucketSync sync(parameters, s.mesh, 5000);
    run.start(training_setup(s.model, optimizer));
    while (Step* step = run.next()) {
        parameters.begin_gradients(A);
        s.stages.run(s.model, *step, &sync, s.actions);
        sync.finish();
        const Tensor squared = optimizer.squared_norm();
        optimizer.step(step->learning_rate, squared);
        s.world.all_reduce(step->loss);
        step->finish(squared);
    }
    Prediction step_prediction;
    add_sums(step_prediction, sync, parameters, s.mesh, DType::fp32);
    s.stages.add_to(step_prediction.communication);
    const Parameter& tied = *parameters.find("model.embed_tokens.weight");
    step_prediction.communication.add(s.mesh.group("tied"), Collective::all_reduce, 1,
                                      tied.grad.bytes());
    step_prediction.communication.add(s.mesh.norm_group(), Collective::all_reduce, 1, 8);
    step_prediction.communication.add(s.world, Collective::all_reduce, 1, 8);  // the loss
    return checks_of(run, step_prediction.communication);
}

template <class Stage>
bool train_with_zero(bool zero_bubble, Breaks breaks = {}) {
    testing::internal::CaptureStdout();
    Setting s(zero_bubble, breaks, 0.5);
    std::vector<const Unit*> units;
    for (const Unit& unit : s.model.units()) units.push_back(&unit);
    Stage zero(s.parameters(), units, s.mesh, s.options, {});
    Run run = s.make_run();
    run.load(zero.start());
    run.start({.updater = &zero});
    while (Step* step = run.next()) {
        zero.begin_step(A);
        s.stages.run(s.model, *step, &zero, s.actions);
        zero.end_micro_batch();
        const Tensor squared = zero.squared_norm();  // the copies of the tied weight have met
        zero.step(step->learning_rate, squared);
        s.world.all_reduce(step->loss);
        step->finish(squared);
    }
    const bool verified = run.finish([](Report&) { return true; });
    testing::internal::GetCapturedStdout();
    return verified;
}

// Copies of some tensors, to return to.
struct Kept {
    std::vector<Tensor> places, copies;
    void keep(const std::vector<TensorPart>& parts) {
        for (const TensorPart& part : parts) {
            places.push_back(part.tensor);
            copies.push_back(
                Tensor::empty(part.tensor.shape(), part.tensor.dtype(), Memory::workspace));
            ops::copy(copies.back(), part.tensor);
        }
    }
    void restore() const {
        for (size_t i = 0; i < places.size(); ++i) ops::copy(places[i], copies[i]);
    }
};

// Each stage updates with the norm of its own gradient, and learns the global norm only in the next
// step. If that norm clips, it goes back and updates again. Returns how often, or -1 if the result
// differs from one device's.
int train_confirmed_later(double clip, bool never_confirm = false) {
    testing::internal::CaptureStdout();
    Setting s(true, {}, clip);
    ParameterList& parameters = s.parameters();
    parameters.allocate_values(DType::fp32);
    parameters.allocate_grads(DType::fp32);
    struct Unconfirmed : PlainUpdater {
        using PlainUpdater::PlainUpdater, PlainUpdater::own_squared_norm, PlainUpdater::adamw_;
    };
    Unconfirmed optimizer(parameters, s.options, &s.mesh);
    Run run = s.make_run();
    run.load(optimizer.start());
    run.start(training_setup(s.model, optimizer));
    int repeated = 0;
    Step* former = nullptr;
    Kept before;
    Tensor own;  // squared norm of this stage's gradient
    const auto confirm = [&] {
        const Tensor whole = Tensor::zeros({1}, DType::fp64, Memory::workspace);
        ops::copy(whole, own);
        s.mesh.norm_group().all_reduce(whole);
        if (clip > 0 && scalar(whole) > clip * clip && !never_confirm) {
            before.restore();
            optimizer.adamw_->set_steps_done(optimizer.adamw_->steps_done() - 1);
            optimizer.step(former->learning_rate, whole);
            ++repeated;
        }
        former->finish(whole);
    };
    while (Step* step = run.next()) {
        if (former) confirm();
        parameters.begin_gradients(A);
        s.stages.run(s.model, *step, nullptr, s.actions);
        sum_gradients(parameters, s.mesh);
        own = optimizer.own_squared_norm();
        s.world.all_reduce(step->loss);
        before = {};
        before.keep(parameters.parts(&Parameter::value));
        before.keep(optimizer.states());
        optimizer.step(step->learning_rate, own);
        former = step;
    }
    confirm();
    const bool verified = run.finish([](Report&) { return true; });
    testing::internal::GetCapturedStdout();
    return verified ? repeated : -1;
}

class SketchPipeline : public testing::Test {
protected:
    void SetUp() override {
        if (Communicator::world().size() % 2 != 0) GTEST_SKIP() << "two stages of as many ranks";
    }
};

TEST_F(SketchPipeline, BucketsInEveryOrder) {
    for (const bool zero_bubble : {false, true}) {
        const Checks checks = train_with_buckets(zero_bubble);
        EXPECT_TRUE(checks.verified);
        EXPECT_TRUE(checks.sent_as_predicted);
        EXPECT_FALSE(train_with_buckets(zero_bubble, {.forget_tied = true}).verified);
    }
    if (Communicator::world().size() > 2) {
        EXPECT_FALSE(train_with_buckets(true, {.forget_layer = true}).verified);
    }
}

// Several micro-batches are in flight: stages 2 and 3 reduce and gather in between, with the same
// sums.
TEST_F(SketchPipeline, ZeroInEveryOrder) {
    for (const bool zero_bubble : {false, true}) {
        EXPECT_TRUE(train_with_zero<Zero0>(zero_bubble));
        EXPECT_TRUE(train_with_zero<Zero1>(zero_bubble));
        EXPECT_TRUE(train_with_zero<Zero2>(zero_bubble));
        EXPECT_TRUE(train_with_zero<Zero3>(zero_bubble));
        EXPECT_FALSE(train_with_zero<Zero1>(zero_bubble, {.forget_tied = true}));
    }
}

TEST_F(SketchPipeline, AnUpdateIsConfirmedInTheNextStep) {
    EXPECT_EQ(train_confirmed_later(100), 0);           // never clips
    EXPECT_EQ(train_confirmed_later(0.5), int(steps));  // always does
    EXPECT_EQ(train_confirmed_later(0.5, true), -1);
}

}  // namespace
}  // namespace ultrascale::pipeline
