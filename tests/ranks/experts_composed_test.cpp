// Experts in combination with other techniques: micro-batches in a pipeline's order, a rank with
// some of the layers, and ranks that share a micro-batch's tokens. Each gives the result of one
// rank that holds everything and takes one micro-batch after the other.
#include <gtest/gtest.h>

#include <sstream>

#include "06_expert_parallel/lab/choices.h"
#include "06_expert_parallel/lab/predict.h"
#include "06_expert_parallel/lab/shared_options.h"
#include "core/threads.h"
#include "tests/test_util.h"
#include "train/gradients.h"

namespace ultrascale {
using namespace ultrascale::expert_parallel;
namespace {

constexpr int64_t B = 2, T = 24, N = B * T, A = 4, h = 32;  // A: micro-batches per rank
const LlamaConfig config{.layers = 2,
                         .hidden = h,
                         .heads = 4,
                         .kv_heads = 2,
                         .head_dim = 8,
                         .ffn = 48,
                         .vocab = 64,
                         .init_std = 0.1,
                         .experts = {.count = 24, .ffn = 16, .shared = 1, .router = {.top_k = 3}}};

ExpertOptions with_loss(Aux aux, int ep) {
    return {.ep = ep, .aux = aux, .aux_coefficient = 0.5, .z_coefficient = 0.1};
}

struct Outcome {
    std::map<std::string, Doubles> gradients;
    std::vector<std::vector<float>> loads;
    double aux, z;
    bool operator==(const Outcome&) const = default;
};
Outcome outcome_of(const ParameterList& parameters, const StepLoads& loads) {
    Outcome outcome{.loads = loads.by_layer, .aux = loads.aux, .z = loads.z};
    for (const auto& p : parameters) outcome.gradients[p->name] = to_double(p->grad);
    return outcome;
}
bool near(const Outcome& a, const Outcome& b) {
    for (const auto& [name, gradient] : a.gradients)
        if (relative_error(gradient, b.gradients.at(name)) > 2e-6) return false;
    return a.loads == b.loads && std::abs(a.aux / b.aux - 1) < 1e-6 &&
           std::abs(a.z / b.z - 1) < 1e-6;
}

// ---- orders of passes ----

// Micro-batch m of replica r.
Context micro_batch(int m, int r) {
    const auto seed = uint64_t(m * 8 + r);
    const auto numbers = [&](uint64_t which) {
        return random_integers({B, T}, 0, 63, 2 * seed + which);
    };
    std::vector<int32_t> positions;
    for (int64_t i = 0; i < N; ++i) positions.push_back(int32_t(i % T));
    return {.batch = {.tokens = numbers(0),
                      .targets = numbers(1),
                      .positions = integers(positions, {B, T}),
                      .counted_targets = N},
            .token_weight = 1 / float(A * N),
            .loss = Tensor::zeros({1}, DType::fp64, Memory::workspace),
            .micro_batch = m};
}

// Runs a step's passes in this order: F forward, D backward, B backward of inputs, W of weights; a
// plus joins two that take turns. If `mixed_up`, a backward takes the statistics of the micro-batch
// whose forward ran last.
Outcome run(const Mesh& mesh, const ExpertOptions& options, Recompute recompute,
            const std::string& order, bool mixed_up = false) {
    ExpertParallel experts(config, options, mesh, A);
    DispatchStatistics statistics({.config = config, .micro_batch = B, .seq = T}, options);
    experts.see_dispatch = [&](const Dispatched& d, const Context& context) {
        statistics.add(d, context, experts.receive_bytes() > 0);
    };
    const ModelOptions model_options{.recompute = recompute};
    Llama model(config, model_options, experts.factories(model_options), Stage::whole(config));
    ParameterList& parameters = model.parameters();
    parameters.allocate_values(DType::fp32), parameters.allocate_grads(DType::fp32);
    parameters.initialize(5);
    parameters.begin_gradients(A);
    experts.balance().begin_step();
    struct InFlight {
        Context context;
        Saved saved;
    };
    std::map<int, InFlight> in_flight;
    communication_reset_counts();
    int last = 0;
    const auto pass = [&](const std::string& name) {
        const int m = std::stoi(name.substr(1));
        if (name[0] == 'F') in_flight[m].context = micro_batch(last = m, mesh.group("ep").rank());
        auto& [context, saved] = in_flight.at(m);
        if (mixed_up) context.micro_batch = last;
        switch (name[0]) {
            case 'F': model.forward({}, saved, context); break;
            case 'D': model.backward({}, saved, context); break;
            case 'B': model.backward_input({}, saved, context); break;
            default: model.backward_weight(saved, context);
        }
    };
    std::istringstream passes(order);
    for (std::string one; passes >> one;) {
        const size_t plus = one.find('+');
        if (plus == one.npos)
            pass(one);
        else
            interleave([&] { pass(one.substr(0, plus)); }, [&] { pass(one.substr(plus + 1)); });
    }
    // Only rows were sent, as many as were reported when each forward ran.
    EXPECT_TRUE(counted_as_predicted(sent_of(statistics), 1, communication_counts()));
    const std::map<int, DispatchStatistics::ByLayer> rows = statistics.end_step();
    EXPECT_EQ(rows.size(), size_t(A));
    for (const auto& [m, layers] : rows) EXPECT_EQ(layers.size(), 2u) << m;
    sum_gradients(parameters, mesh);
    return outcome_of(parameters, experts.balance().end_step(experts.all()));
}

TEST(ExpertsComposed, SameBitsInAnyOrderOfPasses) {
    use_threads(ranks_on_this_node());
    const Communicator& world = Communicator::world();
    if (config.experts.count % world.size() != 0) GTEST_SKIP() << "the experts do not divide";
    const Mesh mesh(world, {{"dp", 1}, {"ep", world.size()}});
    const std::string order_1f1b = "F0 F1 D0 F2 D1 F3 D2 D3",
                      split = "F0 F1 B0 F2 B1 W0 F3 B2 W1 B3 W2 W3";
    for (const Aux aux : {Aux::hf, Aux::switch_transformer, Aux::megatron, Aux::sequence}) {
        const Recompute recompute = aux == Aux::hf ? Recompute::full : Recompute::none;
        const ExpertOptions options = with_loss(aux, world.size());
        const Outcome plain = run(mesh, options, recompute, "F0 D0 F1 D1 F2 D2 F3 D3");
        for (const std::string& order : {order_1f1b, split})
            EXPECT_TRUE(run(mesh, options, recompute, order) == plain)
                << aux_names[int(aux)] << ": " << order;
        EXPECT_FALSE(near(run(mesh, options, recompute, order_1f1b, true), plain));
        ExpertOptions beside = options;
        beside.overlap = ExpertOverlap::batches;
        for (const char* order : {"F0 D0+F1 D1+F2 D2+F3 D3", "F0 F1 F2+D0 B1+F3 W1 D2 D3"})
            EXPECT_TRUE(run(mesh, beside, recompute, order) == plain)
                << aux_names[int(aux)] << ": " << order;
    }
}

// Two ranks of a pipeline have a layer each; their counts and gradients add up to the whole
// model's.
TEST(ExpertsComposed, ARankWithSomeOfTheLayers) {
    use_threads(ranks_on_this_node());
    const Communicator alone = Communicator::world().split(Communicator::world().rank(), 0, "one");
    const Mesh mesh(alone, {{"dp", 1}, {"ep", 1}});
    const ExpertOptions options = with_loss(Aux::megatron, 1);
    const Outcome whole = run(mesh, options, Recompute::none, "F0 D0 F1 D1 F2 D2 F3 D3");
    ExpertParallel lower(config, options, mesh, A), upper(config, options, mesh, A);
    Llama first(config, {}, lower.factories({}), {0, 1, true, false}),
        last(config, {}, upper.factories({}), {1, 2, false, true});
    for (Llama* stage : {&first, &last}) {
        stage->parameters().allocate_values(DType::fp32);
        stage->parameters().allocate_grads(DType::fp32);
        stage->parameters().initialize(5);
        stage->parameters().begin_gradients(A);
    }
    lower.balance().begin_step(), upper.balance().begin_step();
    for (int m = 0; m < A; ++m) {
        Context context = micro_batch(m, 0);
        Saved below, above;
        last.forward(first.forward({}, below, context), above, context);
        first.backward(last.backward({}, above, context), below, context);
    }
    const StepLoads a = lower.balance().end_step(alone), b = upper.balance().end_step(alone);
    EXPECT_EQ(a.by_layer[0], whole.loads[0]);
    EXPECT_EQ(b.by_layer[1], whole.loads[1]);
    EXPECT_EQ(a.by_layer[1], std::vector<float>(24, 0));
    EXPECT_NEAR(a.aux + b.aux, whole.aux, 1e-9);
    EXPECT_NEAR(a.z + b.z, whole.z, 1e-9);
    for (Llama* stage : {&first, &last})
        for (const auto& p : stage->parameters())
            EXPECT_EQ(to_double(p->grad), whole.gradients.at(p->name)) << p->name;
}

// ---- shared tokens ----

// How ranks share a micro-batch's tokens: cp takes a part of each sequence, tp a part of all rows.
enum class Cut { nothing, cp, tp };
enum class Break { nothing, counts_alone, not_over_tp };

std::vector<TokenRange> tokens_of(Cut cut, int64_t rank, int64_t ranks) {
    if (cut != Cut::cp) return {{0, rank * N / ranks, N / ranks}};
    std::vector<TokenRange> ranges;
    for (int64_t b = 0, each = T / ranks; b < B; ++b)
        ranges.push_back({b * each, b * T + rank * each, each});
    return ranges;
}

// Runs only layer 0's experts, on this rank's rows of `accumulated` micro-batches of each replica.
Outcome share(const Mesh& mesh, const ExpertOptions& options, Cut cut, int accumulated,
              ChoiceLog& choices, Break wrong = Break::nothing) {
    SharedTokens shared{.all = &mesh.group({"dp", "ep", "cp", "tp"})};
    const int64_t replicas = mesh.group("ep").size();
    int64_t ranks = 1;
    if (cut != Cut::nothing) {
        const Communicator& group = mesh.group(cut == Cut::cp ? "cp" : "tp");
        ranks = group.size();
        if (wrong != Break::counts_alone) shared.ranks = &group;
        shared.tokens = [&](int64_t) { return tokens_of(cut, group.rank(), ranks); };
        if (cut == Cut::tp && wrong != Break::not_over_tp) shared.replica_groups = {"tp"};
    }
    ExpertParallel experts(config, options, mesh, accumulated, shared);
    choices = ChoiceLog(config, verify_bounds(DType::fp32), shared);
    choices.watch(1);
    DispatchStatistics statistics({.config = config, .micro_batch = B, .seq = T}, options);
    experts.see_dispatch = [&](const Dispatched& d, const Context& context) {
        choices.add(d, context);
        statistics.add(d, context, experts.receive_bytes() > 0);
    };
    ParameterList parameters;
    const ModuleFactories factories = experts.factories({});
    const auto layer = factories.feed_forward(parameters, factories, {0, "model.layers.0"});
    parameters.allocate_values(DType::fp32), parameters.allocate_grads(DType::fp32);
    parameters.initialize(5);
    parameters.begin_gradients(accumulated);
    experts.balance().begin_step();
    communication_reset_counts();
    const auto mine = [&](const Tensor& all) {
        const std::vector<int64_t> rows = shared.tokens_of(N / ranks);
        const Tensor index = integers({rows.begin(), rows.end()}, {int64_t(rows.size())}),
                     part = Tensor::empty({N / ranks, h}, DType::fp32, Memory::activation);
        ops::gather_rows(part, all, index);
        return part;
    };
    const auto number = [&](int m) { return m * replicas + mesh.group("ep").rank(); };
    std::vector<Context> contexts;
    std::map<int, Saved> saved;
    for (int m = 0; m < accumulated; ++m) {
        const int64_t length = cut == Cut::cp ? T / ranks : T;
        contexts.push_back(
            {.batch = {.tokens = integers(std::vector<int32_t>(size_t(B * length)), {B, length}),
                       .first_sample = number(m) * B,
                       .whole_length = T},
             .micro_batch = m});
        const Tensor x = mine(random_tensor({N, h}, DType::fp32, uint64_t(number(m))));
        layer->forward(x, {}, saved[m], contexts.back());
    }
    for (int m = 0; m < accumulated; ++m) {
        const Tensor dy = mine(random_tensor({N, h}, DType::fp32, uint64_t(100 + number(m))));
        ops::scale(dy, 1e-3f);
        layer->backward(dy, saved[m], contexts[size_t(m)], WeightGradient::now);
    }
    PredictedCommunication sent = sent_of(statistics);
    add_count_sums(sent, {.config = config, .micro_batch = B, .seq = T}, options, experts.balance(),
                   accumulated);
    EXPECT_TRUE(counted_as_predicted(sent, 1, communication_counts()));
    sum_gradients(parameters, mesh);
    return outcome_of(parameters, experts.balance().end_step(experts.all()));
}

TEST(ExpertsComposed, RanksThatShareAMicroBatchsTokens) {
    use_threads(ranks_on_this_node());
    const Communicator& world = Communicator::world();
    const int n = world.size(), ep = n % 2 == 0 && n > 2 ? 2 : 1;
    if (T % n != 0) GTEST_SKIP() << "the tokens do not divide";
    const Communicator alone = world.split(world.rank(), 0, "one");
    const Mesh one(alone, {{"dp", 1}, {"ep", 1}});
    for (const Cut cut : {Cut::cp, Cut::tp}) {
        const Mesh mesh(world, {{"dp", 1}, {"ep", ep}, {cut == Cut::cp ? "cp" : "tp", n / ep}});
        for (const Aux aux : {Aux::hf, Aux::switch_transformer, Aux::megatron, Aux::sequence})
            for (const double skew : {0.0, 0.3}) {
                ExpertOptions options = with_loss(aux, ep);
                options.skew = skew;
                const SharedTokens shared{.ranks = &world, .tokens = [&](int64_t) {
                                              return tokens_of(cut, world.rank(), n);
                                          }};
                EXPECT_EQ(why_not(options, shared, B, T, 1).empty(),
                          n == 1 || aux != Aux::sequence || cut == Cut::cp);
                if (aux == Aux::sequence && cut == Cut::tp) continue;
                ChoiceLog choices(config, verify_bounds(DType::fp32)), one_rank_choices = choices;
                ExpertOptions apart = options;
                apart.ep = 1;
                const Outcome plain = share(one, apart, Cut::nothing, 2 * ep, one_rank_choices);
                const auto gate = plain.gradients.at("model.layers.0.mlp.gate.weight");
                EXPECT_TRUE(near(share(mesh, options, cut, 2, choices), plain))
                    << aux_names[int(aux)] << " " << skew;
                choices.follow(1), one_rank_choices.follow(1);
                EXPECT_EQ(choices.plain().run_choices, one_rank_choices.plain().run_choices);
                if (world.rank() == 0) {
                    EXPECT_EQ(choices.plain().run_choices.size(), size_t(2 * ep * N));
                }
                if (n / ep == 1) continue;
                EXPECT_FALSE(
                    near(share(mesh, options, cut, 2, choices, Break::counts_alone), plain));
                if (cut == Cut::tp) {
                    EXPECT_FALSE(
                        near(share(mesh, options, cut, 2, choices, Break::not_over_tp), plain));
                }
            }
    }
}

}  // namespace
}  // namespace ultrascale
