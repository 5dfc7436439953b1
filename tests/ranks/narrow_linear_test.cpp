// Parts nest: a linear that multiplies in a narrow format, under tensor parallelism; neither knows
// of the other. The format here has the precision of fp32 but ends at 1, so that a tensor has to be
// scaled before it fits (FP8's E4M3: 448). With the right scales a run is equal to one device's;
// with wrong ones, large elements are cut off.
//
// Scaling is delayed: a tensor's scale comes from its largest element (its amax) in the previous
// step, so that it is known when this step begins. All ranks use the largest amax that any of them
// saw, as if the tensor were in one place.
#include <gtest/gtest.h>

#include <cmath>

#include "03_tensor_parallel/8_tensor_parallel.h"
#include "03_tensor_parallel/lab/predict.h"
#include "core/threads.h"
#include "train/gradients.h"
#include "train/run.h"

namespace ultrascale {
using namespace ultrascale::tensor_parallel;
namespace {

constexpr int64_t T = 32, B = 1, A = 2, steps = 4;
const LlamaConfig config{
    .layers = 2, .hidden = 32, .heads = 4, .kv_heads = 2, .head_dim = 8, .ffn = 48, .vocab = 256};

// What is done wrong.
struct Breaks {
    bool never_scale = false, own_amax = false;
};

enum Operand { input_operand, weight_operand, gradient_operand, operands };

class ScaledLinear : public Linear {
public:
    // The amax of each operand: in the step before, and in this one so far.
    ScaledLinear(ParameterList& list, std::vector<Parameter*> rows, bool scales)
        : Linear(std::move(rows)),
          amax_(list.add_buffer(parameters_.front()->name + ".amax", 2 * operands)),
          scales_(scales) {}

    void multiply(Tensor y, const Tensor& x, const Tensor& residual) override {
        const QuantisedTransfer in = narrow(x, input_operand), w = weights();
        ops::matmul(y, in.values, ops::Transpose::no, w.values, ops::Transpose::yes);
        ops::scale(y, 1 / (in.scale * w.scale));
        if (residual) ops::add(y, residual);
    }
    void multiply_backward(Tensor dx, const Tensor& dy) override {
        const QuantisedTransfer g = narrow(dy, gradient_operand), w = weights();
        ops::matmul(dx, g.values, ops::Transpose::no, w.values, ops::Transpose::no);
        ops::scale(dx, 1 / (g.scale * w.scale));
    }
    void add_weight_gradient(const Tensor& dy, const Tensor& x, Context& context) override {
        const QuantisedTransfer g = narrow(dy, gradient_operand), in = narrow(x, input_operand);
        const Tensor dw = Tensor::empty({dy.cols(), x.cols()}, DType::fp32, Memory::workspace);
        ops::matmul(dw, g.values.view({dy.rows(), dy.cols()}), ops::Transpose::yes,
                    in.values.view({x.rows(), x.cols()}), ops::Transpose::no);
        ops::scale(dw, 1 / (g.scale * in.scale));
        const Tensor before = begin_contributions(parameters_), grads = stacked_grads(parameters_);
        before ? ops::add(grads, dw) : ops::copy(grads, dw);
        for (Parameter* parameter : parameters_) context.contributed(*parameter);
    }

