// Breaks a run on purpose, one part at a time, and sees --verify or the memory check fail.
#include "train/verify.h"

#include <gtest/gtest.h>

#include "core/trace.h"
#include "train/gradients.h"
#include "train/setup.h"

namespace ultrascale {
namespace {

struct Checks {
    bool verified, memory;
    std::string printed = "";  // by verify
};

constexpr int64_t T = 24, B = 2;

// What is trained.
struct Setting {
    LlamaConfig config{.layers = 2,
                       .hidden = 32,
                       .heads = 4,
                       .kv_heads = 2,
                       .head_dim = 8,
                       .ffn = 48,
                       .vocab = 256};
    DType dtype = DType::fp32;
    double lr = 1e-3;
    int64_t steps = 3, warmup = 0;
};

// What a chapter's main does, with a model whose parts `change` has changed; the numbers break the
// step itself.
Checks train(const std::function<void(Parts&)>& change, double loss_scale = 1, double lr_scale = 1,
             int64_t shifted_samples = 0, const Setting& setting = {}) {
    Options options;
    options.optimizer.lr = setting.lr;
    options.optimizer.warmup = setting.warmup;
    options.dtype = setting.dtype;
    const LlamaConfig& config = setting.config;
    const StepShape shape{.config = config,
                          .model = {.dtype = setting.dtype},
                          .grad_dtype = setting.dtype,
                          .micro_batch = B,
                          .seq = T};
    const TokenFile file("common/text.txt", config.vocab);
    const DataLoader loader(file, {.seq = T});

    Parts parts = default_parts(config, shape.model);
    change(parts);
    Llama model(config, shape.model, parts, Stage::whole(config));
    model.parameters().allocate_values(setting.dtype);
    model.parameters().allocate_grads(setting.dtype);
    model.parameters().initialize(options.seed);
    AdamW optimizer(model.parameters(), options.optimizer);
    const std::vector<int64_t> sizes(size_t(setting.steps), 2 * B);
    Checks checks{};
    {
        testing::internal::CaptureStdout();
        Verifier verifier(options, config, loader, sizes);
        testing::internal::GetCapturedStdout();
        Report report("test", options, shape, setting.steps);
        memory_reset_peak();
        for (int64_t step = 0; step < setting.steps; ++step) {
            model.parameters().begin_gradients(2);
            const Tensor loss = Tensor::zeros({1}, DType::fp64, Memory::workspace);
            for (int64_t m = 0; m < 2; ++m) {
                const Batch batch =
                    to_device(loader.batch((2 * step + m) * B + shifted_samples, B));
                Context context{.batch = batch,
                                .token_weight = float(loss_scale / double(2 * B * T)),
                                .loss = loss,
                                .micro_batch = int(m)};
                Saved saved;
                model.forward({}, saved, context);
                model.backward({}, saved, context);
            }
            if (step == 0) verifier.gradient(model.parameters().parts(&Parameter::grad));
            optimizer.step(learning_rate(options.optimizer, step) * lr_scale,
                           squared_gradient_norm(model.parameters()));
            verifier.after_step(step, loss.to_host<double>()[0],
                                model.parameters().parts(&Parameter::value));
        }
        testing::internal::CaptureStdout();
        checks.verified = verifier.finish(report);
        checks.printed = testing::internal::GetCapturedStdout();
        testing::internal::CaptureStdout();
        checks.memory = report.memory(predict_one_device(shape, model.parameters().local_numel()));
        testing::internal::GetCapturedStdout();
    }
    return checks;
}

void expect(const Checks& checks, bool verified, bool memory) {
    EXPECT_EQ(checks.verified, verified) << checks.printed;
    EXPECT_EQ(checks.memory, memory);
}

// Replaces the linear whose first parameter's name ends so.
template <class Broken>
auto linear(const std::string& ending) {
    return [ending](Parts& parts) {
        parts.linear = [ending, original = parts.linear](
                           ParameterList& list, const Parts& all, const Place& place,
                           LinearRole role,
                           const Parts::LinearShape& shape) -> std::unique_ptr<Linear> {
            auto unbroken = original(list, all, place, role, shape);  // registers the parameters
            if (!place.part(shape.rows.front().first).weight().ends_with(ending)) return unbroken;
            std::vector<Parameter*> rows;
            for (const auto& [part, size] : shape.rows)
                rows.push_back(list.find(place.part(part).weight()));
            return std::make_unique<Broken>(rows);
        };
    };
}

template <class Broken>
void norm(Parts& parts) {
    parts.norm = [original = parts.norm](ParameterList& list,
                                         const Place& place) -> std::unique_ptr<Norm> {
        original(list, place);
        Parameter* weight = list.find(place.weight());
        if (!place.name.ends_with("layers.1.input_layernorm"))
            return std::make_unique<Norm>(weight, 1e-5f);
        return std::make_unique<Broken>(weight, 1e-5f);
    };
}

template <class Broken>
void attention(Parts& parts) {
    parts.attention = [](const Place&) { return std::make_unique<Broken>(); };
}

TEST(Verify, AnUnchangedRunPasses) {
    expect(train([](Parts&) {}), true, true);
    expect(train(linear<Linear>("layers.1.self_attn.o_proj.weight")), true,
           true);  // parts made by the helpers above are fine
    expect(train(norm<Norm>), true, true);
    expect(train(attention<FlashAttention>), true, true);
}

TEST(Verify, SeesAWeightGradientThatIsSkipped) {
    struct Broken : Linear {
        using Linear::Linear;
        void backward_weight(Saved& saved, Context& context) override {
            if (context.micro_batch == 0) return Linear::backward_weight(saved, context);
            saved.take("x"), saved.take("dy");  // the second micro-batch's contribution is lost
        }
    };
    for (const char* name : {"layers.1.self_attn.o_proj.weight", "layers.0.self_attn.q_proj.weight",
                             "layers.0.mlp.gate_proj.weight"})
        expect(train(linear<Broken>(name)), false, true);
}

TEST(Verify, SeesAResidualThatIsForgotten) {
    struct Forward : Linear {
        using Linear::Linear;
        Tensor forward(const Tensor& x, Saved& saved, Context& context, const Tensor&) override {
            return Linear::forward(x, saved, context);
        }
    };
    expect(train(linear<Forward>("layers.1.mlp.down_proj.weight")), false, true);
    struct Backward : Norm {
        using Norm::Norm;
        Tensor backward(const Tensor& dy, const Tensor&, Saved& saved, Context& context) override {
            return Norm::backward(dy, {}, saved, context);
        }
    };
    expect(train(norm<Backward>), false, true);
}

TEST(Verify, SeesSwappedGradientsOfAttention) {
    struct Broken : FlashAttention {
        Gradients backward(const Tensor& dout, Saved& saved, Context& context) override {
            Gradients g = FlashAttention::backward(dout, saved, context);
            std::swap(g.dk, g.dv);
            return g;
        }
    };
    expect(train(attention<Broken>), false, true);
}

struct SlightlyWrong : Linear {
    using Linear::Linear;
    Tensor backward_input(const Tensor& dy, Saved& saved, Context& context) override {
        Tensor dx = Linear::backward_input(dy, saved, context);
        ops::scale(dx, 1.001f);
        return dx;
    }
};

TEST(Verify, SeesAnInputGradientThatIsSlightlyWrong) {
    expect(train(linear<SlightlyWrong>("layers.1.mlp.gate_proj.weight")), false, true);
}

TEST(Verify, SeesAWrongScaleLearningRateOrData) {
    const auto nothing = [](Parts&) {};
    expect(train(nothing, 0.5), false, true);
    expect(train(nothing, 1, 1.01), false, true);
    expect(train(nothing, 1, 1, 1), false, true);
}

// However little there was to learn: no fixed bound is as wide as a quarter of the way.
TEST(Verify, SeesARunThatNeverUpdates) {
    const auto nothing = [](Parts&) {};
    for (const DType dtype : {DType::fp32, DType::bf16})
        for (const auto& [lr, warmup] : {std::pair{1e-3, 0}, {1e-6, 0}, {1e-7, 0}, {1e-3, 1000}}) {
            const Setting setting{.dtype = dtype, .lr = lr, .warmup = warmup};
            SCOPED_TRACE(fmt::format("{}, lr {}, warmup {}", dtype_name(dtype), lr, warmup));
            const Checks still = train(nothing, 1, 0, 0, setting),
                         right = train(nothing, 1, 1, 0, setting);
            EXPECT_FALSE(still.verified);
            EXPECT_NE(still.printed.find("MISSED"), std::string::npos) << still.printed;
            EXPECT_TRUE(right.verified) << right.printed;
        }
}

// Large weights and wide heads, which amplify rounding.
LlamaConfig amplifying(int64_t heads, int64_t head_dim, double init_std = 0.1) {
    return {.layers = 2,
            .hidden = 512,
            .heads = heads,
            .kv_heads = 1,
            .head_dim = head_dim,
            .ffn = 64,
            .vocab = 128,
            .init_std = init_std};
}

// Large weights and wide heads amplify rounding, so that a correct run misses what is enough for
// most: how far plain runs drift apart is measured, which costs the run under test nothing that its
// report shows.
TEST(Verify, MeasuresWhereACorrectRunMissesTheFloor) {
    const Setting sensitive{.config = amplifying(4, 128), .steps = 6};
    const auto nothing = [](Parts&) {};
    trace_clear();
    trace_record(true);
    const Checks right = train(nothing, 1, 1, 0, sensitive);
    EXPECT_TRUE(trace_recording());
    trace_record(false);
    std::map<std::string, int> updates;
    for (const Span& span : trace_spans()) ++updates[span.name];
    trace_clear();
    EXPECT_EQ(updates["adamw"], 6);
    EXPECT_TRUE(right.verified && right.memory) << right.printed;
    EXPECT_NE(right.printed.find(" measured "), std::string::npos) << right.printed;

    // A real error of a tenth is still seen beside what rounding comes to, however the compiler
    // orders its sums.
    const Checks faster = train(nothing, 1, 1.1, 0, sensitive);
    EXPECT_FALSE(faster.verified) << faster.printed;
    EXPECT_NE(faster.printed.find(" measured "), std::string::npos) << faster.printed;
    EXPECT_FALSE(
        train(linear<SlightlyWrong>("layers.1.mlp.gate_proj.weight"), 1, 1, 0, sensitive).verified);
}

// Still larger weights: rounding alone puts the first gradient past its fixed bound.
TEST(Verify, MeasuresTheFirstGradientsBound) {
    const Setting sharp{.config = amplifying(2, 256, 0.3), .steps = 1};
    const auto nothing = [](Parts&) {};
    const Checks right = train(nothing, 1, 1, 0, sharp);
    EXPECT_TRUE(right.verified) << right.printed;
    EXPECT_NE(right.printed.find("measures how far"), std::string::npos) << right.printed;
    EXPECT_FALSE(train(nothing, 1.01, 1, 0, sharp).verified);
}

// bf16, large weights, wide heads and a high learning rate: two correct runs end up anywhere.
TEST(Verify, SaysWhereItCannotTell) {
    const Setting chaotic{.config = amplifying(2, 256),
                          .dtype = DType::bf16,
                          .lr = 2e-2,
                          .steps = 6};
    const auto nothing = [](Parts&) {};
    const Checks right = train(nothing, 1, 1, 0, chaotic), still = train(nothing, 1, 0, 0, chaotic);
    EXPECT_FALSE(right.verified);
    EXPECT_NE(right.printed.find("verify cannot tell"), std::string::npos) << right.printed;
    EXPECT_FALSE(still.verified);
    EXPECT_NE(still.printed.find("MISSED"), std::string::npos) << still.printed;
}

TEST(Verify, SeesAWeightThatIsNoNumberInTheEnd) {
    struct Broken : Linear {
        using Linear::Linear;
        void backward_weight(Saved& saved, Context& context) override {
            Linear::backward_weight(saved, context);
            if (++calls_ == 2 * 3)
                ops::fill(parameters_[0]->grad, NAN);  // in the last step, after all losses
        }
        int calls_ = 0;
    };
    expect(train(linear<Broken>("layers.1.self_attn.o_proj.weight")), false, true);
}

TEST(MemoryCheck, SeesALeakedActivation) {
    struct Leaks : Linear {
        using Linear::Linear;
        Tensor forward(const Tensor& x, Saved& saved, Context& context,
                       const Tensor& residual) override {
            Tensor y = Linear::forward(x, saved, context, residual);
            saved.keep("y", y);  // nobody takes it
            return y;
        }
    };
    expect(train(linear<Leaks>("layers.0.self_attn.q_proj.weight")), true, false);
}

TEST(MemoryCheck, SeesAnActivationThatIsNotKept) {
    struct Broken : FlashAttention {
        Tensor forward(const Tensor& q, const Tensor& k, const Tensor& v, Saved& saved,
                       Context& context) override {
            Tensor o = FlashAttention::forward(q, k, v, saved, context);
            saved.take("lse"), saved.take("q");
            return o;
        }
        Gradients backward(const Tensor& dout, Saved& saved, Context&) override {
            const auto zeros = [](const Tensor& like) {
                return Tensor::zeros(like.shape(), like.dtype(), Memory::activation);
            };
            saved.take("o");
            return {zeros(dout), zeros(saved.take("k")), zeros(saved.take("v"))};
        }
    };
    expect(train(attention<Broken>), false, false);
}

TEST(MemoryCheck, SeesAPersistentTensorTooMany) {
    static Tensor extra;
    const Checks checks =
        train([](Parts&) { extra = Tensor::empty({1}, DType::fp32, Memory::gradient); });
    extra = {};
    expect(checks, true, false);
}

}  // namespace
}  // namespace ultrascale
