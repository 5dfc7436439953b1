// A stage of layers with experts runs with two micro-batches in flight. In each pass the memory
// that it holds equals the formula: kept tensors to the byte, peaks within 1 %. This also holds
// inside tensor parallelism, with rows divided by sequence parallelism.
#include <gtest/gtest.h>

#include "03_tensor_parallel/8_tensor_parallel.h"
#include "03_tensor_parallel/lab/predict.h"
#include "06_expert_parallel/lab/predict.h"
#include "core/threads.h"
#include "tests/test_util.h"

namespace ultrascale {
using namespace ultrascale::expert_parallel;
using namespace ultrascale::tensor_parallel;
namespace {

constexpr int64_t B = 2, T = 24, N = B * T;

struct Case {
    const char* name;
    int64_t shared = 1;  // experts
    ModelOptions model = {};
    ExpertOptions options = {.aux = Aux::megatron, .aux_coefficient = 0.1, .z_coefficient = 0.1};
    int64_t ffn = 48;  // an expert's
    TensorOptions tensor = {.tp = 1};
};

int64_t now() { return memory_now()[int(Memory::activation)]; }

// Runs a stage's passes on this rank and compares.
void compare(const Case& of, Mesh& mesh, const Stage& stage) {
    SCOPED_TRACE(fmt::format("{}, layers {} to {}", of.name, stage.first_layer, stage.last_layer));
    StepShape shape{.config = {.layers = 4,
                               .hidden = 32,
                               .heads = 4,
                               .kv_heads = 2,
                               .head_dim = 8,
                               .ffn = 96,
                               .vocab = 64,
                               .init_std = 0.1,
                               .experts = {.count = 24,
                                           .ffn = of.ffn,
                                           .shared = of.shared,
                                           .first_dense = 1,
                                           .router = {.top_k = 3}}},
                    .model = of.model,
                    .micro_batch = B,
                    .seq = T};
    ExpertOptions options = of.options;
    options.ep = mesh.group("ep").size();
    const Communicator& tp = mesh.group("tp");
    const SequenceParallelRegion region(tp, of.tensor);
    SharedTokens shared;
    if (of.tensor.sequence_parallel)
        shared = {.ranks = &tp,
                  .all = &mesh.group({"dp", "ep", "tp"}),
                  .tokens = [&](int64_t rows) { return region.tokens(rows); },
                  .replica_groups = {"tp"}};
    ExpertParallel experts(shape.config, options, mesh, 2, shared);
    DispatchStatistics statistics(shape, options);
    experts.see_dispatch = [&](const Dispatched& d, const Context& context) {
        statistics.add(d, context, experts.receive_bytes() > 0);
    };
    const TensorParallel tensor(shape.config, of.tensor, mesh);
    ModuleFactories factories = tensor.factories(shape.model);
    experts.set_in(factories, shape.model);
    Llama model(shape.config, shape.model, factories, stage);
    model.parameters().allocate_values(shape.model.dtype);
    model.parameters().allocate_grads(DType::fp32);
    model.parameters().initialize(5);
    model.parameters().begin_gradients(2);
    experts.balance().begin_step();

    std::vector<int32_t> positions;
    for (int64_t i = 0; i < N; ++i) positions.push_back(int32_t(i % T));
    const Tensor position = integers(positions, {B, T});
    Context contexts[2];
    for (int m = 0; m < 2; ++m) {
        const uint64_t seed = uint64_t(10 * mesh.group("ep").rank() + 2 * m);
        contexts[m] = {.batch = {.tokens = random_integers({B, T}, 0, 63, seed),
                                 .targets = random_integers({B, T}, 0, 63, seed + 1),
                                 .positions = position,
                                 .counted_targets = N},
                       .token_weight = 1 / float(N),
                       .loss = Tensor::zeros({1}, DType::fp64, Memory::workspace),
                       .micro_batch = m};
    }
    const auto message = [&](bool none, uint64_t seed) {
        const Shape stream_shape =
            of.tensor.sequence_parallel ? Shape{N / tp.size(), 32} : Shape{B, T, 32};
        return none ? Tensor() : random_tensor(stream_shape, shape.model.dtype, seed);
    };
    const int64_t none = now();
    Saved saved[2];
    // Returns the memory held after a pass, and at its peak, without `others`.
    const auto run = [&](int64_t others, const auto& pass) {
        memory_reset_peak();
        pass();
        return std::pair{now() - others,
                         memory_peak_by_category()[int(Memory::activation)] - others};
    };
    const auto forward = [&](int m) {
        return [&, m] { model.forward(message(stage.embedding, 50), saved[m], contexts[m]); };
    };
    const auto first = run(none, forward(0));
    const int64_t others = now();
    const auto second = run(others, forward(1)),
               inputs = run(none + second.first, [&] {
                   model.backward_input(message(stage.head, 51), saved[0], contexts[0]);
               });
    model.backward_weight(saved[0], contexts[0]);
    EXPECT_EQ(now(), none + second.first);
    const auto backward =
        run(none, [&] { model.backward(message(stage.head, 52), saved[1], contexts[1]); });
    EXPECT_EQ(backward.first, 0);
    // The tensors that forward kept move with Saved, and are freed with it.
    forward(0)();
    saved[1] = std::exchange(saved[0], {});
    EXPECT_EQ(now(), none + first.first);
    saved[1] = {};
    EXPECT_EQ(now(), none);

    LocalSizes sizes = local_sizes(shape, of.tensor, tp.rank());
    sizes.layers = stage.last_layer - stage.first_layer;
    sizes.embedding = stage.embedding, sizes.head = stage.head;
    auto rows = statistics.end_step();
    const auto predicted = [&](int m) {
        return stage_activations(sizes, shape, options, rows[m], stage.first_layer);
    };
    const StageBytes first_bytes = predicted(0), second_bytes = predicted(1);
    const auto near = [](double predicted, int64_t measured, const char* what) {
        EXPECT_TRUE(peak_as_predicted(std::llround(predicted), measured))
            << what << ": " << predicted << " predicted, " << measured << " measured";
    };
    EXPECT_EQ(std::llround(first_bytes.after_forward), first.first);
    EXPECT_EQ(std::llround(second_bytes.after_forward), second.first);
    EXPECT_EQ(std::llround(first_bytes.after_backward_input), inputs.first);
    near(first_bytes.at_forward, first.second, "forward");
    near(second_bytes.at_forward, second.second, "the second forward");
    near(first_bytes.at_backward_input, inputs.second, "backward of inputs");
    near(second_bytes.at_backward, backward.second, "backward");
}

TEST(ExpertsMemory, OfEachPassOfAStage) {
    use_threads(ranks_on_this_node());
    const Communicator& world = Communicator::world();
    if (24 % world.size() != 0) GTEST_SKIP() << "the experts do not divide";
    const int n = world.size();
    Mesh mesh(world, {{"dp", 1}, {"ep", n}, {"tp", 1}});
    std::vector<Case> cases{
        {"plain"},
        {"no shared experts", 0},
        {"wide experts", 0, {}, {}, 200},
        {"bf16, naive attention", 1, {.dtype = DType::bf16, .attention = AttentionKind::naive}},
        {"recomputed", 1, {.recompute = Recompute::full}},
        {"dropout", 1, {.dropout = 0.1}},
        {"capacity", 0, {}, {.capacity_factor = 1.5}}};
    if (n > 1) {
        cases.push_back({"plain dispatch", 0, {}, {.dispatch = Dispatch::plain}});
        cases.push_back({"a copy a rank", 1, {}, {.dispatch = Dispatch::rank}});
        cases.push_back({"in chunks",
                         1,
                         {.recompute = Recompute::full},
                         {.overlap = ExpertOverlap::chunks, .chunks = 3}});
    }
    const Stage stages[] = {{0, 1, true, false},  // without experts
                            {0, 2, true, false},
                            {1, 3, false, false},
                            {2, 4, false, true},
                            {0, 4, true, true}};
    for (const Case& of : cases)
        for (const Stage& stage : stages) compare(of, mesh, stage);
    if (n % 2 != 0) return;
    Mesh both(world, {{"dp", 1}, {"ep", n / 2}, {"tp", 2}});
    for (const bool sequence_parallel : {false, true})
        for (const Recompute recompute : {Recompute::none, Recompute::full}) {
            const TensorOptions tensor{.tp = 2, .sequence_parallel = sequence_parallel};
            const double dropout = recompute == Recompute::full ? 0 : 0.1;
            Case of{"tensor parallel", 1, {.recompute = recompute, .dropout = dropout}};
            of.tensor = tensor;
            for (const Stage& stage : stages) compare(of, both, stage);
            of.tensor.keep_gathered = true;
            for (const Stage& stage : {stages[0], stages[4]})
                if (sequence_parallel) compare(of, both, stage);
        }
}

}  // namespace
}  // namespace ultrascale
