// Breaks a run on purpose, one part at a time, and expects the memory check to fail.
#include "broken_training.h"

namespace ultrascale::broken {
namespace {

TEST(MemoryCheck, SeesALeakedActivation) {
    struct Leaks : Linear {
        using Linear::Linear;
        Tensor forward(const Tensor& x, Saved& saved, Context& context,
                       const Tensor& residual) override {
            Tensor y = Linear::forward(x, saved, context, residual);
            saved.keep("y", y);  // nobody takes it out again
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
        train([](ModuleFactories&) { extra = Tensor::empty({1}, DType::fp32, Memory::gradient); });
    extra = {};
    expect(checks, true, false);
}

}  // namespace
}  // namespace ultrascale::broken
