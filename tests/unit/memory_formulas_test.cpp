// The table of formulas of memory (lab/predict/memory_formulas.inc) beside what the programs
// predict, for some hundred random layouts: to the byte where the table leaves nothing out.
// (page_test.py compares the table in a browser with the table in C++.)
#include "lab/predict/memory_formulas.h"

#include <gtest/gtest.h>

#include <random>

#include "00_single_gpu/4_formulas.h"
#include "09_5d_parallel/planner/imagined.h"
#include "09_5d_parallel/planner/published.h"

namespace ultrascale {
using namespace ultrascale::five_d;
namespace {

// Chooses settings of small models, and of the published ones, that are not refused.
MemorySettings random_settings(std::mt19937& random) {
    const auto one_of = [&](std::initializer_list<double> values) {
        return values.begin()[random() % values.size()];
    };
    for (;;) {
        MemorySettings m;
        if (random() % 3 > 0) {
            m.L = double(1 + random() % 9), m.h = one_of({64, 128, 256, 512});
            m.a = one_of({2, 4, 8, 16}), m.K = one_of({1, 2, 4, 8, 16}), m.D = one_of({0, 16, 64});
            m.h_ff = one_of({64, 192, 512, 2048}), m.v = one_of({256, 1001, 32000});
            m.tied = one_of({0, 1});
            if (random() % 3 == 0)
                m.E = one_of({4, 8}), m.top = one_of({1, 2, 3}), m.h_e = one_of({32, 96, 256}),
                m.shared = one_of({0, 0, 1, 2}), m.dense = one_of({0, 1, 2});
        } else {
            constexpr const char* names[] = {"llama-3.2-1b", "llama-3-8b", "llama-3-70b",
                                             "moe-16b"};
            m.set(preset(names[random() % 4]));
        }
        m.s = one_of({64, 256, 1024, 4096}), m.b = one_of({1, 2, 3}), m.m = one_of({1, 2, 4, 8});
        m.recompute = one_of({0, 1, 2}), m.naive = one_of({0, 0, 1});
        m.e = one_of({2, 4}), m.g = m.e == 4 ? 4 : one_of({2, 4}), m.k = m.e == 4 ? 8 : 12;
        m.dp = one_of({1, 2, 4}), m.tp = one_of({1, 1, 2, 4}), m.sp = one_of({0, 1});
        m.cp = one_of({1, 1, 1, 2, 4}), m.ep = m.E > 0 ? one_of({1, 2, 4}) : 1;
        m.pp = one_of({1, 1, 1, 2, 3, 4}), m.zero = one_of({0, 1, 2, 3});
        m.fp8 = std::max({m.tp, m.cp, m.pp}) == 1 ? one_of({0, 1}) : 0;
        m.schedule = one_of({0, 1, 2}), m.chunks = one_of({2, 3}),
        m.r = double(random() % int(m.pp));
        if (why_refused(m).empty()) return m;
    }
}

std::string text_of(const MemorySettings& m) {
    std::string text;
#define SETTING(group, name, ...) text += fmt::format(#name "={} ", m.name);
#include "lab/predict/memory_formulas.inc"
    return text;
}

int64_t whole(double value) { return int64_t(value); }
Schedule schedule_of(const MemorySettings& m) {
    const int p = int(m.pp), micro_batches = int(m.m);
    return m.schedule == 2   ? interleaved(p, micro_batches, int(m.chunks), p)
           : m.schedule == 1 ? one_f_one_b(p, micro_batches)
                             : afab(p, micro_batches);
}
// The same layout for chapter 09.
Techniques techniques_of(const MemorySettings& m) {
    Techniques t;
    t.axes.dp = int(m.dp), t.axes.tp = int(m.tp), t.axes.cp = int(m.cp), t.axes.ep = int(m.ep);
    t.axes.pp = int(m.pp), t.zero.stage = int(m.zero);
    complete(t, int(m.dp * m.tp * m.cp * m.ep * m.pp));
    if (m.tp > 1) t.tensor.sequence_parallel = m.sp == 1;
    if (m.pp == 1) return t;
    t.schedule = std::array{"afab", "1f1b", "interleaved"}[size_t(m.schedule)];
    if (m.schedule == 2) t.sizes.chunks = int(m.chunks);
    const int64_t stages = schedule_of(m).stages, L = whole(m.L);
    t.split = "";
    for (int64_t stage = 0; stage < stages; ++stage)
        t.split +=
            fmt::format("{}{}", stage > 0 ? "," : "", L / stages + (stage < L % stages ? 1 : 0));
    return t;
}
StepShape shape_of(const MemorySettings& m) {
    LlamaConfig config{.layers = whole(m.L),
                       .hidden = whole(m.h),
                       .heads = whole(m.a),
                       .kv_heads = whole(m.K),
                       .head_dim = whole(m.D > 0 ? m.D : m.h / m.a),
                       .ffn = whole(m.h_ff),
                       .vocab = whole(m.v),
                       .tied = m.tied == 1};
    config.experts = {.count = whole(m.E),
                      .ffn = whole(m.h_e),
                      .shared = whole(m.shared),
                      .first_dense = whole(m.dense)};
    config.experts.router.top_k = whole(m.top);
    return {.config = config,
            .model = {.dtype = m.e == 4 ? DType::fp32 : DType::bf16,
                      .recompute = Recompute::Kind(whole(m.recompute)),
                      .attention = m.naive == 1 ? AttentionKind::naive : AttentionKind::flash},
            .grad_dtype = m.g == 4 ? DType::fp32 : DType::bf16,
            .micro_batch = whole(m.b),
            .seq = whole(m.s)};
}

// What chapter 09 predicts for the rank. Throws UserError if it refuses the layout.
MemoryEstimate predicted(const MemorySettings& m) {
    const StepShape shape = shape_of(m);
    Options options;
    options.dtype = shape.model.dtype, options.fp32_grads = m.g > m.e;
    options.micro_batch = shape.micro_batch, options.grad_accum = whole(m.m);
    options.attention = shape.model.attention, options.with_experts = true;
    const Techniques techniques = techniques_of(m);
    check_combination(options, techniques, shape);
    MemoryEstimate memory = predict_imagined(options, shape, techniques, int(m.r)).memory;
    if (m.fp8 == 1) {  // chapter 08 keeps the linears' inputs in 8 bits, and has no other axis
        LocalSizes sizes = ultrascale::local_sizes(shape);
        sizes.kept_input_bytes = 1;
        memory.peak_activations = peak_activation_bytes(sizes);
    }
    return memory;
}

TEST(MemoryFormulas, AreWhatTheProgramsPredict) {
    std::mt19937 random(7);
    int all = 0, with_equal_states = 0, with_equal_activations = 0;
    for (; all < 300; ++all) {
        const MemorySettings m = random_settings(random);
        SCOPED_TRACE(text_of(m));
        const MemoryFormulas f(m);
        const MemoryEstimate p = predicted(m);

        // The table knows no padding: shards begin at multiples of 8 elements. A layer with experts
        // has two flat tensors.
        const double padding = m.zero == 0 ? 0 : (2 * f.layers + 3) * 8 * m.dp * m.cp * m.ep,
                     states = std::max({std::abs(f.parameters - double(p.parameters)) / m.e,
                                        std::abs(f.gradients - double(p.gradients)) / m.g,
                                        std::abs(f.states - double(p.optimizer)) / m.k});
        EXPECT_LE(states, padding);
        with_equal_states += states == 0;

        // The table knows no messages between stages, and none of a ring's buffers; what experts
        // hold while they work is rounded.
        const double activations = f.activations + f.work, most = double(p.peak_activations);
        const double messages = m.pp == 1 ? 0 : m.schedule == 2 ? 8 : 4;
        const double ring = m.cp == 1 ? 0 : 4 * (f.q + 2 * f.kv + f.stream);
        const double experts = m.E == 0 ? 0 : (m.recompute == 2 ? 0.25 : 0.1) * most;
        EXPECT_LE(most - activations, messages * f.stream + ring + experts + 0.5);
        EXPECT_GE(most - activations, -experts - 0.5);
        with_equal_activations += std::abs(most - activations) < 0.5;
        if (m.pp > 1) {
            EXPECT_NEAR(f.in_flight, peak_in_flight(schedule_of(m), int(m.r)), 1e-9);
        }

        const double buffers = double(p.peak_communication);
        if (m.zero < 2) {
            EXPECT_EQ(f.buffers, 0);
        } else if (m.cp == 1 && m.dp * m.ep > 1) {
            const bool plain = m.pp == 1 && m.E == 0 && m.L > 2;
            EXPECT_GE(f.buffers, (plain ? 0.99 : 0.65) * buffers);
            EXPECT_LE(f.buffers, (plain ? 1.25 : 2) * buffers);
        }
    }
    EXPECT_GE(with_equal_states, 285);
    EXPECT_GE(with_equal_activations, 180);
}

// A layer of a GPT, without biases; and what the book says about its activations.
TEST(MemoryFormulas, AreTheBooks) {
    MemorySettings m;
    m.set("h=12288,a=96,K=96,h_ff=49152,L=96,v=50257,matrices=2,tied=1,s=2048,b=3,pp=1");
    const MemoryFormulas gpt(m);
    const double h = gpt.h, biases = 3 * h + h + 4 * h + h + 2 * h;  // and two of norms
    EXPECT_EQ(gpt.attention + gpt.feed_forward,
              sum_of(single_gpu::gpt_layer_parameters(h)) - biases);
    EXPECT_EQ(gpt.book_N, single_gpu::gpt_parameters(single_gpu::gpt3));
    const auto selective = single_gpu::selective_recomputation(single_gpu::gpt3, 2048);
    EXPECT_EQ(gpt.book_terms, selective.linear);
    EXPECT_EQ(gpt.book_scores, selective.squared);
    EXPECT_EQ(gpt.book_activations, 96 * 2048. * 3 * h * (selective.linear + selective.squared));

    // Korthikanti et al. 2022, table 2.
    const auto terms = [&](const std::string& text) {
        MemorySettings changed = m;
        changed.set(text);
        const MemoryFormulas f(changed);
        return f.book_activations / (96 * 2048. * 3 * h);
    };
    const double scores = 5 * 96 * 2048. / h;
    EXPECT_DOUBLE_EQ(terms("tp=8,sp=0"), 10 + 24. / 8 + scores / 8);
    EXPECT_DOUBLE_EQ(terms("tp=8,sp=1"), (34 + scores) / 8);
    EXPECT_DOUBLE_EQ(terms("tp=8,sp=1,recompute=1"), 34. / 8);
    EXPECT_DOUBLE_EQ(terms("recompute=2"), 2);
    // 1F1B's first rank has as many activations as a device that has all layers.
    EXPECT_DOUBLE_EQ(terms("pp=8,m=16"), terms("pp=1"));
}

TEST(MemoryFormulas, ReadSettings) {
    MemorySettings m;
    m.set("h=8192,tp=8");
    EXPECT_EQ(m.h, 8192);
    EXPECT_EQ(m.tp, 8);
    for (const char* text :
         {"H=1", "h", "h=", "h=x", "h=1x", "h=-1", "h=nan", "h=1e13", "h=1.5", "=1", ","})
        EXPECT_THROW(m.set(text), UserError) << text;
    // Published models, and back.
    m = {};
    m.set(preset("moe-16b"));
    EXPECT_EQ(parameter_count(shape_of(m).config), parameter_count(preset("moe-16b")));
    EXPECT_EQ(why_refused(m), "");
    m.tp = 32;
    EXPECT_EQ(why_refused(m), "tp must divide the attention heads, because a head is not split.");
}

}  // namespace
}  // namespace ultrascale
