// A sketch of chapter 04 on what common/ has, kept as a test: ring attention and data parallelism.
//
// Each sequence is cut over cp. Queries stay; keys and values go round the ring, and a rank attends
// to those it holds while they travel on. In backward their gradients follow them, with one hop
// more, which brings them home.
//
//     hop            0       1       2      in brackets: later than all of this rank's queries
//     rank 0         k0     (k2)    (k1)
//     rank 1         k1      k0     (k2)
//     rank 2         k2      k1      k0
#include <gtest/gtest.h>

#include <cmath>

#include "01_data_parallel/lab/predict.h"
#include "core/threads.h"
#include "model/activation.h"
#include "train/run.h"

namespace ultrascale {
using namespace ultrascale::data_parallel;
namespace {

constexpr int64_t T = 16, B = 2, A = 2, steps = 4;
const LlamaConfig config{.layers = 2,
                         .hidden = 32,
                         .heads = 4,
                         .kv_heads = 2,
                         .head_dim = 8,
                         .ffn = 48,
                         .vocab = 256,
                         .tied = true};

enum class Break { none, sum_over_dp_only, forget_block, never_home };  // what is done wrong

Tensor zeros_like(const Tensor& x) {
    return Tensor::zeros(x.shape(), DType::fp32, Memory::activation);
}

// Merges the (o, lse) of another block of keys into (o, lse). On the host; the chapter will need a
// kernel.
void merge(Tensor o, Tensor lse, const Tensor& o_block, const Tensor& lse_block) {
    std::vector<float> sum = o.to_host<float>(), all = lse.to_host<float>();
    const std::vector<float> more = o_block.to_host<float>(), block = lse_block.to_host<float>();
    const size_t length = size_t(o.size(1)), H = size_t(o.size(2)), D = size_t(o.size(3));
    for (size_t row = 0; row < all.size(); ++row) {  // of lse (B, H, T); o is (B, T, H, D)
        if (block[row] == -INFINITY) continue;       // this query sees no key of the block
        const size_t bh = row / length, bt = bh / H * length + row % length;
        const size_t first = (bt * H + bh % H) * D;
        const float apart = all[row] - block[row], slice = 1 / (1 + std::exp(apart));
        for (size_t i = first; i < first + D; ++i) sum[i] += slice * (more[i] - sum[i]);
        all[row] = std::max(all[row], block[row]) + std::log1p(std::exp(-std::abs(apart)));
    }
    o.copy_from_host(sum.data()), lse.copy_from_host(all.data());
}

class RingAttention : public AttentionCore {  // all of it in fp32
public:
    RingAttention(const Communicator& cp, Stream& stream, Break broken)
        : cp_(cp), stream_(stream), n_(cp.size()), rank_(cp.rank()), broken_(broken) {}

