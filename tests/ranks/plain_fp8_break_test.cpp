// Breaks chapter 08's plain linear in fp8 on purpose, one mistake at a time, and expects --verify
// to fail (part of comm_test). The ranks train on different samples; a step has two micro-batches.
#include <gtest/gtest.h>

#include "08_mixed_precision/2_plain_fp8_linear.h"
#include "core/threads.h"
#include "lab/verify/verify.h"
#include "train/data.h"
#include "train/gradients.h"

namespace ultrascale {
using namespace ultrascale::mixed_precision;
namespace {

constexpr int64_t T = 32, A = 2;
// Of the loss, which makes gradients as small as those of so many times as large a batch: where the
// products are right, a power of two changes no bit.
constexpr float smaller = 1024;

enum class Break {
    nothing,
    not_scaled,          // numbers are rounded as they are
    not_scaled_back,     // the products are not multiplied by the scales
    neighbours_scale,    // by those of the tensor before
    scale_too_small,     // large numbers saturate
    another_transposed,  // dW multiplies numbers in the order of rows
    not_added,           // dW is that of the last micro-batch
};

class Broken : public PlainFp8Linear {
public:
    Broken(std::vector<Parameter*> rows, Break wrong, Tensor& before)
        : PlainFp8Linear(std::move(rows)), wrong_(wrong), before_(before) {}

    void add_weight_gradient(const Tensor& dy, const Tensor& x, Context& context) override {
        if (wrong_ == Break::not_added) ops::fill(stacked_grads(parameters_), 0);
        PlainFp8Linear::add_weight_gradient(dy, x, context);
    }

private:
    ops::Quantised rounded(const Tensor& x, DType dtype) const override {
        return spoilt(PlainFp8Linear::rounded(x, dtype), {}, x);
    }
    ops::Quantised rounded_transposed(const Tensor& x, DType dtype) const override {
        const ops::Quantised x8 = PlainFp8Linear::rounded_transposed(x, dtype);
        if (wrong_ == Break::another_transposed)
            return {PlainFp8Linear::rounded(x, dtype).values.view(x8.values.shape()), x8.scales};
        return spoilt({}, x8, x);
    }
    ops::Quantised spoilt(ops::Quantised rows, ops::Quantised columns, const Tensor& x) const {
        ops::Quantised& it = rows ? rows : columns;
        const Tensor own = it.scales, before = std::exchange(before_, own);
        const auto by_scale = [&](float times) {  // rounds anew, by own x times
            it.scales = Tensor::empty({1}, DType::fp32, Memory::workspace);
            ops::fill(it.scales, times > 0 ? own.to_host<float>()[0] * times : 1);
            ops::quantise(rows, columns, x, {.given = true});
        };
        if (wrong_ == Break::not_scaled) by_scale(0);
        if (wrong_ == Break::scale_too_small) by_scale(0.125f);
        if (wrong_ == Break::neighbours_scale && before) it.scales = before;
        if (wrong_ == Break::not_scaled_back) {
            it.scales = Tensor::empty({1}, DType::fp32, Memory::workspace);
            ops::fill(it.scales, 1);
        }
        return it;
    }
    Break wrong_;
    Tensor& before_;  // the scale of the tensor before
};

// Whether the first step's loss and gradient are as near to plain fp32's as fp8 allows.
bool verified(Break wrong) {
    use_threads(ranks_on_this_node());
    const Communicator& world = Communicator::world();
    const int64_t n = world.size();
    const LlamaConfig config{.layers = 2,
                             .hidden = 32,
                             .heads = 4,
                             .kv_heads = 2,
                             .head_dim = 16,
                             .ffn = 48,
                             .vocab = 256};
    const Mesh mesh(world, {{"dp", world.size()}});
    ModuleFactories factories = default_factories(config, {});
    Tensor before;
    factories.gemm = [&](ParameterList&, const ModulePath&, std::vector<Parameter*> rows,
                         LinearRole) {
        return std::make_unique<Broken>(std::move(rows), wrong, before);
    };
    Llama model(config, {}, factories, Stage::whole(config));
    ParameterList& parameters = model.parameters();
    parameters.allocate_values(DType::fp32);
    parameters.allocate_grads(DType::fp32);
    Options options;
    parameters.initialize(options.seed);
    const TokenFile file("common/text.txt", config.vocab);
    const DataLoader loader(file, {.seq = T});
    testing::internal::CaptureStdout();
    const auto plain = [&] {
        return std::make_unique<PlainTraining>(options, config, loader, std::vector<int64_t>{A * n},
                                               std::function<void(ModuleFactories&)>());
    };
    // No update is made, so that what is said of the weights does not count.
    Verifier verifier(plain, 1, {.gradient = 0.15, .first_loss = 5e-3, .weights = 1});
    parameters.begin_gradients(A);
    const Tensor loss = Tensor::zeros({1}, DType::fp64, Memory::workspace);
    for (int64_t m = 0; m < A; ++m) {
        Context context{.batch = to_device(loader.batch(A * world.rank() + m, 1)),
                        .token_weight = 1 / smaller / float(A * n * T),
                        .loss = loss,
                        .micro_batch = int(m)};
        Saved saved;
        model.forward({}, saved, context);
        model.backward({}, saved, context);
    }
    sum_gradients(parameters, mesh);
    if (n > 1) world.all_reduce(loss);
    ops::scale(parameters.flat_grads(), smaller);
    verifier.gradient(parameters.parts(&Parameter::grad));
    verifier.after_step(0, smaller * loss.to_host<double>()[0],
                        parameters.parts(&Parameter::value));
    const StepShape shape{.config = config, .model = {}, .micro_batch = 1, .seq = T};
    Report report("test", options, shape, 1);
    verifier.finish(report);
    const std::string printed = testing::internal::GetCapturedStdout();  // by rank 0
    const size_t end = printed.find("  weights"), missed = printed.find("MISSED");
    return world.broadcast_string(missed < end ? "missed" : "ok", 0) == "ok";
}

TEST(PlainFp8Break, TrainsAsFarFromFp32AsFp8Takes) {
    if (*ops::fp8_missing(ops::ScaleGroup::tensor)) GTEST_SKIP() << "no products in fp8";
    EXPECT_TRUE(verified(Break::nothing));
}

TEST(PlainFp8Break, MistakesAreFound) {
    if (*ops::fp8_missing(ops::ScaleGroup::tensor)) GTEST_SKIP() << "no products in fp8";
    for (const Break wrong : {Break::not_scaled, Break::not_scaled_back, Break::neighbours_scale,
                              Break::scale_too_small, Break::another_transposed, Break::not_added})
        EXPECT_FALSE(verified(wrong)) << int(wrong);
}

}  // namespace
}  // namespace ultrascale
