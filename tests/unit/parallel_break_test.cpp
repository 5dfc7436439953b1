// Breaks the techniques of 01_data_parallel and 02_zero on purpose, one at a time, and sees --verify, the memory check or the
// communication check fail, on any number of ranks (part of comm_test).
#include "01_data_parallel/bucket.h"
#include "01_data_parallel/hierarchical.h"
#include "01_data_parallel/naive.h"
#include "01_data_parallel/overlap.h"
#include "01_data_parallel/ring_sync.h"
#include "02_zero/predict.h"
#include "02_zero/stages.h"
#include "break_checks.h"
#include "data.h"
#include "threads.h"

namespace ultrascale {
namespace {

constexpr int64_t T = 24, B = 1, A = 2, steps = 3;  // sequence, micro-batch, micro-batches, steps
const LlamaConfig config{.layers = 2, .hidden = 32, .heads = 4, .kv_heads = 2, .head_dim = 8, .ffn = 48, .vocab = 256};
const StepShape shape{.config = config, .model = {}, .micro_batch = B, .seq = T};

const Communicator& world() { return Communicator::world(); }

// What both chapters' steps have in common, as seen from train() below.
struct Technique {
    Hooks* hooks;
    std::function<void()> begin_step = {}, update = {};
    std::function<void(int64_t m)> begin_micro_batch = {}, end_micro_batch = {};
    std::function<std::vector<TensorPart>()> gradients = {}, values = {};
    MemoryEstimate memory;
    PredictedCommunication communication;
};

// What a chapter's main does.
Checks train(const Options& options, Llama& model, const Technique& technique) {
    const TokenFile file("common/text.txt", config.vocab);
    const DataLoader loader(file, {.seq = T});
    const int64_t N = world().size(), G = A * B * N;
    Verifier verifier(options, config, loader, std::vector<int64_t>(size_t(steps), G));
    Report report("test", options, shape, steps);
    memory_reset_peak();
    world().barrier();
    communication_reset_counts();
    for (int64_t step = 0; step < steps; ++step) {
        technique.begin_step();
        const Tensor loss = Tensor::zeros({1}, DType::fp64, Memory::workspace);
        for (int64_t m = 0; m < A; ++m) {
            const Batch batch = to_device(loader.batch(step * G + (m * N + world().rank()) * B, B));
            Context context{.batch = batch, .loss_scale = float(1 / double(G * T)), .loss = loss, .micro_batch = int(m)};
            context.hooks = technique.hooks;
            Saved saved;
            technique.begin_micro_batch(m);
            model.forward({}, saved, context);
            model.backward({}, saved, context);
            technique.end_micro_batch(m);
        }
        verifier.gradient(step, technique.gradients());
        technique.update();
        world().all_reduce(loss);
        verifier.after_step(step, loss.to_host<double>()[0], technique.values());
    }
    return checks_of(verifier, report, technique.memory, technique.communication, steps);
}

Options options_of_runs() {
    Options options;
    options.optimizer.lr = 1e-3;
    return options;
}

template <class Sync, class... Arguments>
Checks train_data_parallel(Arguments... arguments) {
    use_threads(ranks_on_this_node());
    const Options options = options_of_runs();
    Llama model(config, shape.model);
    ParameterList& parameters = model.parameters();
    parameters.allocate_values(DType::fp32);
    parameters.allocate_grads(DType::fp32);
    parameters.initialize(options.seed);
    AdamW optimizer(parameters, options.optimizer);
    Sync sync(parameters, world(), arguments...);
    Technique technique{.hooks = &sync, .memory = estimate_memory(shape), .communication = sync.predicted()};
    technique.memory.peak_communication = sync.buffer_bytes();
    technique.communication.add(Collective::all_reduce, 1, 8);  // the loss
    technique.begin_step = [&] { parameters.clear_grads(); };
    technique.begin_micro_batch = [&](int64_t m) { sync.begin_micro_batch(m + 1 == A); };
    technique.end_micro_batch = [&](int64_t m) {
        if (m + 1 == A) sync.finish();
    };
    technique.update = [&] { optimizer.step(options.optimizer.lr, squared_gradient_norm(parameters)); };
    technique.gradients = [&] { return parameters.parts(&Parameter::grad); };
    technique.values = [&] { return parameters.parts(&Parameter::value); };
    return train(options, model, technique);
}

template <class Stage>
Checks train_zero(ZeroOptions zero_options) {
    use_threads(ranks_on_this_node());
    const Options options = options_of_runs();
    Llama model(config, shape.model);
    Stage zero(model, world(), options, zero_options);
    zero.start();
    Technique technique{.hooks = &zero,
                        .memory = predict_memory(zero.layout(), model.units(), zero_options, shape, A, world().rank()),
                        .communication = predict_communication(zero.layout(), model.units(), zero_options, shape, A)};
    technique.begin_step = [&] { zero.begin_step(); };
    technique.begin_micro_batch = [&](int64_t m) { zero.begin_micro_batch(m, m + 1 == A); };
    technique.end_micro_batch = [&](int64_t) { zero.end_micro_batch(); };
    technique.update = [&] {
        zero.update(options.optimizer.lr, zero.squared_norm());
        zero.finish();
    };
    technique.gradients = [&] { return zero.gradients(); };
    technique.values = [&] { return zero.values(); };
    return train(options, model, technique);
}

constexpr int64_t bucket_bytes = 20000;

TEST(ParallelBreak, UnchangedTechniquesPass) {
    expect(train_data_parallel<NaiveSync>(), true, true, true);
    expect(train_data_parallel<OverlapSync>(), true, true, true);
    expect(train_data_parallel<BucketSync>(bucket_bytes), true, true, true);
    expect(train_data_parallel<RingSync>(RingDirections::both), true, true, true);
    expect(train_data_parallel<HierarchicalSync>(bucket_bytes, world().size() % 2 == 0 ? 2 : 1), true, true, true);
    expect(train_zero<Zero0>({.stage = 0}), true, true, true);
    expect(train_zero<Zero1>({.stage = 1}), true, true, true);
    expect(train_zero<Zero2>({.stage = 2}), true, true, true);
    expect(train_zero<Zero3>({.stage = 3}), true, true, true);
}

TEST(ParallelBreak, TheLastBucketIsForgotten) {
    NEEDS_RANKS();
    struct Broken : BucketSync {
        using BucketSync::BucketSync;
        void gradient_complete(Parameter& parameter, const Context& context) override {
            if (bucket_of_.at(&parameter) + 1 < buckets_.size()) return BucketSync::gradient_complete(parameter, context);
            buckets_.back().missing = 0;
        }
    };
    expect(train_data_parallel<Broken>(bucket_bytes), false, true, false);
}

TEST(ParallelBreak, TheNodesNeverMeet) {
    NEEDS_RANKS();
    if (world().size() % 2 != 0) GTEST_SKIP() << "needs two nodes of as many ranks";
    struct Broken : HierarchicalSync {
        using HierarchicalSync::HierarchicalSync;
        void start(Bucket& bucket) override {  // summed inside the node only
            bucket.under_way.push_back(node.all_reduce(bucket.gradients, Reduce::sum, communication_stream()));
        }
        const Communicator node = world().split(world().rank() / (world().size() / 2), world().rank(), "half of the ranks");
    };
    expect(train_data_parallel<Broken>(bucket_bytes, world().size() / 2), false, true, false);
}

TEST(ParallelBreak, OneParameterIsNotSummed) {
    NEEDS_RANKS();
    for (const char* name : {"model.norm.weight", "model.layers.1.self_attn.k_proj.weight", "model.embed_tokens.weight"}) {
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

TEST(ParallelBreak, SynchronisedAfterEveryMicroBatch) {
    NEEDS_RANKS();
    struct Broken : OverlapSync {
        using OverlapSync::OverlapSync;
        void begin_micro_batch(bool) override {  // sums again what is a sum already
            finish();
            synchronize_ = true;
        }
    };
    expect(train_data_parallel<Broken>(), false, true, false);
}

// All of a unit's flat values.
Tensor whole_values(const FlatUnit& unit) { return unit.places.front().parameter->value.extended_view({unit.padded}); }

TEST(ParallelBreak, Zero1SkipsAnAllGather) {
    NEEDS_RANKS();
    struct Broken : Zero1 {
        using Zero1::Zero1;
        void update(double lr, const Tensor& squared_norm) override {
            for (size_t u = 0; u < layout_.size(); ++u) {
                optimizers_[u].step(lr, squared_norm);
                if (u != 1) gathers_[u] = ranks_.all_gather(whole_values(layout_[u]), value_shards_[u], communication_stream());
            }
        }
    };
    expect(train_zero<Broken>({.stage = 1}), false, true, false);
}

TEST(ParallelBreak, Zero1GathersFromTheWrongShard) {
    NEEDS_RANKS();
    struct Broken : Zero1 {
        using Zero1::Zero1;
        void update(double lr, const Tensor& squared_norm) override {
            for (size_t u = 0; u < layout_.size(); ++u) {
                optimizers_[u].step(lr, squared_norm);
                const Tensor whole = whole_values(layout_[u]);
                Tensor shard = value_shards_[u];
                if (u == 1 && ranks_.rank() == 0) {  // the neighbour's, from before the update
                    shard = Tensor::empty(shard.shape(), shard.dtype(), Memory::workspace);
                    ops::copy(shard, whole.slice(shard.numel(), 2 * shard.numel()));
                }
                gathers_[u] = ranks_.all_gather(whole, shard, communication_stream());
            }
        }
    };
    expect(train_zero<Broken>({.stage = 1}), false, true, true);
}

TEST(ParallelBreak, Zero2AddsAReductionTwice) {
    struct Broken : Zero2 {
        using Zero2::Zero2;
        void end_micro_batch() override {
            Zero2::end_micro_batch();
            if (first_) ops::add(grad_shards_[2], grad_shards_[2]);
        }
    };
    expect(train_zero<Broken>({.stage = 2}), false, true, true);
}

TEST(ParallelBreak, Zero2KeepsAGradientThatWasReduced) {
    struct Broken : Zero2 {
        using Zero2::Zero2;
        Tensor kept;
        void gradient_complete(Parameter& parameter, const Context& context) override {
            if (parameter.name == "lm_head.weight") kept = parameter.grad;  // and with it the whole unit's
            Zero2::gradient_complete(parameter, context);
        }
    };
    expect(train_zero<Broken>({.stage = 2}), true, false, true);
}

TEST(ParallelBreak, Zero3UpdatesAStaleShard) {
    struct Broken : Zero3 {
        using Zero3::Zero3;
        void update(double lr, const Tensor& squared_norm) override {
            const Tensor stale = Tensor::empty(value_shards_[1].shape(), DType::fp32, Memory::workspace);
            ops::copy(stale, value_shards_[1]);
            Zero3::update(lr, squared_norm);
            if (ranks_.rank() == 0) ops::copy(value_shards_[1], stale);  // the update went to a copy
        }
    };
    expect(train_zero<Broken>({.stage = 3}), false, true, true);
}

TEST(ParallelBreak, Zero3ComputesWithStaleParameters) {
    struct Broken : Zero3 {
        using Zero3::Zero3;
        Tensor stale;
        void before(const Unit& unit, Pass pass, const Context& context) override {
            Zero3::before(unit, pass, context);
            if (unit.name != "layers.1") return;
            const Tensor value = unit.parameters.back()->value;
            if (!stale) stale = Tensor::empty(value.shape(), value.dtype(), Memory::workspace), ops::copy(stale, value);
            ops::copy(value, stale);
        }
    };
    expect(train_zero<Broken>({.stage = 3}), false, true, true);
}

TEST(ParallelBreak, Zero3LeaksAGatheredBuffer) {
    struct Broken : Zero3 {
        using Zero3::Zero3;
        Tensor kept;
        void after(const Unit& unit, Pass pass, const Context& context) override {
            if (unit.name == "layers.0") kept = unit.parameters.front()->value;  // and with it the whole unit
            Zero3::after(unit, pass, context);
        }
    };
    expect(train_zero<Broken>({.stage = 3}), true, false, true);
}

TEST(ParallelBreak, Zero3PrefetchesLessThanPredicted) {
    struct Broken : Zero3 {
        Broken(Llama& model, const Communicator& ranks, const Options& options, ZeroOptions zero)
            : Zero3(model, ranks, options, (zero.prefetch = 0, zero)) {}
    };
    const Checks checks = train_zero<Broken>({.stage = 3, .prefetch = 2});
    EXPECT_TRUE(checks.verified);
    EXPECT_FALSE(checks.memory);
}

}  // namespace
}  // namespace ultrascale
