// Tests Run, which does everything around a training step, with a step that belongs to no chapter.
#include "train/run.h"

#include <gtest/gtest.h>

#include "tests/test_files.h"
#include "tests/test_util.h"
#include "train/gradients.h"

namespace ultrascale {
namespace {

const LlamaConfig config{
    .layers = 1, .hidden = 16, .heads = 2, .kv_heads = 1, .head_dim = 8, .ffn = 24, .vocab = 256};

// A model and a state without a gradient, to which every step adds.
struct Training {
    explicit Training(const Options& given)
        : options(given),
          run("test", options, shape, {.micro_batch = 2}) {  // keeps a reference to the options
        model.parameters().allocate_values(DType::fp32);
        model.parameters().allocate_grads(DType::fp32);
        run.load(optimizer.start());
    }
    void train(Step& step) {
        ParameterList& parameters = model.parameters();
        parameters.begin_gradients(step.accumulated);
        for (MicroBatch micro_batch : step.micro_batches()) {
            Saved saved;
            model.forward({}, saved, micro_batch);
            model.backward({}, saved, micro_batch);
        }
        const Tensor squared = optimizer.squared_norm();
        optimizer.step(step.learning_rate, squared);
        ops::add(steps_seen, ones);
        losses.push_back(scalar(step.loss));
        step.finish(squared);
    }
    bool train_all() {
        testing::internal::CaptureStdout();
        run.start(training_setup(model, optimizer));
        while (Step* step = run.next()) train(*step);
        const bool ok = run.finish([](Report&) { return true; });
        testing::internal::GetCapturedStdout();
        return ok;
    }

    Options options;
    StepShape shape{.config = config, .model = {}, .micro_batch = 2, .seq = 16};
    Run run;
    Llama model{config, {}};
    const Tensor steps_seen = model.parameters().add_buffer("steps_seen", 3);
    const Tensor ones = Tensor::from_host<float>(std::vector<float>(3, 1), {3}, Memory::workspace);
    PlainUpdater optimizer{model.parameters(), options};
    std::vector<double> losses;
};

Options options_of(int64_t steps, bool verify = true) {
    Options options;
    options.steps = steps, options.micro_batch = 2, options.grad_accum = 2, options.verify = verify;
    return options;
}

TEST(Run, TrainsAndVerifies) {
    Training right(options_of(4));
    EXPECT_TRUE(right.train_all());
    EXPECT_EQ(right.run.steps_done(), 4);
    EXPECT_EQ(right.losses.size(), 4u);
}

TEST(Run, TwoStepsMayBeUnderWayButNotThree) {
    Training two(options_of(4, false));
    testing::internal::CaptureStdout();
    two.run.start(training_setup(two.model, two.optimizer));
    Step* first = two.run.next();
    Step* second = two.run.next();
    EXPECT_EQ(second->number, first->number + 1);
    EXPECT_THROW(two.run.next(), std::logic_error);
    two.train(*first);
    two.train(*second);
    EXPECT_EQ(two.run.steps_done(), 2);
    Step* third = two.run.next();
    EXPECT_EQ(third->number, 3);
    EXPECT_THROW(two.run.finish([](Report&) { return true; }), std::logic_error);
    testing::internal::GetCapturedStdout();
    Training one_by_one(options_of(2, false));
    EXPECT_TRUE(one_by_one.train_all());
    EXPECT_EQ(two.losses, one_by_one.losses);  // each took the samples of its own step
}

TEST(Run, ABufferIsSavedAndResumed) {
    test::TempDir dir;
    Options whole = options_of(5), begin = options_of(3), rest = options_of(2);
    begin.save = dir / "saved", rest.load = dir / "saved";
    Training at_once(whole), first(begin);
    EXPECT_TRUE(at_once.train_all());
    EXPECT_TRUE(first.train_all());
    Training second(rest);
    EXPECT_EQ(second.steps_seen.to_host<float>(), std::vector<float>(3, 3));
    EXPECT_TRUE(second.train_all());
    EXPECT_EQ(second.steps_seen.to_host<float>(), std::vector<float>(3, 5));
    EXPECT_EQ(second.losses.back(), at_once.losses.back());
}

// Loss and norm are measured before the update that spoils a weight, so only saving would notice.
TEST(Run, SavesNoWeightsThatAreNotFinite) {
    const test::TempDir dir;
    Options options;
    options.steps = 3, options.save = dir / "saved", options.save_every = 1, options.verify = false;
    Training training(options);
    testing::internal::CaptureStdout();
    training.run.start(training_setup(training.model, training.optimizer));
    training.train(*training.run.next());
    Step* const second = training.run.next();
    ops::fill((*training.model.parameters().begin())->value, INFINITY);
    second->finish(1, 1, 0);
    try {
        training.run.next();
        ADD_FAILURE() << "went on";
    } catch (const UserError& error) {
        EXPECT_EQ(error.exit_code, Exit::not_finite);
        EXPECT_EQ(error.what(),
                  "step 2: not finite: weights; training stops; the last finite checkpoint: " +
                      (dir / "saved/checkpoint-1"));
    }
    testing::internal::GetCapturedStdout();
    EXPECT_FALSE(std::filesystem::exists(dir / "saved/checkpoint-2"));
}

// A step that fp16 skips has a gradient that is not finite, and so may the next step.
TEST(Run, GoesOnAfterASkippedStep) {
    Options options;
    options.steps = 2, options.verify = false;
    Training training(options);
    testing::internal::CaptureStdout();
    training.run.start(training_setup(training.model, training.optimizer));
    Step* const first = training.run.next();
    first->skipped = true;
    first->finish(INFINITY, NAN, 0);
    Step* const second = training.run.next();
    ASSERT_NE(second, nullptr);
    second->finish(1, NAN, 0);
    EXPECT_EQ(second->not_finite(), "gradient norm nan");
    EXPECT_THROW(training.run.next(), UserError);
    testing::internal::GetCapturedStdout();
}

}  // namespace
}  // namespace ultrascale
