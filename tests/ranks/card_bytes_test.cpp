// What crosses between pretended nodes, counted message by message, beside what nodes.h says of
// each call and the planner's formulas of a step: on 8 ranks in nodes of 4 (part of comm_test).
#include "09_5d_parallel/planner/cost.h"
#include "09_5d_parallel/planner/imagined.h"
#include "comm/mpi/slow_links.h"
#include "comm_test.h"
#include "core/threads.h"
#include "tests/only_cards.h"

#define NEEDS_TWO_NODES_OVER_MPI()                     \
    if (world().size() != 8 || !transport::over_mpi()) \
    GTEST_SKIP() << "8 ranks whose messages are counted one by one"

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

constexpr int ranks = 8, on_node = 4;

// Of all ranks together, while it lives.
struct Counted {
    Counted() {
        pretend_nodes(on_node, 1e6);  // so fast that nobody waits
        world().barrier();
        before_ = bytes_between_nodes();
    }
    ~Counted() {
        world().barrier();
        slow_links() = {};
    }
    double bytes() const {
        const int64_t mine = bytes_between_nodes() - before_;
        double all = 0;
        for (const std::string& rank_bytes : world().gather_strings(std::to_string(mine)))
            all += std::stod(rank_bytes);
        return all;
    }

private:
    int64_t before_;
};

TEST(CardBytes, OfEachCall) {
    NEEDS_TWO_NODES_OVER_MPI();
    const int me = world().rank();
    const auto expect = [&](Collective kind, int64_t n, int64_t stride, double S, auto call) {
        const Spread group = Nodes{.ranks = on_node}.spread(n, stride);
        // Every rank sends, but to its neighbour only those at a node's border.
        const double senders = kind == Collective::send_recv ? group.senders * 2 : ranks;
        const Counted counted;
        call();
        EXPECT_EQ(counted.bytes(), senders * bytes_over_card(kind, S, group, Crossing::exchange))
            << collective_names[size_t(kind)] << ", " << n << " ranks " << stride << " apart";
    };
    struct Axis {
        int n, stride;
    };
    for (const auto& [n, stride] : {Axis{8, 1}, {4, 2}, {2, 4}, {4, 1}, {2, 1}}) {
        const Communicator group =
            world().split(me / (n * stride) * stride + me % stride, me, "axis");
        const int64_t slice = 30000, whole = slice * n;  // several chunks of a reduction
        const double S = double(whole) * 4;
        const Tensor x = Tensor::zeros({whole}, DType::fp32, Memory::workspace),
                     y = Tensor::zeros({whole}, DType::fp32, Memory::workspace),
                     part = Tensor::zeros({slice}, DType::fp32, Memory::workspace);
        expect(Collective::all_reduce, n, stride, S, [&] { group.all_reduce(x); });
        expect(Collective::all_gather, n, stride, S, [&] { group.all_gather(x, part); });
        expect(Collective::reduce_scatter, n, stride, S, [&] { group.reduce_scatter(part, x); });
        expect(Collective::all_to_all, n, stride, S, [&] { group.all_to_all(y, x); });
        expect(Collective::send_recv, n, stride, S, [&] {
            const int index = group.rank();
            group.send_recv(
                {{Transfer::send, x, (index + 1) % n}, {Transfer::recv, y, (index + n - 1) % n}});
        });
    }
}

// A step as 09's main takes it in a pipeline; without one it communicates the same.
double bytes_of_step(const Options& options, const StepShape& shape, const Plan& plan) {
    const Techniques techniques = plan.techniques();
    const TokenFile file("common/text.txt", shape.config.vocab);
    const DataLoader loader(file, {.seq = shape.seq});
    Composition all(options, shape, techniques);
    Updater& updates = *all.updates;
    updates.start();
    const DataSlice slice = all.data_slice();
    const int64_t sequences = shape.micro_batch * options.grad_accum * slice.count;
    Step step(loader, slice, 1, 0, sequences);
    const Counted counted;
    updates.begin_step(step.accumulated);
    if (all.experts) all.experts->balance().begin_step();
    all.executor.run(step, &updates);
    updates.end_all_micro_batches();
    updates.step(1e-3F, updates.squared_norm());
    updates.finish();
    compute_stream().synchronize();
    return counted.bytes();
}

TEST(CardBytes, OfAStepAreThePlanners) {
    NEEDS_TWO_NODES_OVER_MPI();
    use_threads(ranks_on_this_node());
    const Nodes nodes{.ranks = on_node, .crossing = Crossing::exchange};
    const ContextOptions gathered{.variant = Variant::all_gather},
        heads{.variant = Variant::ulysses, .layout = Layout::contiguous},
        kept{.backward = RingBackward::kept};
    const ExpertOptions balanced{.aux = Aux::megatron, .force_balance = true};
    const std::array<PlanAxis, 5> tp_far = {PlanAxis::dp, PlanAxis::tp, PlanAxis::cp, PlanAxis::ep,
                                            PlanAxis::pp};
    for (const Plan& plan : std::vector<Plan>{{.dp = 8},
                                              {.dp = 8, .zero = 3},
                                              {.dp = 8, .zero = 1, .states = {.shard_size = 4}},
                                              {.dp = 8, .zero = 3, .states = {.shard_size = 4}},
                                              {.dp = 8, .zero = 3, .states = {.shard_size = 2}},
                                              {.dp = 2, .tp = 4},
                                              {.tp = 8},
                                              {.dp = 4, .tp = 2, .zero = 1, .order = tp_far},
                                              {.cp = 8},
                                              {.cp = 8, .context = kept},
                                              {.tp = 2, .cp = 4, .zero = 1},
                                              {.cp = 8, .context = gathered},
                                              {.cp = 8, .context = heads},
                                              {.dp = 4, .pp = 2, .micro_batches = 2},
                                              {.pp = 8, .micro_batches = 2},
                                              {.ep = 8, .experts = balanced},
                                              {.dp = 2, .ep = 4, .experts = balanced}}) {
        Options options;
        options.grad_accum = plan.micro_batches;
        const bool experts = plan.ep > 1;
        StepShape shape{.config = preset(experts ? "nano-moe" : "nano"),
                        .model = {},
                        .micro_batch = 1,
                        .seq = 128};
        shape.config.layers = std::max<int64_t>(plan.pp, 2);
        MemoryModel memory(shape);
        CostModel model(shape, only_cards(nodes), memory);
        const StepCost cost = model.of(plan);
        const bool ring = plan.cp > 1 && plan.context.variant == Variant::ring;
        const double borders =
            ring ? 2 * nodes.spread(plan.cp, plan.stride(PlanAxis::cp)).senders : ranks;
        double expected = ranks * (cost.tensor + cost.experts + cost.data) + borders * cost.context;
        if (plan.pp > 1) {  // there and back, from all ranks of a stage
            const std::vector<double> links = model.messages(plan);
            for (size_t i = 0; i + 1 < links.size(); ++i)
                expected += 2 * double(plan.micro_batches * ranks / plan.pp) * links[i];
        }
        EXPECT_NEAR(bytes_of_step(options, shape, plan) / expected, 1, 0.03)
            << describe(plan.techniques());
    }
}

}  // namespace
}  // namespace ultrascale
