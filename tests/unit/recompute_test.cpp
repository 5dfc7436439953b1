// Recomputation layer by layer: the text, the choice for a budget, and its FLOPs as the operations
// count them. estimate_test.cpp measures the memory, llama_test.cpp compares the bits.
#include "core/trace.h"
#include "lab/predict/budget.h"
#include "lab/predict/estimate.h"
#include "llama_runs.h"

namespace ultrascale {
namespace {

using namespace test;

TEST(Recompute, ReadsAndWritesItsText) {
    for (const char* text : {"none", "full", "selective", "full:8", "selective:3",
                             "full:8,selective:12", "full:8,selective"})
        EXPECT_EQ(Recompute::parse(text).value_or(Recompute::none).text(), text);
    EXPECT_EQ(Recompute::parse("selective:2,full:1"), Recompute(1, 2));
    for (const char* text :
         {"", "some", "full:", "full:0", "full:-1", "full:x", "full:8x", "full:8,", ",full",
          "full:1,full:2", "none,full", "full,selective:2", "full:9999999999999999999"})
        EXPECT_FALSE(Recompute::parse(text)) << text;
}

TEST(Recompute, CountsTheFirstLayers) {
    for (const Recompute& all : {Recompute(2, 3), Recompute(0, 3), Recompute(7, 9),
                                 Recompute(Recompute::full), Recompute(2, Recompute::all)})
        for (int64_t first = 0; first < 8; ++first)
            for (int64_t layers = 0; first + layers <= 8; ++layers)
                for (const auto kind : {Recompute::none, Recompute::selective, Recompute::full}) {
                    int64_t n = 0;
                    for (int64_t i = first; i < first + layers; ++i) n += all.of(i) == kind;
                    EXPECT_EQ(all.from(first).count(kind, layers), n)
                        << all.text() << " " << first << " " << layers << " " << int(kind);
                }
}

StepShape shape_of(const Recompute& recompute) {
    LlamaConfig config = small();
    config.layers = 5;
    return {.config = config,
            .model = {.recompute = recompute, .attention = AttentionKind::naive},
            .micro_batch = 2,
            .seq = 19};
}

// The FLOPs of the products in a forward and a backward.
double counted_flops(const StepShape& shape) {
    const auto model = make(shape.config, shape.model);
    trace_clear(), trace_record(true);
    run(*model, {random_batch(shape.micro_batch, shape.seq, 1)});
    trace_record(false);
    double flops = 0;
    for (const Span& span : trace_spans())
        if (span.name == "matmul" || span.name.starts_with("attention_naive")) flops += span.flops;
    trace_clear();
    return flops;
}

TEST(Recompute, AddsThePredictedFlops) {
    const double plain = counted_flops(shape_of(Recompute::none));
    for (const Recompute& recompute :
         {Recompute(Recompute::full), Recompute(Recompute::selective), Recompute(1, 0),
          Recompute(2, 2), Recompute(0, 3), Recompute(4, Recompute::all)}) {
        const StepShape shape = shape_of(recompute);
        const int64_t parameters = parameter_count(shape.config);
        // The prediction takes each norm's weights for a product, too.
        const double norms = 2 * 2 * double(shape.config.hidden),
                     full = double(recompute.count(Recompute::full, shape.config.layers));
        EXPECT_DOUBLE_EQ(double(shape.micro_batch * shape.seq) *
                             (recomputed_flops_per_token(shape, parameters) - full * norms),
                         counted_flops(shape) - plain)
            << recompute.text();
    }
}

// The choice fits, and every cheaper setting would not.
TEST(Budget, TakesTheFewestFlopsThatFit) {
    const StepShape plain = shape_of(Recompute::none);
    const int64_t L = plain.config.layers, parameters = parameter_count(plain.config);
    const auto gib = [](int64_t bytes) { return double(bytes) / double(1 << 30); };
    StepShape least = plain;
    least.model.recompute = {L - 1, 1};
    const int64_t most = estimate_memory(plain).total(), fewest = estimate_memory(least).total();
    for (int64_t budget = fewest; budget <= most; budget += (most - fewest) / 40) {
        StepShape chosen = plain;
        fit_into_budget(chosen, gib(budget), estimate_memory);
        EXPECT_LE(estimate_memory(chosen).total(), budget);
        for (int64_t full = 0; full <= L; ++full)
            for (int64_t selective = 0; full + selective <= L; ++selective) {
                StepShape other = plain;
                other.model.recompute = {full, selective};
                if (recomputed_flops_per_token(other, parameters) <
                    recomputed_flops_per_token(chosen, parameters)) {
                    EXPECT_GT(estimate_memory(other).total(), budget);
                }
            }
    }
    StepShape chosen = plain;
    EXPECT_THROW(fit_into_budget(chosen, gib(fewest) / 2, estimate_memory), UserError);
}

}  // namespace
}  // namespace ultrascale