    // At the end of a step: this step's amax will scale the next step.
    static void next_step(const Tensor& amax, const Communicator& ranks, Breaks breaks) {
        const Tensor former = amax.slice(0, operands);
        const Tensor seen = amax.slice(operands, 2 * operands);
        if (!breaks.own_amax) ranks.all_reduce(seen, Reduce::max);
        ops::copy(former, seen);
        ops::fill(seen, 0);
    }

private:
    struct QuantisedTransfer {
        Tensor values;
        float scale;
    };
    QuantisedTransfer weights() { return narrow(stacked_values(parameters_), weight_operand); }
    // Scaled by a power of two, which changes no digit, with room for an amax twice as large.
    QuantisedTransfer narrow(const Tensor& x, Operand operand) {
        std::vector<float> amax = amax_.to_host<float>(), values = x.to_host<float>();
        float largest = 0;
        for (const float value : values) largest = std::max(largest, std::abs(value));
        float& seen = amax[size_t(operands + operand)];
        seen = std::max(seen, largest);
        amax_.copy_from_host(amax.data());
        const float former = amax[operand], known = former > 0 ? former : largest;
        const bool scales = scales_ && known > 0;
        const float scale = scales ? std::exp2(-std::ceil(std::log2(known)) - 1) : 1;
        for (float& value : values) value = std::clamp(value * scale, -1.0f, 1.0f);
        const std::span<const float> scaled(values);
        return {Tensor::from_host(scaled, x.shape(), Memory::workspace), scale};
    }
    Tensor amax_;
    bool scales_;
};

struct Outcome {
    bool verified, sent_as_predicted, one_amax;
};

Outcome train(TensorOptions tensor, Breaks breaks = {}) {
    testing::internal::CaptureStdout();
    use_threads(ranks_on_this_node());
    const Communicator& world = Communicator::world();
    tensor.tp = 2;
    Mesh mesh(world, {{"dp", world.size() / 2}, {"tp", 2}});
    const Communicator& dp = mesh.group("dp");
    Options options;
    options.steps = steps, options.micro_batch = B, options.grad_accum = A, options.verify = true;
    const StepShape shape{.config = config, .model = {}, .micro_batch = B, .seq = T};

    const TensorParallel parallel(config, tensor, mesh);
    ModuleFactories factories = parallel.factories(shape.model);
    factories.gemm = [&](ParameterList& list, const ModulePath&, std::vector<Parameter*> rows,
                         LinearRole) {
        return std::make_unique<ScaledLinear>(list, std::move(rows), !breaks.never_scale);
    };
    Llama model(config, shape.model, factories, Stage::whole(config));
    ParameterList& parameters = model.parameters();
    parameters.allocate_values(DType::fp32);
    parameters.allocate_grads(DType::fp32);
    PlainUpdater optimizer(parameters, options, &mesh);
    const DataSlice slice{.micro_batch = B, .count = dp.size(), .replica = dp.rank()};
    Run run("narrow linear", options, shape, slice);
    run.load(optimizer.start());
    run.start(training_setup(model, optimizer));
    while (Step* step = run.next()) {
        parameters.begin_gradients(A);
        for (MicroBatch micro_batch : step->micro_batches()) {
            Saved saved;
            model.forward({}, saved, micro_batch);
            model.backward({}, saved, micro_batch);
        }
        sum_gradients(parameters, mesh);
        for (const TensorPart& amax : parameters.buffers())
            ScaledLinear::next_step(amax.tensor, world, breaks);
        const Tensor squared = optimizer.squared_norm();
        optimizer.step(step->learning_rate, squared);
        step->sum_loss(dp);
        step->finish(squared);
    }
    Prediction predicted =
        predict(shape, tensor, parameters, A, dp.size(), mesh.group("tp").rank());
    const int64_t buffers = int64_t(parameters.buffers().size());
    predicted.communication.add(world, Collective::all_reduce, buffers, buffers * operands * 4);
    const bool sent = on_all_ranks(
        world, counted_as_predicted(predicted.communication, steps, communication_counts()));
    const bool verified = run.finish([](Report&) { return true; });
    bool one_amax = true;
    for (const TensorPart& amax : parameters.buffers())
        for (const float value : amax.tensor.slice(0, operands).to_host<float>()) {
            const double largest = largest_of_ranks(world, value);
            one_amax = one_amax && value > 0 && value == largest;
        }
    testing::internal::GetCapturedStdout();
    return {verified, sent, on_all_ranks(world, one_amax)};
}

class NarrowLinear : public testing::Test {
protected:
    void SetUp() override {
        if (Communicator::world().size() % 2 != 0) GTEST_SKIP() << "pairs of ranks share a layer";
    }
};

// In chunks a product is made in several calls, of which each sees a part of the tensor.
TEST_F(NarrowLinear, TensorParallelismKnowsNothingOfIt) {
    for (const bool sequence_parallel : {false, true})
        for (const Overlap overlap : {Overlap::none, Overlap::chunk}) {
            const Outcome outcome =
                train({.sequence_parallel = sequence_parallel, .overlap = overlap});
            EXPECT_TRUE(outcome.verified);
            EXPECT_TRUE(outcome.sent_as_predicted);
            EXPECT_TRUE(outcome.one_amax);
        }
}

TEST_F(NarrowLinear, ScalesAreNeeded) {
    EXPECT_FALSE(train({}, {.never_scale = true}).verified);
    EXPECT_FALSE(train({}, {.own_amax = true}).one_amax);
}

}  // namespace
}  // namespace ultrascale
