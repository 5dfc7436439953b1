// A short training by 04_context_parallel's parts, in which something can be done wrong.
#pragma once

#include "04_context_parallel/lab/bounds.h"
#include "04_context_parallel/lab/predict.h"
#include "04_context_parallel/lab/shared_options.h"
#include "break_checks.h"
#include "core/threads.h"
#include "train/data.h"
#include "train/gradients.h"
#include "train/replica_groups.h"

namespace ultrascale::context_break {
using namespace ultrascale::context_parallel;

inline constexpr int64_t T = 48, B = 2, steps = 3;
// 1, 2, 3, 4 and 8 ranks can share this model and its heads; all ranks get the one key head.
inline LlamaConfig config_of(bool tied) {
    return {.layers = 2,
            .hidden = 32,
            .heads = 24,
            .kv_heads = 1,
            .head_dim = 4,
            .ffn = 48,
            .vocab = 257,
            .tied = tied};
}

// The parts from which an attention is built.
struct Ingredients {
    const ContextOptions& options;
    ContextParallel& parallel;
    const Communicator& cp;
    Stream& stream;
    // Returns the chapter's ring of these ranks, planned for `layout`.
    std::unique_ptr<AttentionCore> ring(const Communicator& ring_ranks, Layout layout) const {
        if (options.variant == Variant::plain)
            return std::make_unique<PlainRing>(ring_ranks, stream);
        const auto plan = std::make_shared<PlanOfBatch>(
            RingPlan(SequenceCut(layout, cp.size(), T), options.bidirectional, nullptr), Tensor());
        return std::make_unique<RingAttention>(
            ring_ranks, stream, options,
            [plan](const Batch&) -> const PlanOfBatch& { return *plan; }, RowOrders());
    }
    std::unique_ptr<AttentionCore> ring() const { return ring(cp, options.layout); }
};

// The ways in which a broken run differs from the chapter's main.
struct Breaks {
    std::function<void(HostBatch& part, const Communicator& cp)> batch = [](HostBatch&, auto&) {};
    std::function<std::unique_ptr<AttentionCore>(const Ingredients&)>
        attention;                          // empty: the usual
    std::vector<std::string> summed_apart;  // axes over which one weight is not summed
    bool sum = true, own_denominator = false;
    ContextOptions predicted;            // the prediction's options; cp 0: the run's
    std::optional<VerifyBounds> bounds;  // instead of the usual ones
    // Correct, but other paths through the parts: the weights' gradients after all of backward; the
    // loss in chunks of tokens; lines as documents, whose last targets are ignored; ...
    bool split_backward = false;
    int64_t loss_chunk = 0;
    bool documents = false;
    double dropout = 0;
    bool tied = false;
    bool sum_in_backward = false;  // each gradient as soon as it is complete, beside the ring
    int64_t window = 0, prefix = 0;
    std::optional<int64_t> predicted_window;  // the prediction's, instead of the run's
};

inline int ranks() { return Communicator::world().size(); }
inline ContextOptions plain() {
    return {.cp = ranks(),
            .variant = Variant::plain,
            .layout = Layout::contiguous,
            .backward = RingBackward::restarted};
}
inline ContextOptions ring_of(Layout layout, RingBackward backward = RingBackward::reversed) {
    return {.cp = ranks(), .layout = layout, .backward = backward};
}
inline ContextOptions rounded_ring(Layout layout) {
    return {.cp = ranks(), .layout = layout, .merge = DType::bf16};
}
inline ContextOptions bidirectional() { return {.cp = ranks(), .bidirectional = true}; }
inline ContextOptions all_gather(Layout layout) {
    return {.cp = ranks(), .variant = Variant::all_gather, .layout = layout};
}
inline ContextOptions ulysses() {
    return {.cp = ranks(), .variant = Variant::ulysses, .layout = Layout::contiguous};
}
inline ContextOptions usp(Layout layout) {
    const int inside = ranks() % 2 == 0 ? 2 : ranks();
    return {.cp = ranks(), .variant = Variant::usp, .layout = layout, .ulysses = inside};
}
inline std::vector<ContextOptions> every_variant() {
    return {plain(),
            ring_of(Layout::contiguous),
            ring_of(Layout::zigzag, RingBackward::restarted),
            ring_of(Layout::zigzag, RingBackward::kept),
            ring_of(Layout::striped),
            bidirectional(),
            all_gather(Layout::zigzag),
            all_gather(Layout::contiguous),
            ulysses(),
            usp(Layout::zigzag)};
}

// Sums each parameter's gradient as soon as it is complete, while backward continues.
struct SumsInBackward : Hooks {
    explicit SumsInBackward(const Mesh& of) : mesh(of) {}
    void gradient_complete(Parameter& parameter, const Context&) override {
        const Communicator& group = data_group(mesh, parameter);
        if (group.size() > 1)
            under_way.push_back(
                group.all_reduce(parameter.grad, Reduce::sum, communication_stream()));
    }
    void finish() {
        for (Work& work : under_way) work.wait();
        under_way.clear();
    }
    const Mesh& mesh;
    std::vector<Work> under_way;
};

inline Checks train(const ContextOptions& context, Breaks breaks = {}) {
    use_threads(ranks_on_this_node());
    LlamaConfig config = config_of(breaks.tied);
    config.window = breaks.window, config.prefix = breaks.prefix;
    const Communicator& world = Communicator::world();
    const Mesh mesh(world, {{"dp", world.size() / context.cp}, {"cp", context.cp}});
    const Communicator &dp = mesh.group("dp"), &cp = mesh.group("cp");
    Options options;
    options.optimizer.lr = 1e-3;
    options.optimizer.clip = 0.1;
    const TokenFile file("common/text.txt", config.vocab);
    DataOptions data{.seq = T, .window = config.window, .prefix = config.prefix};
    if (breaks.documents) data.document_token = '\n';
    const DataLoader loader(file, data);
    ContextParallel parallel(config, context, T, cp);
    const StepShape shape{
        .config = config,
        .model = {.loss_chunk = breaks.loss_chunk, .dropout = breaks.dropout, .seed = options.seed},
        .micro_batch = B,
        .seq = T};
    ModuleFactories factories = parallel.factories(shape.model);
    Stream stream("broken ring");
    if (breaks.attention)
        factories.attention = [&](const ModulePath&) {
            return breaks.attention({context, parallel, cp, stream});
        };
    Llama model(config, shape.model, factories, Stage::whole(config));
    ParameterList& parameters = model.parameters();
    parameters.find("model.layers.1.mlp.up_proj.weight")->split_over = breaks.summed_apart;
    parameters.allocate_values(DType::fp32);
    parameters.allocate_grads(DType::fp32);
    parameters.initialize(options.seed);
    AdamW optimizer(parameters, options.optimizer);
    testing::internal::CaptureStdout();
    const int64_t sequences = B * dp.size();  // sequences of a step
    const auto dropped = [&](ModuleFactories& plain) {
        add_dropout(plain, {float(breaks.dropout), options.seed});
    };
    Verifier verifier(options, config, loader, std::vector<int64_t>(size_t(steps), sequences),
                      dropped, 0, nullptr, breaks.bounds.value_or(bounds_of(context, DType::fp32)));
    testing::internal::GetCapturedStdout();
    Report report("test", options, shape, steps);
    memory_reset_peak();
    world.barrier();
    communication_reset_counts();
    SumsInBackward in_backward(mesh);
    for (int64_t step = 0; step < steps; ++step) {
        parameters.begin_gradients();
        const int64_t first = step * sequences;
        HostBatch batch = parallel.part(loader.batch(first + dp.rank() * B, B));
        breaks.batch(batch, cp);
        int64_t targets = loader.counted_targets(first, sequences);
        if (breaks.own_denominator)
            targets = std::ranges::count_if(batch.targets, [](int32_t t) { return t >= 0; });
        Context micro_batch{.batch = to_device(batch), .token_weight = float(1 / double(targets))};
        const Tensor sums = Tensor::zeros({2}, DType::fp64, Memory::workspace);  // as Step::sums
        micro_batch.loss = sums.slice(0, 1);
        if (breaks.sum_in_backward) micro_batch.hooks = &in_backward;
        Saved saved;
        model.forward({}, saved, micro_batch);
        if (breaks.split_backward) {
            model.backward_input({}, saved, micro_batch);
            model.backward_weight(saved, micro_batch);
        } else {
            model.backward({}, saved, micro_batch);
        }
        in_backward.finish();
        if (breaks.sum && !breaks.sum_in_backward) sum_gradients(parameters, mesh);
        if (step == 0) verifier.gradient(parameters.parts(&Parameter::grad));
        const Tensor squared_norm = squared_gradient_norm(parameters);
        optimizer.step(options.optimizer.lr, squared_norm);
        if (world.size() > 1) mesh.group({"dp", "cp"}).all_reduce(sums);
        verifier.after_step(step, micro_batch.loss.to_host<double>()[0],
                            parameters.parts(&Parameter::value));
    }
    if (breaks.predicted.cp == 0) breaks.predicted = context;
    StepShape predicted_shape = shape;
    if (breaks.predicted_window) predicted_shape.config.window = *breaks.predicted_window;
    return checks_of(verifier, report,
                     predict(predicted_shape, breaks.predicted, parameters, 1,
                             mesh.group({"dp", "cp"}), parallel.ring_rank()),
                     steps);
}

}  // namespace ultrascale::context_break