    Tensor forward(const Tensor& q, const Tensor& k, const Tensor& v, Saved& saved,
                   Context&) override {
        const Tensor o = zeros_like(q), o_block = activation_like(q),
                     lse = activation({q.size(0), q.size(2), q.size(1)}, DType::fp32),
                     lse_block = activation_like(lse);
        ops::fill(lse, -INFINITY);
        go_round({k, v}, [&](int owner, const KeysValues& held) {
            if (!sees(owner)) return;
            ops::attention_forward(o_block, lse_block, q, held.k, held.v, mask(q, owner));
            merge(o, lse, o_block, lse_block);
        });
        saved.keep("q", q), saved.keep("k", k), saved.keep("v", v);
        saved.keep("o", o), saved.keep("lse", lse);
        return o;
    }
    Gradients backward(const Tensor& dout, Saved& saved, Context&) override {
        const Tensor q = saved.take("q"), k = saved.take("k"), v = saved.take("v"),
                     lse = saved.take("lse"), delta = activation_like(lse), dq = zeros_like(q);
        ops::attention_delta(delta, dout, saved.take("o"));
        const Gradients of{activation_like(q), activation_like(k), activation_like(v)};
        KeysValues sums{zeros_like(k), zeros_like(v)};  // the gradients of what is held
        Work under_way;
        go_round({k, v}, [&](int owner, const KeysValues& held) {
            if (sees(owner))
                ops::attention_backward(of.dq, of.dk, of.dv, dout, q, held.k, held.v, lse, delta,
                                        mask(q, owner));
            under_way.wait();  // now the sums of the ranks before this one are here
            if (sees(owner)) ops::add(dq, of.dq), ops::add(sums.k, of.dk), ops::add(sums.v, of.dv);
            if (broken_ == Break::never_home && owner == (rank_ + 1) % n_) return;
            sums = pass_on(sums, under_way);
        });
        under_way.wait();
        return {dq, sums.k, sums.v};
    }

private:
    struct KeysValues {
        Tensor k, v;
    };
    // Calls block(owner, held) for the keys and values of all ranks, its own first.
    void go_round(KeysValues held, const std::function<void(int, const KeysValues&)>& block) const {
        Work under_way;
        for (int hop = 0; hop < n_; ++hop) {
            const KeysValues next = hop + 1 < n_ ? pass_on(held, under_way) : held;
            block((rank_ + n_ - hop) % n_, held);
            under_way.wait();
            held = next;
        }
    }
    // Returns where those of the previous rank will be.
    KeysValues pass_on(const KeysValues& held, Work& under_way) const {
        const KeysValues next{activation_like(held.k), activation_like(held.v)};
        const int to = (rank_ + 1) % n_, from = (rank_ + n_ - 1) % n_;
        under_way = cp_.send_recv({{Transfer::send, held.k, to},
                                   {Transfer::send, held.v, to},
                                   {Transfer::recv, next.k, from},
                                   {Transfer::recv, next.v, from}},
                                  stream_);
        return next;
    }
    bool sees(int owner) const {
        return owner <= rank_ && !(broken_ == Break::forget_block && owner == rank_ - 1);
    }
    ops::AttentionMask mask(const Tensor& q, int owner) const {
        return {.q_offset = rank_ * q.size(1), .k_offset = owner * q.size(1)};
    }
    const Communicator& cp_;
    Stream& stream_;
    const int n_, rank_;
    const Break broken_;
};

// Which tokens of each sequence a rank of cp takes.
HostBatch part_of(const HostBatch& whole, const Communicator& cp) {
    const int64_t length = whole.length / cp.size();
    HostBatch part{.sequences = whole.sequences, .length = length};
    for (const auto of : {&HostBatch::tokens, &HostBatch::targets, &HostBatch::positions})
        for (int64_t b = 0; b < whole.sequences; ++b) {
            const auto begin = (whole.*of).begin() + b * whole.length + cp.rank() * length;
            (part.*of).insert((part.*of).end(), begin, begin + length);
        }
    return part;
}

// The loss of the first samples of the training's text, as --val-data has it.
double loss_of_text(Llama& model, const DataSlice& slice, const Communicator* cp) {
    const TokenFile file("common/text.txt", config.vocab);
    const auto forward = [&](Context& context) {
        Saved nothing;
        model.forward({}, nothing, context);
    };
    const DataLoader text(file, {.seq = T});
    return validation_loss(forward, text, {0, 8}, B, cp, slice.part).mean();
}
double plain_loss_of_text(ParameterList& parameters) {
    Llama whole(config, {});
    whole.parameters().allocate_values(DType::fp32);
    ops::copy(whole.parameters().flat_values(), parameters.flat_values());
    return loss_of_text(whole, {.micro_batch = B}, nullptr);
}

using Checks = std::pair<bool, bool>;  // verified; all ranks sent what the formulas say
Checks train(int ring_size, bool buckets, Break broken = Break::none) {
    testing::internal::CaptureStdout();
    use_threads(ranks_on_this_node());
    const Communicator& world = Communicator::world();
    const Mesh mesh(world, {{"dp", world.size() / ring_size}, {"cp", ring_size}});
    const Communicator &dp = mesh.group("dp"), &cp = mesh.group("cp");
    Options options;
    options.steps = steps, options.micro_batch = B, options.grad_accum = A, options.verify = true;
    const StepShape shape{.config = config, .model = {}, .micro_batch = B, .seq = T};
    Stream ring("ring");
    ModuleFactories factories = default_factories(config, {});
    factories.attention = [&](auto&) { return std::make_unique<RingAttention>(cp, ring, broken); };
    Llama model(config, {}, factories, Stage::whole(config));
    ParameterList& parameters = model.parameters();
    if (broken == Break::sum_over_dp_only)
        parameters.find("model.layers.1.mlp.up_proj.weight")->split_over = {"cp"};
    parameters.allocate_values(DType::fp32), parameters.allocate_grads(DType::fp32);
    PlainUpdater optimizer(parameters, options, &mesh);
    const DataSlice slice{.micro_batch = B,
                          .count = dp.size(),
                          .replica = dp.rank(),
                          .part = [&](const HostBatch& whole) { return part_of(whole, cp); }};
    Run run("sketch", options, shape, slice);
    run.load(optimizer.start());
    BucketSync sync(parameters, mesh, 5000);
    run.start(training_setup(model, optimizer));
    while (Step* step = run.next()) {
        parameters.begin_gradients(A);
        for (MicroBatch micro_batch : step->micro_batches({buckets ? &sync : nullptr})) {
            Saved saved;
            model.forward({}, saved, micro_batch);
            model.backward({}, saved, micro_batch);
        }
        buckets ? sync.finish() : sum_gradients(parameters, mesh);
        const Tensor squared = optimizer.squared_norm();  // nothing is sent for it
        optimizer.step(step->learning_rate, squared);
        world.all_reduce(step->loss);
        step->finish(squared);
    }
    Prediction step_prediction;
    PredictedCommunication& sent = step_prediction.communication;
    if (buckets) add_sums(step_prediction, sync, parameters, mesh, DType::fp32);
    for (const auto& p : parameters)
        if (const Communicator& group = data_group(mesh, *p); !buckets && group.size() > 1)
            sent.add(group, Collective::all_reduce, 1, p->grad.bytes());
    const int64_t hops = config.layers * A * (2 * (ring_size - 1) + ring_size);  // k, v; dk, dv
    sent.add(cp, Collective::send_recv, hops, hops * 2 * B * T / ring_size * config.kv_size() * 4);
    sent.add(world, Collective::all_reduce, 1, 8);  // the loss
    const bool as_predicted =
        on_all_ranks(world, counted_as_predicted(sent, steps, communication_counts()));
    const bool verified = run.finish([](Report&) { return true; });
    if (broken == Break::none) {
        EXPECT_NEAR(loss_of_text(model, slice, &cp), plain_loss_of_text(parameters), 1e-5);
    }
    testing::internal::GetCapturedStdout();
    return {verified, as_predicted};
}

TEST(SketchRing, EqualsOneDeviceUnlessBroken) {
    const int ranks = Communicator::world().size();
    if (ranks % 2 != 0) GTEST_SKIP() << "rings of two ranks";
    for (const bool buckets : {false, true}) {
        EXPECT_EQ(train(2, buckets), Checks(true, true));
        EXPECT_EQ(train(ranks % 4 == 0 ? 4 : 2, buckets), Checks(true, true));
        // The prediction uses the same wrong description.
        EXPECT_EQ(train(2, buckets, Break::sum_over_dp_only), Checks(false, true));
        EXPECT_EQ(train(2, buckets, Break::never_home), Checks(false, false));
        EXPECT_EQ(train(2, buckets, Break::forget_block), Checks(false, true));
    }
}

}  // namespace
}  // namespace ultrascale
