// Breaks 09_5d_parallel on purpose, one thing at a time, where two techniques meet, and expects
// --verify, the memory check or the communication check to find it, on any number of ranks (part of
// comm_test).
#include "09_5d_parallel/lab/chosen.h"
#include "09_5d_parallel/lab/predict.h"
#include "break_checks.h"
#include "core/threads.h"
#include "train/data.h"

// Skips a test on a number of ranks that an axis of two does not divide.
#define NEEDS_PAIRS() \
    if (Communicator::world().size() % 2 != 0) GTEST_SKIP() << "the ranks do not make pairs"

namespace ultrascale {
using namespace ultrascale::context_parallel;
using namespace ultrascale::data_parallel;
using namespace ultrascale::expert_parallel;
using namespace ultrascale::five_d;
using namespace ultrascale::mixed_precision;
using namespace ultrascale::pipeline;
using namespace ultrascale::tensor_parallel;
using namespace ultrascale::zero;
namespace {

constexpr int64_t T = 16, B = 1, steps = 3;
const Communicator& world() { return Communicator::world(); }

const LlamaConfig config{.layers = 4,
                         .hidden = 24,
                         .heads = 4,
                         .kv_heads = 1,  // ranks of tp hold copies
                         .head_dim = 6,
                         .ffn = 40,
                         .vocab = 257,
                         .tied = true};

// What is done differently from the chapter's main.
struct Breaks {
    // After the parameters are described; sums and norm read the description later.
    std::function<void(Parameter&)> describe = [](Parameter&) {};
    std::function<void(Techniques&)> predicted = [](Techniques&) {};  // other techniques than run
    bool load_kernels = false;  // as on GPUs, before the first step
    bool own_samples = false;   // ranks that share sequences take different ones
};

Checks train(const Techniques& techniques, const Breaks& breaks = {}) {
    use_threads(ranks_on_this_node());
    Options options;
    options.optimizer.clip = 0.1;
    options.grad_accum = 4;
    const StepShape shape{.config = config, .model = {}, .micro_batch = B, .seq = T};
    const TokenFile file("common/text.txt", config.vocab);
    const DataLoader loader(file, {.seq = T});
    Composition all(options, shape, techniques);
    Updater& updates = *all.updates;
    for (const auto& p : all.own.parameters()) breaks.describe(*p);
    const TrainingState start = updates.start();
    const Prediction predicted = [&] {
        Techniques others = techniques;
        breaks.predicted(others);
        // Not to outlive the prediction: on GPUs a pipeline's messages have mailboxes.
        Composition other_composition(options, shape, others);
        return predict(other_composition);
    }();
    DataSlice slice = all.data_slice();
    if (breaks.own_samples) slice.count = world().size(), slice.replica = world().rank();
    const int64_t sequences = B * options.grad_accum * slice.count;
    testing::internal::CaptureStdout();
    Verifier verifier(options, config, loader, std::vector<int64_t>(size_t(steps), sequences), {});
    testing::internal::GetCapturedStdout();
    Report report("test", options, shape, steps);
    memory_reset_peak();
    world().barrier();
    communication_reset_counts();
    for (int64_t s = 0; s < steps; ++s) {
        Step step(loader, slice, s + 1, s * sequences, sequences);
        updates.begin_step(step.accumulated);
        if (breaks.load_kernels && s == 0)
            load_kernels(all.own, all.schedule, step, all.messages.shape(), all.messages.dtype());
        all.executor.run(step, &updates);
        updates.end_all_micro_batches();
        const Tensor squared_norm = updates.squared_norm();
        if (s == 0) verifier.gradient(updates.gradients());
        updates.step(options.optimizer.lr, squared_norm);
        step.sum_loss(all.loss_group());
        const double loss = scalar(step.loss);
        updates.finish();
        verifier.after_step(s, loss, updates.values());
    }
    return checks_of(verifier, report, predicted, steps);
}

// Two stages; or, of one rank each, two parts of a layer.
Techniques pipeline(int zero) {
    Techniques t{.zero = {.stage = zero}};
    t.axes.pp = 2;
    complete(t, world().size());
    return t;
}
Techniques parts_of_layers(int zero) {
    Techniques t{.zero = {.stage = zero}};
    t.axes.tp = 2;
    complete(t, world().size());
    t.tensor.sequence_parallel = true;
    return t;
}
Techniques parts_of_sequences(int zero) {
    Techniques t{.zero = {.stage = zero}};
    t.axes.cp = 2;
    complete(t, world().size());
    return t;
}

TEST(CompositionBreak, UnchangedLayoutsPass) {
    NEEDS_PAIRS();
    for (int zero : {0, 1}) {
        expect(train(pipeline(zero)), true, true, true);
        expect(train(parts_of_layers(zero)), true, true, true);
        expect(train(parts_of_sequences(zero)), true, true, true);
    }
}

// What runs for practice leaves nothing behind, whoever owns the parameters' storage.
TEST(CompositionBreak, ARehearsalChangesNothing) {
    NEEDS_PAIRS();
    for (int zero : {0, 1, 2, 3}) {
        Techniques t = pipeline(zero);
        t.schedule = "zb-h1";
        expect(train(t, {.load_kernels = true}), true, true, true);
    }
    expect(train(parts_of_layers(0), {.load_kernels = true}), true, true, true);
}

TEST(CompositionBreak, ASumBesidesTheDataAxesIsMissing) {
    NEEDS_PAIRS();
    const auto without = [](const std::string& group) {
        return Breaks{.describe = [group](Parameter& p) { std::erase(p.replica_groups, group); }};
    };
    for (int zero : {0, 1}) {
        expect(train(pipeline(zero), without("tied")), false, true, false);
        expect(train(parts_of_layers(zero), without("tp")), false, true, false);
        expect(train(parts_of_layers(zero), without("kv")), false, true, false);
    }
}

TEST(CompositionBreak, RanksThatShareSequencesTakeDifferentOnes) {
    NEEDS_PAIRS();
    EXPECT_FALSE(train(parts_of_sequences(0), {.own_samples = true}).verified);
}

TEST(CompositionBreak, WhatIsPredictedIsNotWhatRuns) {
    NEEDS_PAIRS();
    expect(train(pipeline(1), {.predicted = [](Techniques& t) { t.schedule = "afab"; }}), true,
           false, true);
    expect(train(parts_of_layers(0),
                 {.predicted = [](Techniques& t) { t.tensor.sequence_parallel = false; }}),
           true, false, false);
}

}  // namespace
}  // namespace ultrascale
