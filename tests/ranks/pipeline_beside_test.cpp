// 05_pipeline combined with other techniques: two stages of one model run in 1F1B, by the plain
// loop, and in zero-bubble order, by the executor; with the buckets of 01_data_parallel and the
// stages of 02_zero, with a tied weight that both stages hold, and with an update that is confirmed
// in the next step.
#include <gtest/gtest.h>

#include "01_data_parallel/lab/predict.h"
#include "02_zero/9_stages.h"
#include "05_pipeline/lab/predict.h"
#include "core/threads.h"
#include "train/gradients.h"
#include "train/run.h"

namespace ultrascale::pipeline {
using namespace ultrascale::data_parallel;
using namespace ultrascale::zero;
namespace {

constexpr int64_t T = 16, B = 1, A = 4, steps = 4;
const LlamaConfig config{.layers = 4,
                         .hidden = 32,
                         .heads = 4,
                         .kv_heads = 2,
                         .head_dim = 8,
                         .ffn = 48,
                         .vocab = 256,
                         .tied = true};

// The mistakes that a run can make.
struct Breaks {
    bool forget_tied = false, forget_layer = false, count_tied_twice = false;
};

// The part that both runs below share.
struct Setting {
    Setting(bool zero_bubble, Breaks breaks, double clip)
        : pipeline(shape,
                   zero_bubble ? make_schedule("zb-h1", 2, int(A)) : plain_schedule(2, int(A)),
                   stages_of({2, 2}), {.plain = !zero_bubble}) {
        use_threads(ranks_on_this_node());
        options.optimizer.clip = clip;
        options.steps = steps;
        options.micro_batch = B, options.grad_accum = A;
        options.verify = true;
        for (const auto& p : parameters()) {
            if (breaks.forget_tied) p->replica_groups.clear();
            if (breaks.forget_layer && p->name.ends_with("layers.2.mlp.up_proj.weight"))
                p->split_over = {"dp"};  // so that its gradient is not summed
        }
    }
    ParameterList& parameters() { return pipeline.parameters(); }
    Run make_run() const {
        return Run(
            "beside", options, shape,
            {.micro_batch = B, .count = pipeline.dp().size(), .replica = pipeline.dp().rank()});
    }

