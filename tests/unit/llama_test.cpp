#include "llama_runs.h"
#include "tests/test_files.h"

namespace ultrascale {
namespace {

using namespace test;

TEST(Llama, RecomputationAndSplitBackwardGiveTheSameBits) {
    const std::vector<HostBatch> batches = {random_batch(2, 19, 1), random_batch(3, 19, 3)};
    for (bool tied : {false, true}) {
        Result plain;
        for (const ModelOptions& options : all_options({DType::fp32, DType::bf16, DType::fp16})) {
            const auto model = make(small(tied), options);
            const Result result = run(*model, batches);
            if (options.recompute == Recompute::none) plain = result;
            EXPECT_EQ(result, plain) << "recomputation " << options.recompute.text();
            EXPECT_EQ(run(*model, batches, true), plain)
                << "split backward, recomputation " << options.recompute.text();
        }
    }
}

TEST(Llama, AttentionKindsChunksAndSplitsOfTheBatchAgree) {
    const HostBatch whole = random_batch(4, 19, 5);
    const auto rows = [&](int64_t begin, int64_t end) {
        HostBatch part{
            .sequences = end - begin, .length = 19, .counted_targets = (end - begin) * 19};
        for (auto member : {&HostBatch::tokens, &HostBatch::targets, &HostBatch::positions})
            (part.*member)
                .assign((whole.*member).begin() + begin * 19, (whole.*member).begin() + end * 19);
        return part;
    };
    for (bool tied : {false, true}) {
        const Result plain = run(*make(small(tied), {.attention = AttentionKind::naive}), {whole});
        for (const ModelOptions& options : all_options())
            for (const std::vector<HostBatch>& split : {std::vector{whole},
                                                        {rows(0, 1), rows(1, 4)},
                                                        {rows(0, 2), rows(2, 3), rows(3, 4)}}) {
                const Result result = run(*make(small(tied), options), split);
                EXPECT_NEAR(result.loss, plain.loss, 1e-6);
                EXPECT_LT(relative_error(result.all(), plain.all()), 2e-6);
            }
    }
}

// Norms of q's and k's heads: the gradients of their weights, and of the weights before them,
// against central differences of the loss. Every kind of recomputation gives the same bits.
TEST(Llama, NormsOfHeads) {
    LlamaConfig config = small();
    config.head_norms = true;
    const std::vector<HostBatch> batches = {random_batch(2, 19, 1)};
    const auto model = make(config);
    const Result plain = run(*model, batches);
    for (const ModelOptions& options : all_options())
        if (options.attention == AttentionKind::flash && options.loss_chunk == 0) {
            const auto other = make(config, options);
            EXPECT_EQ(run(*other, batches), plain);
            EXPECT_EQ(run(*other, batches, true), plain);
        }
    for (const char* name : {"q_norm", "k_norm", "q_proj", "v_proj"}) {
        Parameter& p =
            *model->parameters().find(fmt::format("model.layers.1.self_attn.{}.weight", name));
        const Doubles values = to_double(p.value), gradient = plain.gradients.at(p.name);
        // One direction is enough: the gradient's own, in which the loss changes most.
        const double norm = std::sqrt(dot(gradient, gradient)), step = 3e-3 / norm;
        const auto loss = [&](double along) {
            Doubles moved = values;
            for (size_t i = 0; i < moved.size(); ++i) moved[i] += along * gradient[i];
            ops::copy(p.value, tensor_of(moved, p.value.shape(), DType::fp32));
            return run(*model, batches).loss;
        };
        EXPECT_NEAR((loss(step) - loss(-step)) / (2 * step), norm * norm, 1e-2 * norm * norm)
            << name;
        ops::copy(p.value, tensor_of(values, p.value.shape(), DType::fp32));
    }
}

// The expected events of one micro-batch of a model with one layer, written by hand. Gradients are
// complete in the last micro-batch.
std::vector<std::string> expected_events(bool tied, bool split, int m, bool last) {
    std::vector<std::string> events;
    const auto unit = [&](const char* pass, const char* name,
                          std::vector<std::string> gradients = {}) {
        events.push_back(fmt::format("{} > {} {}", m, pass, name));
        for (const std::string& gradient : gradients)
            if (last) events.push_back(fmt::format("{} {}.weight", m, gradient));
        events.push_back(fmt::format("{} < {} {}", m, pass, name));
    };
    const std::string layer = "model.layers.0.", attention = layer + "self_attn.",
                      mlp = layer + "mlp.";
    for (const char* name : {"embedding", "layers.0", "head"}) unit("forward", name);
    std::vector<std::string> head(tied ? 0 : 1, "lm_head");
    if (!split) {
        head.push_back("model.norm");
        unit("backward", "head", head);
        unit("backward", "layers.0",
             {mlp + "down_proj", mlp + "gate_proj", mlp + "up_proj",
              layer + "post_attention_layernorm", attention + "o_proj", attention + "q_proj",
              attention + "k_proj", attention + "v_proj", layer + "input_layernorm"});
        unit("backward", "embedding", {"model.embed_tokens"});
        return events;
    }
    unit("backward-input", "head", {"model.norm"});  // norms add their weight's gradient at once
    unit("backward-input", "layers.0",
         {layer + "post_attention_layernorm", layer + "input_layernorm"});
    unit("backward-input", "embedding");
    unit("backward-weight", "head", head);
    unit("backward-weight", "layers.0",
         {mlp + "down_proj", mlp + "gate_proj", mlp + "up_proj", attention + "o_proj",
          attention + "q_proj", attention + "k_proj", attention + "v_proj"});
    unit("backward-weight", "embedding", {"model.embed_tokens"});
    return events;
}

TEST(Hooks, FireInOrderAndOncePerParameterAfterItsLastContribution) {
    for (bool tied : {false, true})
        for (bool split : {false, true})
            for (const ModelOptions& options : all_options()) {
                LlamaConfig config = small(tied);
                config.layers = 1;
                const auto model = make(config, options);
                Recorder recorder;
                const Result result =
                    run(*model, {random_batch(1, 9, 7), random_batch(1, 9, 9)}, split, &recorder);
                std::vector<std::string> expected = expected_events(tied, split, 0, false);
                for (const std::string& event : expected_events(tied, split, 1, true))
                    expected.push_back(event);
                EXPECT_EQ(recorder.events, expected);
                EXPECT_EQ(recorder.complete.size(), model->parameters().size());
                for (const auto& [name, gradient] : result.gradients)
                    EXPECT_EQ(recorder.complete.at("1 " + name), gradient) << name;
            }
}

TEST(Units, KeepALayersInputOnlyWithFullRecomputation) {
    const auto model = make(small(), {.recompute = Recompute::full});
    Context context = context_of({random_batch(2, 9, 1)}, 0, Tensor(), nullptr);
    Saved embedding, layer;
    const Tensor x = model->forward_unit(model->units()[0], {}, embedding, context);
    model->forward_unit(model->units()[1], x, layer, context);
    std::vector<std::string> paths;
    layer.for_each([&](const std::string& path, const Tensor&) { paths.push_back(path); });
    EXPECT_EQ(paths, std::vector<std::string>{"layers.0/checkpoint"});
}

TEST(Units, HoldEveryParameterAndATiedOneTwice) {
    for (bool tied : {false, true}) {
        const auto model = make(small(tied));
        std::map<std::string, int> held;
        for (const Unit& unit : model->units())
            for (const Parameter* p : unit.parameters) ++held[p->name];
        EXPECT_EQ(held.size(), model->parameters().size());
        for (const auto& [name, times] : held)
            EXPECT_EQ(times, tied && name == "model.embed_tokens.weight" ? 2 : 1) << name;
    }
}

// Two stages run one after the other, as in a pipeline.
TEST(Stages, TwoInARowEqualTheWhole) {
    const HostBatch host = random_batch(2, 19, 11);
    for (bool tied : {false, true})
        for (bool split : {false, true})
            for (const ModelOptions& options :
                 all_options({DType::fp32, DType::bf16, DType::fp16})) {
                LlamaConfig config = small(tied);
                config.layers = 3;
                const ModuleFactories factories = default_factories(config, options);
                const Result whole = run(*make(config, options), {host});
                const auto first = make(config, options, factories, {0, 1, true, false});
                const auto second = make(config, options, factories, {1, 3, false, true});
                const Batch batch = to_device(host);
                const Tensor loss = Tensor::zeros({1}, DType::fp64, Memory::workspace);
                Context context{
                    .batch = batch, .token_weight = 1 / float(host.counted_targets), .loss = loss};
                Saved saved_first, saved_second;
                second->forward(first->forward({}, saved_first, context), saved_second, context);
                const WeightGradient when = split ? WeightGradient::later : WeightGradient::now;
                first->backward(second->backward({}, saved_second, context, when), saved_first,
                                context, when);
                if (split) {
                    first->backward_weight(saved_first, context);
                    second->backward_weight(saved_second, context);
                }
                EXPECT_EQ(to_double(context.loss)[0], whole.loss);
                for (const auto& [stage, other] :
                     {std::pair{first.get(), second.get()}, {second.get(), first.get()}})
                    for (const auto& p : stage->parameters()) {
                        const Parameter* replica = other->parameters().find(p->name);
                        EXPECT_EQ(replica != nullptr,
                                  tied && p->name == "model.embed_tokens.weight");
                        if (replica) {
                            EXPECT_EQ(p->replica_groups, std::vector<std::string>{"tied"});
                            Doubles sum = to_double(p->grad), more = to_double(replica->grad);
                            for (size_t i = 0; i < sum.size(); ++i) sum[i] += more[i];
                            EXPECT_LT(relative_error(sum, whole.gradients.at(p->name)),
                                      options.dtype == DType::fp32 ? 1e-6 : 1e-2);
                        } else {
                            EXPECT_EQ(to_double(p->grad), whole.gradients.at(p->name)) << p->name;
                        }
                    }
            }
}

// Compares a packed row with each of its documents alone; token 0 starts a document.
TEST(Documents, APackedRowEqualsItsDocumentsAlone) {
    test::TempDir dir;
    std::string text = {5, 9, 3};  // the end of a document that began earlier
    for (int length : {1, 2, 7, 1, 12, 5})
        for (int i = 0; i < length; ++i) text += char(i == 0 ? 0 : 1 + (i * 7 + length) % 31);
    text += char(4);
    test::put(dir / "tokens.txt", text);
    const int64_t T = int64_t(text.size()) - 1;
    const TokenFile file(dir / "tokens.txt", 32);
    const HostBatch packed = DataLoader(file, {.seq = T, .document_token = 0}).batch(0, 1);
    ASSERT_EQ(packed.counted_targets, T - 6);

    std::vector<HostBatch> alone;
    for (int64_t begin = 0, end; begin < T; begin = end) {
        for (end = begin + 1; end < T && packed.tokens[size_t(end)] != 0;) ++end;
        HostBatch document{.sequences = 1, .length = end - begin};
        for (int64_t t = begin; t < end; ++t) {
            document.tokens.push_back(packed.tokens[size_t(t)]);
            document.targets.push_back(packed.targets[size_t(t)]);
            document.positions.push_back(int32_t(t - begin));
            document.counted_targets += packed.targets[size_t(t)] != ops::ignored_target;
        }
        alone.push_back(document);
    }
    ASSERT_EQ(alone.size(), 7u);
    HostBatch unmasked = packed;
    unmasked.document_starts.clear();
    for (bool tied : {false, true})
        for (const ModelOptions& options : all_options()) {
            const auto model = make(small(tied), options);
            ops::scale(model->parameters().flat_values(),
                       8);  // attention far from uniform; rounding grows a hundredfold
            const Result together = run(*model, {packed}), separate = run(*model, alone);
            EXPECT_NEAR(together.loss, separate.loss, 1e-5 * separate.loss);
            EXPECT_LT(relative_error(together.all(), separate.all()),
                      1e-4);  // 2e-5 if BLAS sums in another order
            EXPECT_GT(relative_error(run(*model, {unmasked}).all(), separate.all()), 1e-1);
        }
}

TEST(Llama, WithoutTrainingNothingIsKeptAndNoGradientMade) {
    for (const ModelOptions& options : all_options()) {
        const auto model = make(small(), options);
        const HostBatch host = random_batch(2, 9, 13);
        const Result trained = run(*model, {host});
        ops::fill(model->parameters().flat_grads(), 0);
        const Batch batch = to_device(host);
        const Tensor loss = Tensor::zeros({1}, DType::fp64, Memory::workspace);
        const int64_t before = memory_now()[int(Memory::activation)];
        Context context{.batch = batch, .token_weight = 1.0f / 18, .loss = loss, .training = false};
        Saved saved;
        model->forward({}, saved, context);
        EXPECT_EQ(memory_now()[int(Memory::activation)], before);
        EXPECT_EQ(to_double(loss)[0], trained.loss);
        for (double g : to_double(model->parameters().flat_grads())) EXPECT_EQ(g, 0);
        // The cross-entropy of logits() is the loss.
        const Tensor logits = model->logits(batch),
                     losses = Tensor::empty({18}, DType::fp32, Memory::activation);
        EXPECT_EQ(logits.shape(), (Shape{2, 9, 32}));
        ops::cross_entropy(losses, logits.view({18, 32}), batch.targets.view({18}), 0);
        double mean = 0;
        for (double l : to_double(losses)) mean += l / 18;
        EXPECT_NEAR(mean, trained.loss, 1e-6);
    }
}

}  // namespace
}  // namespace ultrascale
