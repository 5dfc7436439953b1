// A sketch of chapter 06 on what common/ has, kept as a test: two experts take the place of each
// feed-forward, one on each rank of "ep". Tokens travel to their expert and back. So an expert's
// gradient is of both ranks' tokens and is summed over "dp" only, any other over "dp" and "ep".
//
//     ep 0   rows --.-- all-to-all --.--> expert 0 --.-- all-to-all --.--> rows + residual
//     ep 1   rows --'                '--> expert 1 --'                '--> rows + residual
#include <gtest/gtest.h>

#include "01_data_parallel/3_buckets.h"
#include "core/threads.h"
#include "lab/predict/prediction.h"
#include "model/activation.h"
#include "train/run.h"

namespace ultrascale {
using namespace ultrascale::data_parallel;
namespace {

constexpr int64_t T = 16, A = 4, steps = 4, h = 32, F = 48;
const LlamaConfig config{.layers = 3,
                         .hidden = h,
                         .heads = 4,
                         .kv_heads = 2,
                         .head_dim = 8,
                         .ffn = F,
                         .vocab = 256,
                         .init_std = 0.1};

// Instead of a router: how many rows of a sample go to an expert. The first ones go to expert 0.
// Layer 1 sends all of the first four samples to expert 1 and all later ones to expert 0: an expert
// has no rows in some micro-batches, expert 1 in whole steps. In layer 2 it never has any.
int64_t rows_to(int expert, int64_t layer, int64_t sample) {
    const int64_t to_0 = layer == 0 ? 5 + sample % 3 * 4 : layer == 1 && sample < 4 ? 0 : T;
    return expert == 0 ? to_0 : T - to_0;
}

// What is done wrong.
enum class Break { nothing, sum_over_ep, not_over_dp, norm_lacks_experts, forget_idle };

class Experts : public FeedForward {
public:
    // A rank of `ep` holds one of the layer's experts; without `ep` it holds both.
    Experts(ParameterList& list, const ModuleFactories& factories, const ModulePath& layer,
            const Communicator* ep = nullptr, Break wrong = Break::nothing)
        : layer_(layer.layer), ep_(ep), wrong_(wrong) {
        for (int e : ep ? std::vector{ep->rank()} : std::vector{0, 1}) {
            const ModulePath place = layer.part(fmt::format("mlp.experts.{}", e));
            auto gate_up = factories.linear(list, factories, place, LinearRole::column,
                                            {{{"gate_proj", F}, {"up_proj", F}}, h});
            auto down =
                factories.linear(list, factories, place, LinearRole::row, {{{"down_proj", h}}, F});
            std::vector<Parameter*> all = gate_up->parameters();
            all.push_back(down->parameters().front());
            for (Parameter* p : all) p->split_over = {"ep"};
            experts_.push_back({place.name, all, {std::move(gate_up), std::move(down)}});
        }
    }
    Tensor forward(const Tensor& x, const Tensor& residual, Saved& saved, Context& c) override {
        const Tensor y = through_experts(x, c.batch, [&](Expert& expert, const Tensor& in) {
            return expert.mlp.forward(in, {}, saved[expert.name], c);
        });
        ops::add(y, residual);
        return y;
    }
    // A row's gradient takes the same way as the row.
    Tensor backward(const Tensor& dy, Saved& saved, Context& c, WeightGradient when) override {
        const Tensor dx = through_experts(dy, c.batch, [&](Expert& expert, const Tensor& dout) {
            return expert.mlp.backward(dout, saved[expert.name], c, WeightGradient::later);
        });
        if (when == WeightGradient::now) backward_weight(saved, c);
        return dx;
    }
    void backward_weight(Saved& saved, Context& c) override {
        for_each(rows(c.batch), [&](Expert& expert, Range of) {
            if (of.size() > 0) return expert.mlp.backward_weight(saved[expert.name], c);
            for (Parameter* p : expert.parameters)
                if (wrong_ != Break::forget_idle) c.contributed(*p);
        });
    }

private:
    struct Expert {
        std::string name;
        std::vector<Parameter*> parameters;
        SwiGLU mlp;
    };
    struct Rows {
        int64_t to[2], from[2];  // to each expert; from each rank of `ep`
    };
    Rows rows(const Batch& batch) const {
        const int me = ep_ ? ep_->rank() : 0;
        const int64_t mine = batch.first_sample, first = mine - me;
        return {{rows_to(0, layer_, mine), rows_to(1, layer_, mine)},
                {rows_to(me, layer_, first), rows_to(me, layer_, first + 1)}};
    }
    // Calls f(expert, its rows of those that came in) for each one here.
    void for_each(const Rows& n, const std::function<void(Expert&, Range)>& f) {
        if (ep_) return f(experts_[0], {0, n.from[0] + n.from[1]});
        f(experts_[0], {0, n.to[0]}), f(experts_[1], {n.to[0], T});
    }
    // The results of `run` for the rows of x, each computed where its expert is.
    Tensor through_experts(const Tensor& x, const Batch& batch, auto run) {
        const Rows n = rows(batch);
        const Tensor in = exchange(x.view({T, h}), n.to, n.from), out = activation_like(in);
        for_each(n, [&](Expert& expert, Range of) {
            if (of.size() > 0)
                ops::copy(out.slice(of.begin, of.end), run(expert, in.slice(of.begin, of.end)));
        });
        return exchange(out, n.from, n.to).view(x.shape());
    }
    Tensor exchange(const Tensor& x, const int64_t* to, const int64_t* from) const {
        if (!ep_) return x;
        const Tensor y = activation({from[0] + from[1], h}, x.dtype());
        ep_->all_to_all(y, x, {to[0] * h, to[1] * h}, {from[0] * h, from[1] * h});
        return y;
    }
    int64_t layer_;
    const Communicator* ep_;
    Break wrong_;
    std::vector<Expert> experts_;
};

enum Passed { verified = 1, sent_as_predicted = 2 };
int train(bool bucketed, Break wrong = Break::nothing) {
    testing::internal::CaptureStdout();
    use_threads(ranks_on_this_node());
    const Communicator& world = Communicator::world();
    const Mesh mesh(world, {{"dp", world.size() / 2}, {"ep", 2}});
    const Communicator& ep = mesh.group("ep");
    Options options;
    options.steps = steps, options.micro_batch = 1, options.grad_accum = A, options.verify = true;
    // With so large an eps an update depends on the gradient's size, and so on the norm that clips
    // it.
    options.optimizer.clip = 0.5, options.optimizer.eps = 1e-3;
    ModuleFactories factories = default_factories(config, {});
    factories.feed_forward = [&](auto&... at) {
        return std::make_unique<Experts>(at..., &ep, wrong);
    };
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
    if (wrong == Break::norm_lacks_experts) split_experts_over({});  // not of the buckets
    PlainUpdater optimizer(parameters, options, &mesh);
    Run run("sketch", options, {.config = config, .micro_batch = 1, .seq = T},
            {.micro_batch = 1, .count = world.size(), .replica = world.rank()});
    run.load(optimizer.start());
    TrainingSetup what = training_setup(model, optimizer);
    const auto all_here = [](auto&... at) { return std::make_unique<Experts>(at...); };
    what.plain_parts = [&](ModuleFactories& factories) { factories.feed_forward = all_here; };
    what.plain_micro_batch = 1;
    run.start(what);
    while (Step* step = run.next()) {
        parameters.begin_gradients(A);
        for (MicroBatch context : step->micro_batches({bucketed ? &buckets : nullptr})) {
            Saved saved;
            model.forward({}, saved, context);
            model.backward({}, saved, context);
        }
        bucketed ? buckets.finish() : sum_gradients(parameters, mesh);
        const Tensor squared = optimizer.squared_norm();
        optimizer.step(step->learning_rate, squared);
        world.all_reduce(step->loss);
        step->finish(squared);
    }
    PredictedCommunication sent;                    // in a step; then for the experts, in all
    sent.add(world, Collective::all_reduce, 1, 8);  // the loss
    sent.add(mesh.norm_group(), Collective::all_reduce, 1, 8);  // the norm
    const Communicator* former = nullptr;
    for (const auto& p : parameters) {
        const Communicator& group = is_expert(*p) ? mesh.group("dp") : mesh.group({"dp", "ep"});
        if (group.size() > 1)
            sent.add(group, Collective::all_reduce, !bucketed || &group != former, p->grad.bytes());
        former = &group;
    }
    sent = sent.times(steps);
    for (int64_t i = 0; i < steps * A * config.layers; ++i) {  // there and back, both backwards
        const int64_t layer = i % config.layers, m = i / config.layers;
        const int64_t first = m * world.size() + world.rank() - ep.rank();
        const auto in = [&](int from) { return rows_to(ep.rank(), layer, first + from); };
        const int64_t all = T + in(0) + in(1), away = all - 2 * in(ep.rank());
        sent.add(ep, Collective::all_to_all, {4, 2 * all * h * 4, double(2 * away * h * 4)});
    }
    const bool as_predicted = counted_as_predicted(sent, 1, communication_counts());
    const bool as_one_device = run.finish([](Report&) { return true; });
    testing::internal::GetCapturedStdout();
    return as_one_device * verified + on_all_ranks(world, as_predicted) * sent_as_predicted;
}

TEST(SketchExperts, TrainAsOneDevice) {
    const int ranks = Communicator::world().size();
    if (ranks % 2 != 0) GTEST_SKIP() << "two experts on as many ranks";
    for (const bool bucketed : {false, true}) {
        EXPECT_EQ(train(bucketed), verified + sent_as_predicted);
        EXPECT_EQ(train(bucketed, Break::sum_over_ep), 0);
        if (ranks > 2) {
            EXPECT_EQ(train(bucketed, Break::not_over_dp), 0);
        }
    }
    EXPECT_EQ(train(true, Break::norm_lacks_experts), sent_as_predicted);
    if (ranks <= 4) {  // of more ranks some have no idle expert in the first step, and would wait
        EXPECT_THROW(train(false, Break::forget_idle), std::logic_error);
        testing::internal::GetCapturedStdout();
    }
}

}  // namespace
}  // namespace ultrascale
