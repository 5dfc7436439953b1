// The linears that 03_tensor_parallel's options choose against the plain ones of 1_plain.h: the
// same loss and the same gradients, on any number of ranks (part of comm_test).
#include "03_tensor_parallel/8_tensor_parallel.h"
#include "break_checks.h"
#include "core/threads.h"
#include "tests/test_util.h"
#include "train/data.h"
#include "train/gradients.h"

namespace ultrascale {
using namespace ultrascale::tensor_parallel;
namespace {

constexpr int64_t B = 2, T = 48;  // T splits over 2, 3 and 4 ranks, and in two chunks
const LlamaConfig config{
    .layers = 2, .hidden = 32, .heads = 24, .kv_heads = 1, .head_dim = 4, .ffn = 48, .vocab = 257};

struct Pass {
    double loss;
    std::map<std::string, Doubles> gradients;
};
Pass pass_with(TensorOptions tensor, Recompute recompute) {
    const Communicator& world = Communicator::world();
    tensor.tp = world.size();
    Mesh mesh(world, {{"dp", 1}, {"tp", tensor.tp}});
    const TokenFile file("common/text.txt", config.vocab);
    const HostBatch batch = DataLoader(file, DataOptions{.seq = T}).batch(0, B);
    const TensorParallel parallel(config, tensor, mesh);
    const ModelOptions options{.recompute = recompute};
    Llama model(config, options, parallel.factories(options), Stage::whole(config));
    ParameterList& parameters = model.parameters();
    parameters.allocate_values(DType::fp32), parameters.allocate_grads(DType::fp32);
    parameters.initialize(5);
    parameters.begin_gradients();
    Context context{.batch = to_device(batch),
                    .token_weight = float(1 / double(batch.counted_targets)),
                    .loss = Tensor::zeros({1}, DType::fp64, Memory::workspace)};
    Saved saved;
    model.forward({}, saved, context);
    model.backward({}, saved, context);
    sum_gradients(parameters, mesh);
    Pass pass{context.loss.to_host<double>()[0], {}};
    for (const auto& p : parameters) pass.gradients[p->name] = to_double(p->grad);
    return pass;
}

// What adds in another order agrees up to rounding: `norms`, whose gradients are sums over the
// ranks, each with its part of the tokens; `rows`, products of some rows of x at a time.
void expect_agree(const Pass& general, const Pass& plain, bool norms, bool rows) {
    EXPECT_NEAR(general.loss, plain.loss, rows || device_is_gpu() ? 1e-6 : 0);
    EXPECT_EQ(general.gradients.size(), plain.gradients.size());
    for (const auto& [name, gradient] : plain.gradients)
        if (rows || (norms && name.ends_with("norm.weight")) || device_is_gpu())
            EXPECT_LE(relative_error(general.gradients.at(name), gradient), 1e-5) << name;
        else
            EXPECT_EQ(general.gradients.at(name), gradient) << name;
}

TEST(TensorParallel, GeneralLinearsGiveThePlainOnesBits) {
    use_threads(ranks_on_this_node());
    const bool shared = Communicator::world().size() > 1;
    for (const Recompute recompute : {Recompute::none, Recompute::full}) {
        const Pass plain = pass_with({.plain = true}, recompute);
        for (const Overlap overlap :
             {Overlap::none, Overlap::async, Overlap::chunk, Overlap::halves})
            for (const bool shards : {false, true}) {
                if (shards && !shared) continue;
                SCOPED_TRACE(fmt::format("overlap {}{}", overlap_names[int(overlap)],
                                         shards ? ", sequence parallel" : ""));
                expect_agree(
                    pass_with({.sequence_parallel = shards, .overlap = overlap}, recompute), plain,
                    shards, overlap == Overlap::chunk);
            }
    }
}

}  // namespace
}  // namespace ultrascale
