// Breaks a run on purpose, one part at a time, and expects --verify to fail.
#include "broken_training.h"
#include "core/trace.h"

namespace ultrascale::broken {
namespace {

TEST(Verify, AnUnchangedRunPasses) {
    expect(train([](ModuleFactories&) {}), true, true);
    expect(train(linear<Linear>("layers.1.self_attn.o_proj.weight")), true,
           true);  // unbroken parts made by the helpers pass
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
    const auto nothing = [](ModuleFactories&) {};
    expect(train(nothing, 0.5), false, true);
    expect(train(nothing, 1, 1.01), false, true);
    expect(train(nothing, 1, 1, 1), false, true);
}

// This holds even if there was little to learn: no fixed bound is as wide as a quarter of the
// progress.
TEST(Verify, SeesARunThatNeverUpdates) {
    const auto nothing = [](ModuleFactories&) {};
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

// Returns a model with large weights and wide heads, which amplify rounding.
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

// Large weights and wide heads amplify rounding, so that a correct run misses the bound that
// suffices for most runs. Then --verify measures how far plain runs drift apart; this does not
// appear in the costs that the run's report shows.
TEST(Verify, MeasuresWhereACorrectRunMissesTheFloor) {
    const Setting sensitive{.config = amplifying(4, 128), .steps = 6};
    const auto nothing = [](ModuleFactories&) {};
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

    // A real error of a tenth is still detected despite the rounding errors, however the compiler
    // orders its sums.
    const Checks faster = train(nothing, 1, 1.1, 0, sensitive);
    EXPECT_FALSE(faster.verified) << faster.printed;
    EXPECT_NE(faster.printed.find(" measured "), std::string::npos) << faster.printed;
    EXPECT_FALSE(
        train(linear<SlightlyWrong>("layers.1.mlp.gate_proj.weight"), 1, 1, 0, sensitive).verified);
}

// With even larger weights, rounding alone moves the first gradient beyond its fixed bound. How
// large they must be for that depends on the order in which a device adds.
TEST(Verify, MeasuresTheFirstGradientsBound) {
    const auto nothing = [](ModuleFactories&) {};
    Setting sharp{.steps = 1};
    Checks right;
    bool measured = false;
    for (double init_std = 0.2; init_std < 0.8 && !measured; init_std += 0.04) {
        sharp.config = amplifying(2, 256, init_std);
        right = train(nothing, 1, 1, 0, sharp);
        measured = right.printed.find("measures how far") != std::string::npos;
    }
    EXPECT_TRUE(measured && right.verified) << right.printed;
    EXPECT_FALSE(train(nothing, 1.01, 1, 0, sharp).verified);
}

// With bf16, large weights, wide heads and a high learning rate, two correct runs diverge
// arbitrarily.
TEST(Verify, SaysWhereItCannotTell) {
    const Setting chaotic{
        .config = amplifying(2, 256), .dtype = DType::bf16, .lr = 2e-2, .steps = 6};
    const auto nothing = [](ModuleFactories&) {};
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

}  // namespace
}  // namespace ultrascale::broken
