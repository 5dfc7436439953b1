// Breaks chapter 06's plain dispatch on purpose, one mistake at a time, and expects --verify to
// fail (part of comm_test). The mistakes concern how rows travel, and over which ranks which
// gradients are summed. An expert's gradient contains all tokens of its group and is summed over
// "dp" only, any other over "dp" and "ep": by sum_gradients, or in buckets during the backward
// (01).
#include <gtest/gtest.h>

#include "01_data_parallel/3_buckets.h"
#include "06_expert_parallel/lab/expert_run.h"
#include "06_expert_parallel/lab/one_device_experts.h"
#include "core/threads.h"
#include "train/gradients.h"
#include "train/run.h"

namespace ultrascale {
using namespace ultrascale::data_parallel;
using namespace ultrascale::expert_parallel;
namespace {

constexpr int64_t T = 16, A = 4, steps = 4;

// A token chooses two of four experts. With `idle_experts` it chooses one: a forced router always
// chooses expert 0, so that the other experts never have a row.
struct Case {
    bool idle_experts;
    LlamaConfig config() const {
        return {.layers = 3,
                .hidden = 32,
                .heads = 4,
                .kv_heads = 2,
                .head_dim = 8,
                .ffn = 48,
                .vocab = 256,
                .init_std = 0.1,
                .experts = {.count = 4,
                            .ffn = 48,
                            .first_dense = 1,
                            .router = {.top_k = idle_experts ? 1 : 2}}};
    }
    ExpertOptions options() const {
        return {.ep = 2, .dispatch = Dispatch::plain, .skew = idle_experts ? 1.0 : 0.0};
    }
};

enum class Break {
    nothing,
    // how rows travel
    not_by_expert,      // rows stay in the order in which they came
    not_as_they_came,   // results go back in the experts' order
    weights_of_one,     // the routers' weights do not arrive
    no_weights_return,  // nor do their gradients
    only_there,         // other ranks' results do not arrive
    // which gradients are summed
    sum_over_ep,
    not_over_dp,
    norm_lacks_experts,
    forget_idle,  // an expert without rows reports no contribution
};

class BrokenTrips : public RowTrips {
public:
    BrokenTrips(Break wrong, const Communicator& ep) : RowTrips(ep, 4), wrong_(wrong) {}

