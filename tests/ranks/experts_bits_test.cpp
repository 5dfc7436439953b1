// Expert parallelism gives the same bits as one rank: the routers' choices, the experts' outputs,
// and so their gradients in the first step. The gradients of replicated parameters are summed over
// ranks, in another order.
#include <gtest/gtest.h>
#include <omp.h>

#include "06_expert_parallel/expert_parallel.h"
#include "core/device.h"
#include "core/threads.h"
#include "tests/test_util.h"
#include "train/gradients.h"

namespace ultrascale {
using namespace ultrascale::expert_parallel;
namespace {

// The numbers of sequences and of experts are divisible by 2, 3, 4 and 8. Every rank's number of
// tokens is a multiple of 12, because OpenBLAS's kernels for AVX2 take 12 rows at a time and sum
// the rest in another order.
constexpr int64_t sequences = 24, T = 12;
const LlamaConfig config{.layers = 2,
                         .hidden = 64,
                         .heads = 4,
                         .kv_heads = 2,
                         .head_dim = 16,
                         .ffn = 48,
                         .vocab = 64,
                         .init_std = 0.1,
                         .experts = {.count = 24, .ffn = 32, .shared = 1, .router = {.top_k = 3}}};

Batch batch_of(Range samples) {
    const auto numbers = [&](int factor) {
        std::vector<int32_t> values;
        for (int64_t i = samples.begin * T; i < samples.end * T; ++i)
            values.push_back(int32_t((i * i + i * factor) % config.vocab));
        return integers(values, {samples.size(), T});
    };
    std::vector<int32_t> positions;
    for (int64_t i = 0; i < samples.size() * T; ++i) positions.push_back(int32_t(i % T));
    return {.tokens = numbers(3),
            .targets = numbers(7),
            .positions = integers(positions, {samples.size(), T}),
            .counted_targets = samples.size() * T,
            .first_sample = samples.begin};
}

// The model on the ranks of a mesh, after one step's backward.
struct Trained1 {
    Trained1(const Mesh& mesh, const ExpertOptions& options, Range samples, bool recompute,
             const LlamaConfig& config = ultrascale::config)
        : experts(config, options, mesh, 1) {
        const ModelOptions model_options{.recompute =
                                             recompute ? Recompute::full : Recompute::none};
        experts.see_dispatch = [&](const Dispatched& d, const Context& context) {
            std::vector<int32_t>& choices = context.recomputing ? again[d.layer] : first[d.layer];
            choices = d.experts.to_host<int32_t>();
        };
        model = std::make_unique<Llama>(config, model_options, experts.factories(model_options),
                                        Stage::whole(config));
        ParameterList& parameters = model->parameters();
        parameters.allocate_values(DType::fp32), parameters.allocate_grads(DType::fp32);
        parameters.initialize(5);
        parameters.begin_gradients();
        experts.balance().begin_step();
        Context context{.batch = batch_of(samples),
                        .token_weight = 1 / float(sequences * T),
                        .loss = Tensor::zeros({1}, DType::fp64, Memory::workspace)};
        Saved saved;
        model->forward({}, saved, context);
        model->backward({}, saved, context);
        sum_gradients(parameters, mesh);
        loss = context.loss.to_host<double>()[0];
        for (const auto& p : parameters) gradients[p->name] = to_double(p->grad);
    }
    ExpertParallel experts;
    std::unique_ptr<Llama> model;
    std::map<int64_t, std::vector<int32_t>> first, again;  // choices by layer
    std::map<std::string, Doubles> gradients;
    double loss;  // this rank's
};

TEST(Experts, SameBitsOnAnyNumberOfRanks) {
    omp_set_num_threads(1), device_use_threads(1);  // OpenBLAS' threads divide a sum
    const Communicator& world = Communicator::world();
    const int n = world.size();
    if (config.experts.count % n != 0) GTEST_SKIP() << "the experts do not divide";
    const Communicator alone = world.split(world.rank(), 0, "alone");
    const Mesh one(alone, {{"dp", 1}, {"ep", 1}}), all(world, {{"dp", 1}, {"ep", n}});
    const Range mine{world.rank() * sequences / n, (world.rank() + 1) * sequences / n};
    for (const bool recompute : {false, true})
        for (const ExpertOverlap overlap :
             {ExpertOverlap::none, ExpertOverlap::gradients, ExpertOverlap::shared}) {
            const Trained1 plain(one, {.ep = 1}, {0, sequences}, recompute),
                shared(all, {.ep = n, .overlap = overlap}, mine, recompute),
                repeated(all, {.ep = n, .overlap = overlap}, mine, recompute);
            const int64_t tokens = mine.size() * T * config.experts.router.top_k;
            for (const auto& [layer, chosen] : shared.first) {
                const auto begin = plain.first.at(layer).begin() + world.rank() * tokens;
                EXPECT_EQ(chosen, std::vector<int32_t>(begin, begin + tokens)) << layer;
                EXPECT_EQ(recompute, shared.again.contains(layer));
                if (recompute) {
                    EXPECT_EQ(chosen, shared.again.at(layer));
                }
            }
            int64_t expert_gradients = 0;
            for (const auto& [name, gradient] : shared.gradients) {
                const bool is_expert = name.find(".experts.") != name.npos;
                expert_gradients += is_expert;
                if (is_expert && !device_is_gpu()) {
                    EXPECT_EQ(gradient, plain.gradients.at(name)) << name;
                } else {  // cuBLAS chooses attention's products by their number of rows
                    EXPECT_LE(relative_error(gradient, plain.gradients.at(name)), 1e-6) << name;
                }
                EXPECT_EQ(gradient, repeated.gradients.at(name)) << name;
            }
            EXPECT_EQ(expert_gradients, config.layers * config.experts.count / n * 3);
        }
}

// The plain dispatch gives the same bits as the general one.
TEST(Experts, PlainDispatchGivesTheSameBits) {
    use_threads(ranks_on_this_node());
    const Communicator& world = Communicator::world();
    const int n = world.size();
    if (n == 1 || config.experts.count % n != 0) GTEST_SKIP() << "nothing travels";
    LlamaConfig no_shared = config;
    no_shared.experts.shared = 0;
    const Mesh all(world, {{"dp", 1}, {"ep", n}});
    const Range mine{world.rank() * sequences / n, (world.rank() + 1) * sequences / n};
    for (const bool recompute : {false, true}) {
        const Trained1 general(all, {.ep = n}, mine, recompute, no_shared),
            plain(all, {.ep = n, .dispatch = Dispatch::plain}, mine, recompute, no_shared);
        EXPECT_EQ(plain.first, general.first);
        EXPECT_EQ(plain.again, general.again);
        EXPECT_EQ(plain.loss, general.loss);
        EXPECT_EQ(plain.gradients.size(), general.gradients.size());
        for (const auto& [name, gradient] : plain.gradients)
            EXPECT_EQ(gradient, general.gradients.at(name)) << name;
    }
}

// The choices for rows that travel in chunks are the same, and the results are equal up to
// rounding: an expert's gradient is added up chunk by chunk, and a product of fewer rows may add in
// another order. With recomputation the bits stay the same. 7 chunks do not divide the tokens
// evenly.
TEST(Experts, InChunks) {
    use_threads(ranks_on_this_node());
    const Communicator& world = Communicator::world();
    const int n = world.size();
    if (n == 1 || config.experts.count % n != 0) GTEST_SKIP() << "nothing travels";
    const Mesh all(world, {{"dp", 1}, {"ep", n}});
    const Range mine{world.rank() * sequences / n, (world.rank() + 1) * sequences / n};
    const Trained1 whole(all, {.ep = n}, mine, false);
    for (const int chunks : {2, 3, 7}) {
        const ExpertOptions options{.ep = n, .overlap = ExpertOverlap::chunks, .chunks = chunks};
        const Trained1 cut(all, options, mine, false), again(all, options, mine, true);
        EXPECT_EQ(cut.first, whole.first);
        EXPECT_NEAR(cut.loss, whole.loss, 1e-7);
        for (const auto& [name, gradient] : cut.gradients) {
            EXPECT_LE(relative_error(gradient, whole.gradients.at(name)), 2e-6) << name;
            EXPECT_EQ(gradient, again.gradients.at(name)) << name;
        }
    }
}

// Rows that travel in fp8 are rounded in the same way on any number of ranks, also where they stay.
TEST(Experts, RowsInFp8GiveTheSameBits) {
    omp_set_num_threads(1), device_use_threads(1);
    const Communicator& world = Communicator::world();
    const int n = world.size();
    if (config.experts.count % n != 0) GTEST_SKIP() << "the experts do not divide";
    LlamaConfig wide = config;
    wide.hidden = 128, wide.head_dim = 32;
    const Communicator alone = world.split(world.rank(), 0, "alone");
    const Mesh one(alone, {{"dp", 1}, {"ep", 1}}), all(world, {{"dp", 1}, {"ep", n}});
    const Range mine{world.rank() * sequences / n, (world.rank() + 1) * sequences / n};
    const Trained1 exact(one, {.ep = 1}, {0, sequences}, false, wide);
    for (const DispatchDtype dtype : {DispatchDtype::fp8, DispatchDtype::fp8_both}) {
        const Trained1 plain(one, {.ep = 1, .dispatch_dtype = dtype}, {0, sequences}, false, wide),
            shared(all, {.ep = n, .dispatch_dtype = dtype}, mine, false, wide),
            by_rank(all, {.ep = n, .dispatch = Dispatch::rank, .dispatch_dtype = dtype}, mine,
                    false, wide);
        for (const auto& [name, gradient] : shared.gradients) {
            // On a GPU a product of fewer rows adds in another order, and a number next to a
            // boundary of fp8 may be rounded the other way; so it may by rank, anywhere.
            if (name.find(".experts.") != name.npos && !device_is_gpu()) {
                EXPECT_EQ(gradient, plain.gradients.at(name)) << name;
            } else {
                EXPECT_LE(relative_error(gradient, plain.gradients.at(name)),
                          device_is_gpu() ? 1e-3 : 1e-6)
                    << name;
            }
            EXPECT_LE(relative_error(by_rank.gradients.at(name), gradient), 1e-2) << name;
            EXPECT_GT(relative_error(gradient, exact.gradients.at(name)), 1e-4) << name;
        }
        EXPECT_NEAR(plain.loss, exact.loss, 5e-3);
    }
}

// Sending one copy per rank instead of one per expert gives the same results up to rounding, and so
// do two hops over nodes. The number of rows that travel follows from the tokens' choices.
TEST(Experts, OneCopyForEachRank) {
    use_threads(ranks_on_this_node());
    const Communicator& world = Communicator::world();
    const int n = world.size();
    if (config.experts.count % n != 0) GTEST_SKIP() << "the experts do not divide";
    const Mesh all(world, {{"dp", 1}, {"ep", n}});
    const Range mine{world.rank() * sequences / n, (world.rank() + 1) * sequences / n};
    const Trained1 expert(all, {.ep = n}, mine, false);
    for (const int nodes : {0, 2}) {
        if (nodes > 0 && n % 2 != 0) continue;
        const Trained1 rank(all,
                            {.ep = n,
                             .dispatch = Dispatch::rank,
                             .max_nodes = nodes,
                             .node_size = nodes > 0 ? n / 2 : 0},
                            mine, false);
        EXPECT_EQ(rank.first, expert.first);
        for (const auto& [name, gradient] : rank.gradients)
            EXPECT_LE(relative_error(gradient, expert.gradients.at(name)), 2e-6) << name;
    }
}

}  // namespace
}  // namespace ultrascale
