// Breaks the techniques of 03_tensor_parallel on purpose, one at a time, and expects --verify, the
// memory check or the communication check to fail, on any number of ranks (part of comm_test).
#include "03_tensor_parallel/8_tensor_parallel.h"
#include "03_tensor_parallel/lab/predict.h"
#include "break_checks.h"
#include "core/threads.h"
#include "train/data.h"
#include "train/gradients.h"
#include "train/updater.h"

namespace ultrascale {
using namespace ultrascale::tensor_parallel;
namespace {

constexpr int64_t T = 48, B = 1, steps = 3;
// 1, 2, 3, 4 and 8 ranks can split this model; all ranks hold a copy of the one key-value head.
const LlamaConfig config{
    .layers = 2, .hidden = 32, .heads = 24, .kv_heads = 1, .head_dim = 4, .ffn = 48, .vocab = 257};

// clang-format off
const LlamaConfig latent_config{
    .layers = 2, .hidden = 32, .heads = 24, .kv_heads = 24, .head_dim = 4, .ffn = 48, .vocab = 257,
    .latent = {.q_rank = 6, .kv_rank = 5, .nope_dim = 2, .rope_dim = 2, .v_dim = 3}};
// clang-format on

// The ways in which a broken run differs from the chapter's main.
struct Breaks {
    std::function<void(Parameter&, int rank)> parameter = [](Parameter&, int) {
    };  // its description, before it has storage
    std::function<void(ModuleFactories&)> parts = [](ModuleFactories&) {};  // other parts
    bool sum_copies = true, count_copies = false, clip_with_own_norm = false;
    TensorOptions predicted;  // options of the prediction
    // Correct, but other paths through the parts: the weights' gradients after all of backward; the
    // loss in chunks of tokens; lines as documents, whose last targets are ignored; dropout.
    bool split_backward = false;
    int64_t loss_chunk = 0;
    bool documents = false;
    double dropout = 0;
    LlamaConfig model = config;
};

TensorOptions options_of(bool sequence_parallel) {
    return {.tp = Communicator::world().size(), .sequence_parallel = sequence_parallel};
}
TensorOptions plain_options() { return {.tp = Communicator::world().size(), .plain = true}; }

template <class Region>
Checks train(const TensorOptions& tensor, Breaks breaks = {}) {
    use_threads(ranks_on_this_node());
    const LlamaConfig& config = breaks.model;
    const Communicator& world = Communicator::world();
    Mesh mesh(world, {{"dp", 1}, {"tp", tensor.tp}});
    Options options;
    options.optimizer.lr = 1e-3;
    options.optimizer.clip = 0.1;
    const TokenFile file("common/text.txt", config.vocab);
    DataOptions data{.seq = T};
    if (breaks.documents) data.document_token = '\n';
    const DataLoader loader(file, data);
    const TensorParallel parallel(config, tensor, mesh,
                                  std::make_unique<Region>(mesh.group("tp"), tensor));
    const StepShape shape{
        .config = config,
        .model = {.loss_chunk = breaks.loss_chunk, .dropout = breaks.dropout, .seed = options.seed},
        .micro_batch = B,
        .seq = T};
    ModuleFactories factories = parallel.factories(shape.model);
    breaks.parts(factories);
    Llama model(config, shape.model, factories, Stage::whole(config));
    ParameterList& parameters = model.parameters();
    for (const auto& p : parameters) breaks.parameter(*p, world.rank());
    parameters.allocate_values(DType::fp32);
    parameters.allocate_grads(DType::fp32);
    PlainUpdater optimizer(parameters, options, &mesh);
    optimizer.start();
    testing::internal::CaptureStdout();
    Verifier verifier(options, config, loader, std::vector<int64_t>(size_t(steps), B),
                      [&](ModuleFactories& factories) {
                          add_dropout(factories, {float(breaks.dropout), options.seed});
                      });
    testing::internal::GetCapturedStdout();
    Report report("test", options, shape, steps);
    memory_reset_peak();
    world.barrier();
    communication_reset_counts();
    for (int64_t step = 0; step < steps; ++step) {
        parameters.begin_gradients();
        const HostBatch batch = loader.batch(step * B, B);
        Context context{.batch = to_device(batch),
                        .token_weight = float(1 / double(batch.counted_targets))};
        context.loss = Tensor::zeros({1}, DType::fp64, Memory::workspace);
        Saved saved;
        model.forward({}, saved, context);
        if (breaks.split_backward) {
            model.backward_input({}, saved, context);
            model.backward_weight(saved, context);
        } else {
            model.backward({}, saved, context);
        }
        if (breaks.sum_copies) sum_gradients(parameters, mesh);
        if (step == 0) verifier.gradient(parameters.parts(&Parameter::grad));
        Tensor squared_norm = optimizer.squared_norm();
        if (breaks.clip_with_own_norm || breaks.count_copies)
            squared_norm = squared_gradient_norm(parameters);
        if (breaks.count_copies)
            world.all_reduce(squared_norm);  // counts everything that every rank holds
        optimizer.step(options.optimizer.lr, squared_norm);
        verifier.after_step(step, context.loss.to_host<double>()[0],
                            parameters.parts(&Parameter::value));
    }
    if (breaks.predicted.tp == 0) breaks.predicted = tensor;
    return checks_of(verifier, report,
                     predict(shape, breaks.predicted, parameters, 1, 1, world.rank()), steps);
}

TEST(TensorParallelBreak, UnchangedTechniquesPass) {
    expect(train<ParallelRegion>(plain_options()), true, true, true);
    expect(train<ParallelRegion>(options_of(false)), true, true, true);
    expect(train<ParallelRegion>(options_of(false), {.dropout = 0.1}), true, true, true);
    if (Communicator::world().size() == 1) return;
    expect(train<SequenceParallelRegion>(options_of(true)), true, true, true);
    expect(train<SequenceParallelRegion>(options_of(true), {.dropout = 0.1}), true, true, true);
    for (const Overlap overlap : {Overlap::async, Overlap::chunk}) {
        TensorOptions plain = options_of(false), shards = options_of(true);
        plain.overlap = shards.overlap = overlap;
        expect(train<ParallelRegion>(plain), true, true, true);
        expect(train<SequenceParallelRegion>(shards), true, true, true);
    }
}

TEST(TensorParallelBreak, UnchangedTechniquesPassTheOtherWays) {
    NEEDS_RANKS();
    for (int way = 0; way < 3; ++way) {
        SCOPED_TRACE(way);
        const Breaks other{.split_backward = way == 0,
                           .loss_chunk = way == 1 ? 20 : 0,
                           .documents = way == 2,
                           .dropout = 0.1};
        EXPECT_TRUE(train<ParallelRegion>(plain_options(), other).verified);
        EXPECT_TRUE(train<ParallelRegion>(options_of(false), other).verified);
        EXPECT_TRUE(train<SequenceParallelRegion>(options_of(true), other).verified);
    }
}

// One of the plain linears takes itself for the only rank of its group.
TEST(TensorParallelBreak, APlainLinearForgetsItsSum) {
    NEEDS_RANKS();
    const Communicator& world = Communicator::world();
    const Communicator alone = world.split(world.rank(), 0, "alone");
    for (int forgets = 0; forgets < 4; ++forgets) {  // q k v, o, gate up, down of the first layer
        SCOPED_TRACE(forgets);
        int linears = 0;
        Breaks breaks;
        breaks.parts = [&](ModuleFactories& factories) {
            factories.linear = [&, linear = factories.linear](
                                   ParameterList& list, const ModuleFactories& factories,
                                   const ModulePath& path, LinearRole role,
                                   const ModuleFactories::LinearShape& shape) {
                std::unique_ptr<Linear> made = linear(list, factories, path, role, shape);
                if (linears++ != forgets) return made;
                if (role == LinearRole::row)
                    made = std::make_unique<PlainRowLinear>(made->parameters(), alone);
                else
                    made = std::make_unique<PlainColumnLinear>(made->parameters(), alone);
                return made;
            };
        };
        expect(train<ParallelRegion>(plain_options(), breaks), false, true, false);
        EXPECT_EQ(linears, 8);
    }
}

TEST(TensorParallelBreak, OneSumIsForgotten) {
    NEEDS_RANKS();
    static int calls, dropped;
    struct Broken : ParallelRegion {
        using ParallelRegion::ParallelRegion;
        Work sum_rows(Tensor sum, Tensor partial, Stream& stream) const override {
            return calls++ != dropped ? ParallelRegion::sum_rows(sum, partial, stream) : Work();
        }
    };
    // The calls of the first step are: embedding, o, down, o, down in forward; head, gate and up, q
    // k v, gate and up, q k v in backward.
    for (int call : {0, 3, 4, 5, 6, 7}) {
        SCOPED_TRACE(call);
        calls = 0, dropped = call;
        expect(train<Broken>(options_of(false)), false, true, false);
    }
}

TEST(TensorParallelBreak, ACopyIsReducedAsIfItWereAPart) {
    NEEDS_RANKS();
    struct Broken
        : ParallelRegion {  // the row linear's backward sums dy, of which every rank has the whole
        using ParallelRegion::ParallelRegion;
        Pending begin_enter(const Tensor& x, Stream&) const override {
            Tensor sum = Tensor::empty(x.shape(), x.dtype(), Memory::activation);
            ops::copy(sum, x);
            group_.all_reduce(sum);
            return {sum};
        }
    };
    const Checks checks = train<Broken>(options_of(false));
    EXPECT_FALSE(checks.verified);
    EXPECT_FALSE(checks.communication);
}

TEST(TensorParallelBreak, CopiesGradientsAreNotSummed) {
    NEEDS_RANKS();
    // The copies are key-value heads; with sequence parallelism the norms, too.
    expect(train<ParallelRegion>(options_of(false), {.sum_copies = false}), false, true, false);
    expect(train<SequenceParallelRegion>(options_of(true), {.sum_copies = false}), false, true,
           false);
    Breaks norms_only;
    norms_only.parameter = [](Parameter& p, int) {
        if (p.init == Init::ones) p.replica_groups.clear();
    };
    expect(train<SequenceParallelRegion>(options_of(true), norms_only), false, true, false);
}

// Of latent attention: the key's gradient from other ranks' heads; and with sequence parallelism
// that of the weights that make the latents, from other ranks' tokens.
TEST(TensorParallelBreak, LatentsGradientsAreNotSummed) {
    NEEDS_RANKS();
    Breaks breaks{.model = latent_config};
    expect(train<ParallelRegion>(options_of(false), breaks), true, true, true);
    expect(train<SequenceParallelRegion>(options_of(true), breaks), true, true, true);
    breaks.parameter = [](Parameter& p, int) {
        if (p.name.find("_a_proj") != p.name.npos) p.replica_groups.clear();
    };
    expect(train<SequenceParallelRegion>(options_of(true), breaks), false, true, false);
    breaks.parameter = [](Parameter&, int) {};
    breaks.parts = [](ModuleFactories& factories) { factories.shared_by_heads.leave = {}; };
    expect(train<ParallelRegion>(options_of(false), breaks), false, true, false);
}

TEST(TensorParallelBreak, CopiesAreCountedTwiceInTheNorm) {
    NEEDS_RANKS();
    expect(train<ParallelRegion>(options_of(false), {.count_copies = true}), false, true, false);
    expect(train<ParallelRegion>(options_of(false), {.clip_with_own_norm = true}), false, true,
           true);
}

TEST(TensorParallelBreak, TwoRanksSwapAShard) {
    NEEDS_RANKS();
    const auto swap_of = [](const std::string& name) {
        Breaks breaks;
        breaks.parameter = [name](Parameter& p, int rank) {
            if (p.name != name || rank > 1) return;
            Range& range = p.slice[p.slice[0].size() == p.shape[0] ? 1 : 0];
            const int64_t size = range.size(), begin = rank == 0 ? size : 0;
            range = {begin, begin + size};
        };
        return breaks;
    };
    for (const char* name :
         {"model.layers.1.mlp.up_proj.weight", "model.layers.0.self_attn.o_proj.weight"})
        expect(train<ParallelRegion>(options_of(false), swap_of(name)), false, true, true);
}

// Every rank gathers the tokens in a different order.
TEST(TensorParallelBreak, TokensComeInTheWrongOrder) {
    NEEDS_RANKS();
    struct Broken : SequenceParallelRegion {
        using SequenceParallelRegion::SequenceParallelRegion;
        Pending begin_enter(const Tensor& x, Stream& stream) const override {
            const Tensor whole = SequenceParallelRegion::begin_enter(x, stream).wait();
            if (group_.rank() != 0) return {whole};
            const Tensor first = chunk_of(whole, 0, group_.size()),
                         second = chunk_of(whole, 1, group_.size());
            const Tensor copy = Tensor::empty(first.shape(), first.dtype(), Memory::workspace);
            ops::copy(copy, first), ops::copy(first, second), ops::copy(second, copy);
            return {whole};
        }
    };
    expect(train<Broken>(options_of(true)), false, true, true);
}

// With sequence parallelism ranks hold different tokens. If each rank numbers its tokens from zero,
// two tokens get the same mask.
TEST(TensorParallelBreak, DropoutCountsItsOwnTokens) {
    NEEDS_RANKS();
    struct Broken : SequenceParallelRegion {
        using SequenceParallelRegion::SequenceParallelRegion;
        std::vector<TokenRange> tokens(int64_t rows) const override { return {{0, 0, rows}}; }
    };
    expect(train<Broken>(options_of(true), {.dropout = 0.1}), false, true, true);
    expect(train<Broken>(options_of(true)), true, true, true);  // it is the only one to ask
}

TEST(TensorParallelBreak, KeepsOrSendsOtherThanPredicted) {
    NEEDS_RANKS();
    TensorOptions keeps = options_of(true);
    keeps.keep_gathered = true;
    expect(train<SequenceParallelRegion>(keeps, {.predicted = options_of(true)}), true, false,
           false);
    expect(train<ParallelRegion>(options_of(false), {.predicted = options_of(true)}), true, false,
           false);
}

}  // namespace
}  // namespace ultrascale