    Tensor there(Tensor rows, const Trip& trip) const override {
        const bool weights = rows.cols() == 1;
        const Tensor in = RowTrips::there(std::move(rows), trip);
        if (wrong_ == Break::weights_of_one && weights) ops::fill(in, 1);
        return wrong_ == Break::not_by_expert ? trip.by_expert->as_they_came(in) : in;
    }
    Tensor back(Tensor rows, const Trip& trip) const override {
        const bool weights = rows.cols() == 1;
        if (wrong_ == Break::not_as_they_came) rows = trip.by_expert->in_order(rows);
        const Tensor home = RowTrips::back(std::move(rows), trip);
        if (wrong_ == Break::no_weights_return && weights) ops::fill(home, 0);
        int64_t row = 0;
        for (int r = 0; r < 2; ++r) {
            const int64_t end = row + trip.sizes.to[size_t(r)];
            if (wrong_ == Break::only_there && r != ep().rank()) ops::fill(home.slice(row, end), 0);
            row = end;
        }
        return home;
    }

private:
    Break wrong_;
};

// Flags: verify succeeded; the bytes sent are as predicted; some expert had no row in a step.
enum Passed { verified = 1, sent_as_predicted = 2, idle = 4 };
int train(bool bucketed, const Case& of, Break wrong = Break::nothing) {
    testing::internal::CaptureStdout();
    use_threads(ranks_on_this_node());
    const Communicator& world = Communicator::world();
    const Mesh mesh(world, {{"dp", world.size() / 2}, {"ep", 2}});
    const Communicator& ep = mesh.group("ep");
    Options options;
    options.steps = steps, options.micro_batch = 1, options.grad_accum = A, options.verify = true;
    // With so large an eps an update depends on the size of the gradient, and so on the norm that
    // clips it.
    options.optimizer.clip = 0.5, options.optimizer.eps = 1e-3;
    const LlamaConfig config = of.config();
    const ExpertOptions chosen = of.options();
    const StepShape shape{.config = config, .micro_batch = 1, .seq = T};
    ExpertParallel experts(config, chosen, mesh, A);
    ModuleFactories factories = experts.factories({});
    set_experts(
        factories, config, {},
        [&](ParameterList& list, const ModuleFactories&, const ModulePath& layer) {
            const ModulePath block = layer.part(expert_names(config).block);
            auto router = std::make_unique<Router>(list, block, config, chosen, experts.balance());
            return std::make_unique<PlainDispatch>(
                std::move(router),
                experts_of_rank(list, block, config, neighbouring_experts(4, ep)),
                std::make_unique<BrokenTrips>(wrong, ep), experts.see_dispatch, layer.layer);
        });
    Llama model(config, {}, factories, Stage::whole(config));
    ParameterList& parameters = model.parameters();
    const auto is_expert = [](const Parameter& p) { return p.name.find("expert") != p.name.npos; };
    const auto split_experts_over = [&](const std::vector<std::string>& axes) {
        for (const auto& p : parameters)
            if (is_expert(*p)) p->split_over = axes;
    };
    if (wrong == Break::sum_over_ep) split_experts_over({});
    if (wrong == Break::not_over_dp) split_experts_over({"dp", "ep"});
    parameters.allocate_values(DType::fp32), parameters.allocate_grads(DType::fp32);
    BucketSync buckets(parameters, mesh, 1 << 30);  // a bucket ends where the group changes
    if (wrong == Break::norm_lacks_experts) split_experts_over({});  // after the buckets were made
    if (wrong == Break::forget_idle)
        for (const auto& p : parameters) p->uses += is_expert(*p);
    PlainUpdater optimizer(parameters, options, &mesh);
    Run run("broken", options, shape,
            {.micro_batch = 1, .count = world.size(), .replica = world.rank()});
    run.load(optimizer.start());
    ChoiceLog choices(config, verify_bounds(DType::fp32));
    ExpertRun seen(shape, chosen, experts, &choices);
    TrainingSetup what = training_setup(model, optimizer);
    what.plain_parts = plain_parts(shape, chosen, A * world.size(), choices);
    what.choices = &choices, what.plain_micro_batch = 1;
    what.step_done = [&](const Step&, double) { choices.end_step(); };
    run.start(what);
    while (Step* step = run.next()) {
        parameters.begin_gradients(A);
        experts.begin_step(*step, model);
        for (MicroBatch context : step->micro_batches({bucketed ? &buckets : nullptr})) {
            Saved saved;
            model.forward(context, saved);
            model.backward(context, saved);
        }
        bucketed ? buckets.finish() : sum_gradients(parameters, mesh);
        const Tensor squared = optimizer.squared_norm();
        optimizer.step(step->learning_rate, squared);
        step->sum_loss(world);
        experts.end_step();
        step->finish(squared);
    }
    PredictedCommunication sent;             // in a step; then for the experts, in all
    sent.add_scalar_sum(world);              // the loss
    sent.add_scalar_sum(mesh.norm_group());  // the norm
    add_loads(sent, chosen, experts.balance(), experts.all());
    const Communicator* former = nullptr;
    for (const auto& p : parameters) {
        const Communicator& group = is_expert(*p) ? mesh.group("dp") : mesh.group({"dp", "ep"});
        if (group.size() > 1)
            sent.add(group, Collective::all_reduce, !bucketed || &group != former, p->grad.bytes());
        former = &group;
    }
    sent = sent.times(steps);
    sent += seen.travelled();
    // Computed by hand for the case in which all tokens go to expert 0: rank 1 sends T rows of 32
    // numbers with their weights, and as many rows of gradients; rank 0 sends as much back. Each
    // tells the other the counts of two experts.
    if (of.idle_experts) {
        PredictedCommunication travelled = seen.travelled();
        const auto& all_to_all = travelled.groups.at("ep")[size_t(Collective::all_to_all)];
        const double layers = double(config.layers - config.experts.first_dense);
        EXPECT_NEAR(all_to_all.sent, steps * A * layers * (2 * T * 32 * 4 + T * 4 + 2 * 4), 1);
    }
    const bool as_predicted = counted_as_predicted(sent, 1, communication_counts());
    const bool as_one_device = run.finish([](Report&) { return true; });
    bool some_idle = false;
    for (const StepLoads& loads : seen.loads())
        for (const std::vector<float>& load : loads.by_layer)
            some_idle = some_idle || *std::ranges::min_element(load) == 0;
    testing::internal::GetCapturedStdout();
    return as_one_device * verified + on_all_ranks(world, as_predicted) * sent_as_predicted +
           some_idle * idle;
}

TEST(PlainDispatchBreak, TrainsAsOneDevice) {
    const int ranks = Communicator::world().size();
    if (ranks % 2 != 0) GTEST_SKIP() << "experts on two ranks";
    for (const bool bucketed : {false, true}) {
        EXPECT_EQ(train(bucketed, {false}) & ~idle, verified + sent_as_predicted);
        EXPECT_EQ(train(bucketed, {true}), verified + sent_as_predicted + idle);
    }
}

TEST(PlainDispatchBreak, HowRowsTravel) {
    if (Communicator::world().size() % 2 != 0) GTEST_SKIP() << "experts on two ranks";
    for (const Break wrong : {Break::not_by_expert, Break::not_as_they_came, Break::weights_of_one,
                              Break::no_weights_return, Break::only_there})
        EXPECT_EQ(train(false, {false}, wrong) & ~idle, sent_as_predicted) << int(wrong);
}

TEST(PlainDispatchBreak, WhichGradientsAreSummed) {
    const int ranks = Communicator::world().size();
    if (ranks % 2 != 0) GTEST_SKIP() << "experts on two ranks";
    for (const bool bucketed : {false, true}) {
        EXPECT_EQ(train(bucketed, {false}, Break::sum_over_ep) & ~idle, 0);
        if (ranks > 2) {
            EXPECT_EQ(train(bucketed, {false}, Break::not_over_dp) & ~idle, 0);
        }
    }
    EXPECT_EQ(train(true, {false}, Break::norm_lacks_experts) & ~idle, sent_as_predicted);
    EXPECT_THROW(train(false, {true}, Break::forget_idle), std::logic_error);
    testing::internal::GetCapturedStdout();
}

}  // namespace
}  // namespace ultrascale
