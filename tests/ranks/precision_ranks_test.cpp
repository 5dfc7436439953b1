// What 08_mixed_precision does between ranks: gradients summed in 8 bits, the loss scale on which
// all agree, and linears in fp8 inside tensor-parallel ones.
#include "03_tensor_parallel/8_tensor_parallel.h"
#include "08_mixed_precision/9_fp8_all_reduce.h"
#include "08_mixed_precision/fp8_parts.h"
#include "08_mixed_precision/lab/predict.h"
#include "break_checks.h"
#include "core/threads.h"
#include "train/data.h"
#include "train/gradients.h"

namespace ultrascale {
using namespace ultrascale::mixed_precision;
using namespace ultrascale::tensor_parallel;
namespace {

const Communicator& world() { return Communicator::world(); }

// Rank r's element i, in fp32; sizes differ, and so do the ranks' largest ones.
float element(int rank, int64_t i) {
    return float(rank + 1) * std::sin(float(i * 7 + rank)) * std::exp2(float(i % 5));
}
Tensor rank_tensor(int rank, int64_t n) {
    std::vector<float> values;
    for (int64_t i = 0; i < n; ++i) values.push_back(element(rank, i));
    return Tensor::from_host<float>(values, {n}, Memory::gradient);
}
std::vector<double> exact_sum(int64_t n) {
    std::vector<double> sum(size_t(n), 0.0);
    for (int r = 0; r < world().size(); ++r)
        for (int64_t i = 0; i < n; ++i) sum[size_t(i)] += double(element(r, i));
    return sum;
}

// Gradients of two sizes, none of which the ranks divide, summed in e4m3: in fp32.
struct Sum {
    static constexpr int64_t sizes[] = {1001, 65};
    std::vector<Tensor> gradients, scales;
    void run(Fp8AllReduce& all_reduce) {
        std::vector<Tensor> sums;
        for (int64_t n : sizes) {
            gradients.push_back(Tensor::zeros({n}, DType::e4m3, Memory::gradient));
            scales.push_back(Tensor::zeros({1}, DType::fp32, Memory::gradient));
            sums.push_back(rank_tensor(world().rank(), n));
        }
        all_reduce(gradients, scales, sums, world());
        all_reduce.end_step();
    }
    std::vector<float> result(size_t i) const {
        return to_fp32(gradients[i], scales[i]).to_host<float>();
    }
};

double relative_error(const std::vector<float>& got, const std::vector<double>& want) {
    double off = 0, all = 0;
    for (size_t i = 0; i < want.size(); ++i)
        off += std::pow(double(got[i]) - want[i], 2), all += want[i] * want[i];
    return std::sqrt(off / all);
}

TEST(PrecisionRanks, GradientsAreSummedIn8Bits) {
    ParameterList parameters;
    Fp8AllReduce all_reduce(SumScaling::pre, true, parameters, world().size());
    Sum sum;
    communication_reset_counts();
    sum.run(all_reduce);
    for (size_t i = 0; i < 2; ++i)  // rounded before and after the addition, each to 2^-4
        EXPECT_LT(relative_error(sum.result(i), exact_sum(Sum::sizes[i])), 0.06);
    EXPECT_EQ(all_reduce.saturated(), 0);
    PredictedCommunication predicted;
    add_fp8_sum(predicted, world(), {Sum::sizes[0], Sum::sizes[1]});
    EXPECT_TRUE(counted_as_predicted(predicted, 1, communication_counts()));
    // All ranks have the same bits.
    const std::vector<float> here = sum.result(0);
    const Tensor rank_0_sum = Tensor::from_host<float>(here, {Sum::sizes[0]}, Memory::workspace);
    world().broadcast(rank_0_sum, 0);
    EXPECT_EQ(rank_0_sum.to_host<float>(), here);
}

TEST(PrecisionRanks, TheFactorAdaptsToWhatSaturates) {
    NEEDS_RANKS();
    ParameterList parameters, later;
    Fp8AllReduce all_reduce(SumScaling::automatic, true, parameters, 1);  // as if alone: too large
    EXPECT_EQ(all_reduce.factor(world().size()), 1);
    const auto step = [&] {
        Sum sum;
        sum.run(all_reduce);
        return sum.result(0);
    };
    step();
    EXPECT_GT(all_reduce.saturated(), 1e-5);
    EXPECT_EQ(all_reduce.factor(world().size()), 0.5);
    for (int i = 0; i < 6 && all_reduce.saturated() > 0; ++i) step();
    EXPECT_LT(relative_error(step(), exact_sum(Sum::sizes[0])), 0.06);
    EXPECT_GT(all_reduce.factor(world().size()), 1.0 / 64);
    // It is a part of the training's state.
    Fp8AllReduce resumed(SumScaling::automatic, true, later, world().size());
    EXPECT_EQ(resumed.factor(2), 1.0 / world().size());
    const std::vector<float> state = parameters.buffers()[0].tensor.to_host<float>();
    Tensor buffer = later.buffers()[0].tensor;
    buffer.copy_from_host(state.data());
    resumed.resume();
    EXPECT_FLOAT_EQ(float(resumed.factor(2)), float(all_reduce.factor(2)));
}

TEST(PrecisionRanks, AllSkipAStepThatOverflowedOnOne) {
    ParameterList parameters;
    LossScale scale({.scaled = true, .start = 8}, parameters);
    const int last = world().size() - 1;
    const std::vector<float> values{world().rank() == last ? INFINITY : 1.0f};
    const Tensor gradient = Tensor::from_host<float>(values, {1}, Memory::gradient);
    scale.agree({{gradient}}, world());
    EXPECT_TRUE(scale.skips());
    EXPECT_TRUE(scale.end_step(1));
    EXPECT_EQ(scale.scale(), 4);
    EXPECT_TRUE(scale.skip());
}

// The linears of 03_tensor_parallel communicate around products in fp8: the first gradient is as
// far from plain fp32's as fp8 takes it, and no further.
TEST(PrecisionRanks, TensorParallelLinearsMultiplyInFp8) {
    use_threads(ranks_on_this_node());
    constexpr int64_t T = 32, B = 1;
    const LlamaConfig config{.layers = 2,
                             .hidden = 32,
                             .heads = 24,
                             .kv_heads = 1,
                             .head_dim = 16,
                             .ffn = 384,
                             .vocab = 257};  // a rank's linears have multiples of 16 for GPUs
    const TensorOptions tensor{.tp = world().size()};
    Mesh mesh(world(), {{"dp", 1}, {"tp", tensor.tp}});
    const TensorParallel parallel(config, tensor, mesh);
    for (const Products products : {Products::tensor, Products::row, Products::tile}) {
        if (*ops::fp8_missing(group_of_tokens(products))) continue;
        PrecisionOptions precision{.recipe = *find_recipe("tensor")};
        precision.recipe.products = products;
        Fp8Linears linears(precision);
        ModuleFactories factories = parallel.factories({});
        linears.add_to(factories, config.layers);
        Llama model(config, {}, factories, Stage::whole(config));
        ParameterList& parameters = model.parameters();
        parameters.allocate_values(DType::fp32);
        parameters.allocate_grads(DType::fp32);
        linears.allocate(parameters);
        Options options;
        parameters.initialize(options.seed);
        const TokenFile file("common/text.txt", config.vocab);
        const DataLoader loader(file, {.seq = T});
        testing::internal::CaptureStdout();
        const auto plain = [&] {
            return std::make_unique<PlainTraining>(options, config, loader, std::vector<int64_t>{B},
                                                   std::function<void(ModuleFactories&)>());
        };
        // The weights are not compared: no update is made.
        Verifier verifier(plain, 1, {.gradient = 0.15, .first_loss = 5e-3, .weights = 1});
        parameters.begin_gradients();
        const HostBatch batch = loader.batch(0, B);
        Context context{.batch = to_device(batch), .token_weight = 1 / float(B * T)};
        context.loss = Tensor::zeros({1}, DType::fp64, Memory::workspace);
        Saved saved;
        model.forward({}, saved, context);
        model.backward({}, saved, context);
        sum_gradients(parameters, mesh);
        verifier.gradient(parameters.parts(&Parameter::grad));
        verifier.after_step(0, context.loss.to_host<double>()[0],
                            parameters.parts(&Parameter::value));
        const StepShape shape{.config = config, .model = {}, .micro_batch = B, .seq = T};
        Report report("test", options, shape, 1);
        verifier.finish(report);
        const std::string printed = testing::internal::GetCapturedStdout();
        if (world().rank() != 0) continue;
        EXPECT_NE(printed.find("gradient  step 1"), std::string::npos);
        const std::string gradient_line = printed.substr(printed.find("gradient  step 1"));
        EXPECT_EQ(gradient_line.substr(0, gradient_line.find('\n')).find("MISSED"),
                  std::string::npos)
            << printed;
        // It is fp8 that multiplied.
        const double error = std::stod(gradient_line.substr(gradient_line.find("error") + 5));
        EXPECT_GT(error, 0.01) << printed;
    }
}

}  // namespace
}  // namespace ultrascale