    const Communicator& world = Communicator::world();
    Options options;
    StepShape shape{.config = config, .model = {}, .micro_batch = B, .seq = T};
    Pipeline pipeline;
    const Mesh& mesh = pipeline.mesh;
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
    run.start({.updater = &optimizer});
    while (Step* step = run.next()) {
        parameters.begin_gradients(A);
        s.pipeline.run(*step, &sync);
        sync.finish();
        const Tensor squared = optimizer.squared_norm();
        optimizer.step(step->learning_rate, squared);
        step->sum_loss(s.world);
        step->finish(squared);
    }
    Prediction step_prediction;
    add_sums(step_prediction, sync, parameters, s.mesh, DType::fp32);
    const int rank = s.pipeline.pp().rank();
    const int64_t bytes = std::llround(message_bytes(s.shape));
    if (zero_bubble)
        add_messages(step_prediction.communication, s.pipeline.plan, rank, bytes);
    else
        add_plain_messages(step_prediction.communication, 2, rank, A, bytes);
    const Parameter& tied = *parameters.find("model.embed_tokens.weight");
    step_prediction.communication.add(s.mesh.group("tied"), Collective::all_reduce, 1,
                                      tied.grad.bytes());
    step_prediction.communication.add_scalar_sum(s.mesh.norm_group());
    step_prediction.communication.add_scalar_sum(s.world);  // the loss
    return checks_of(run, step_prediction.communication);
}

template <class Stage>
bool train_with_zero(bool zero_bubble, Breaks breaks = {}) {
    testing::internal::CaptureStdout();
    Setting s(zero_bubble, breaks, 0.5);
    const std::vector<const Unit*> units = s.pipeline.own.units();
    Stage zero(s.parameters(), units, s.mesh, s.options, {});
    Run run = s.make_run();
    run.load(zero.start());
    run.start({.updater = &zero});
    while (Step* step = run.next()) {
        zero.begin_step(A);
        s.pipeline.run(*step, &zero);
        zero.end_all_micro_batches();
        const Tensor squared = zero.squared_norm();  // the copies of the tied weight have met
        zero.step(step->learning_rate, squared);
        step->sum_loss(s.world);
        step->finish(squared);
    }
    const bool verified = run.finish([](Report&) { return true; });
    testing::internal::GetCapturedStdout();
    return verified;
}

// Keeps copies of some tensors and restores them.
struct Kept {
    std::vector<Tensor> originals, copies;
    void keep(const std::vector<TensorPart>& parts) {
        for (const TensorPart& part : parts) {
            originals.push_back(part.tensor);
            copies.push_back(
                Tensor::empty(part.tensor.shape(), part.tensor.dtype(), Memory::workspace));
            ops::copy(copies.back(), part.tensor);
        }
    }
    void restore() const {
        for (size_t i = 0; i < originals.size(); ++i) ops::copy(originals[i], copies[i]);
    }
};

// Each stage updates with the norm of its own gradient, and learns the global norm only in the next
// step. If that norm clips, the stage goes back and updates again. Returns how often this happened,
// or -1 if the result differs from one device's.
int train_confirmed_later(double clip, bool never_confirm = false) {
    testing::internal::CaptureStdout();
    Setting s(true, {}, clip);
    ParameterList& parameters = s.parameters();
    parameters.allocate_values(DType::fp32);
    parameters.allocate_grads(DType::fp32);
    struct Unconfirmed : PlainUpdater {
        using PlainUpdater::PlainUpdater, PlainUpdater::own_squared_norm, PlainUpdater::optimizer_;
    };
    Unconfirmed optimizer(parameters, s.options, &s.mesh);
    Run run = s.make_run();
    run.load(optimizer.start());
    run.start({.updater = &optimizer});
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
            optimizer.optimizer_->set_steps_done(optimizer.optimizer_->steps_done() - 1);
            optimizer.step(former->learning_rate, whole);
            ++repeated;
        }
        former->finish(whole);
    };
    while (Step* step = run.next()) {
        if (former) confirm();
        parameters.begin_gradients(A);
        s.pipeline.run(*step);
        sum_gradients(parameters, s.mesh);
        own = optimizer.own_squared_norm();
        step->sum_loss(s.world);
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

class PipelineBeside : public testing::Test {
protected:
    void SetUp() override {
        if (Communicator::world().size() % 2 != 0) GTEST_SKIP() << "two stages of as many ranks";
    }
};

TEST_F(PipelineBeside, BucketsInEveryOrder) {
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

// While several micro-batches are in flight, ZeRO stages 2 and 3 reduce and gather in between, with
// the same sums.
TEST_F(PipelineBeside, ZeroInEveryOrder) {
    for (const bool zero_bubble : {false, true}) {
        EXPECT_TRUE(train_with_zero<Zero0>(zero_bubble));
        EXPECT_TRUE(train_with_zero<Zero1>(zero_bubble));
        EXPECT_TRUE(train_with_zero<Zero2>(zero_bubble));
        EXPECT_TRUE(train_with_zero<Zero3>(zero_bubble));
        EXPECT_FALSE(train_with_zero<Zero1>(zero_bubble, {.forget_tied = true}));
    }
}

TEST_F(PipelineBeside, AnUpdateIsConfirmedInTheNextStep) {
    EXPECT_EQ(train_confirmed_later(100), 0);           // never clips
    EXPECT_EQ(train_confirmed_later(0.5), int(steps));  // always does
    EXPECT_EQ(train_confirmed_later(0.5, true), -1);
}

}  // namespace
}  // namespace ultrascale::pipeline
