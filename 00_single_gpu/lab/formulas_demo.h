// --demo parameters, activations, batch and latent: the formulas of 4_formulas.h with their terms
// and with published models' numbers. Nothing is trained.
#pragma once

#include "../4_formulas.h"
#include "batch_ramp.h"
#include "lab/predict/estimate.h"
#include "lab/predict/memory_formulas.h"
#include "lab/report/report.h"

namespace ultrascale::single_gpu {

inline std::string billions(double n) { return fmt::format("{:.3f} B", n / 1e9); }

inline void demo_parameters() {
    const double h = double(gpt3.hidden);
    print("a GPT's layer, in parameters, with GPT-3's h = 12288");
    for (const auto& [what, value] : gpt_layer_parameters(h))
        print(fmt::format("  {:<40} {:>14.0f}", what, value));
    print(fmt::format("  {:<40} {:>14.0f} = {:.0f}", "12 h^2 + 13 h", 12 * h * h + 13 * h,
                      sum_of(gpt_layer_parameters(h))));
    print(fmt::format("N = h v + L (12 h^2 + 13 h) + 2 h = {} for GPT-3 (L 96, v 50257)",
                      billions(gpt_parameters(gpt3))));
    print("A Llama has no biases, keys of K heads, and SwiGLU's three matrices of F features:");
    print("  N = 2 h v + L (2 h + h (H + 2 K) D + H D h + 3 h F) + h");
    print("with K = H and F = 8 h / 3 its layer has 12 h^2 + 2 h: SwiGLU costs nothing more");

    print("\nbytes of weights, gradients and AdamW's states, in GB (10^9)");
    print(fmt::format("  {:<14} {:>10} {:>9} {:>9} {:>9} {:>9}   {:>9} {:>9} {:>9}", "", "N",
                      "weights", "grads", "+ fp32", "states", "16 N", "18 N", "20 N"));
    const auto row = [](const std::string& name, double n) {
        print(
            fmt::format("  {:<14} {:>10} {:>9.1f} {:>9.1f} {:>9.1f} {:>9.1f}   {:>9.1f} {:>9.1f} "
                        "{:>9.1f}",
                        name, billions(n), 2 * n / 1e9, 2 * n / 1e9, 4 * n / 1e9, 12 * n / 1e9,
                        16 * n / 1e9, 18 * n / 1e9, 20 * n / 1e9));
    };
    for (double n : {1e9, 7e9, 70e9, 405e9}) row(fmt::format("{:.0f}B", n / 1e9), n);
    for (const char* name : {"llama-3.2-1b", "llama-2-7b", "llama-3-70b", "llama-3-405b"})
        row(name, double(parameter_count(preset(name))));
    print(
        "  16 N: all in bf16 with fp32 states; 18 N: gradients in fp32 instead; 20 N: an fp32 sum");
    print(
        "  of the gradients beside them (the playbook's). fp32 without a copy: 4 + 4 + 8 = 16 N.");
}

// The bytes a token that a layer keeps. `squared` is what selective recomputation drops, tensors of
// s numbers for each token and head. Dropout's two masks count where they are applied.
struct KeptOfToken {
    double norms, attention, squared, feed_forward;
    double linear() const { return norms + attention + feed_forward; }
    double saved() const { return squared / (linear() + squared); }
    double attentions_share() const { return attention / linear(); }  // of what is not squared
};
inline KeptOfToken kept_of_token(const LlamaConfig& config, const ModelOptions& model,
                                 int64_t seq) {
    const StepShape shape{.config = config, .model = model, .micro_batch = 1, .seq = seq};
    LocalSizes token = local_sizes(shape);
    token.stream_tokens = token.region_tokens = 1;
    if (config.experts.count > 0) {  // a balanced router's
        MemorySettings settings;
        settings.set(shape);
        token.feed_forward = {.kept = MemoryFormulas(settings).kept_experts / double(seq)};
    }
    const LayerActivations all = layer_activations(token);
    token.model.recompute = Recompute::selective;
    const double attention = layer_activations(token).attention, mask = all.masks / 2;
    return {all.norms, attention + mask, all.attention - attention, all.mlp + mask};
}

// Attention's share of what a layer keeps, for GPT-3's layer and for others.
inline void demo_shares() {
    print("\nbytes a token that a layer keeps in bf16, and attention's share");
    print(fmt::format("  {:<27} {:>5} {:>9} {:>10} {:>9} {:>13} {:>7} {:>9}", "", "s", "norms",
                      "attention", "s x s", "feed-forward", "saved", "of rest"));
    const ModelOptions tiles = {.dtype = DType::bf16};
    ModelOptions squares = tiles, gpt = tiles;
    squares.attention = gpt.attention = AttentionKind::naive;
    gpt.dropout = 0.1, gpt.keep_masks = true;
    const LlamaConfig gpt_3 = {.layers = gpt3.layers,
                               .hidden = gpt3.hidden,
                               .heads = gpt3.heads,
                               .kv_heads = gpt3.heads,
                               .head_dim = gpt3.hidden / gpt3.heads,
                               .ffn = 4 * gpt3.hidden,
                               .vocab = gpt3.vocab,
                               .gpt = true};
    for (const auto& [name, config, model] :
         {std::tuple{"GPT-3, 34 + 5 a s / h", gpt_3, gpt},
          {"llama-3-8b, s x s", preset("llama-3-8b"), squares},
          {"llama-3-8b, in tiles", preset("llama-3-8b"), tiles},
          {"moe-16b (experts), s x s", preset("moe-16b"), squares},
          {"moe-16b (experts), in tiles", preset("moe-16b"), tiles}})
        for (int64_t seq : {2048, 8192}) {
            const KeptOfToken k = kept_of_token(config, model, seq);
            print(
                fmt::format("  {:<27} {:>5} {:>9.0f} {:>10.0f} {:>9.0f} {:>13.0f} {:>5.1f} % "
                            "{:>7.1f} %",
                            name, seq, k.norms, k.attention, k.squared, k.feed_forward,
                            100 * k.saved(), 100 * k.attentions_share()));
        }
    print("  saved: the share of s x s. Of rest: attention's share of all but s x s.");
}

inline void demo_activations() {
    print("what a layer of a GPT keeps for its backward, in bytes a number of s b h or a s^2 b");
    print(fmt::format("  {:<48} {:>8} {:>10}", "", "s b h", "a s^2 b"));
    double sbh = 0, assb = 0;
    const auto number = [](double value) { return value > 0 ? fmt::format("{}", value) : ""; };
    for (const KeptTerm& term : gpt_layer_activations()) {
        print(fmt::format("  {:<48} {:>8} {:>10}", term.what, number(term.sbh), number(term.assb)));
        sbh += term.sbh, assb += term.assb;
    }
    print(fmt::format("  {:<48} {:>8} {:>10}   = s b h ({} + {} a s / h)", "sum", sbh, assb, sbh,
                      assb));
    print("\nselective recomputation drops what grows with s^2");
    print(fmt::format("  {:<24} {:>7} {:>9} {:>14} {:>7} {:>12} {:>9}", "", "s", "5 a s / h",
                      "of each layer", "saved", "attention", "added"));
    // MT-NLG 530B: Smith et al. 2022, arXiv 2201.11990.
    const Gpt mt_nlg = {.layers = 105, .hidden = 20480, .heads = 128, .vocab = 51200};
    for (const auto& [name, gpt, seq] : {std::tuple{"GPT-3 175B", gpt3, 2048},
                                         {"MT-NLG 530B", mt_nlg, 2048},
                                         {"GPT-3, longer", gpt3, 8192}}) {
        const Selective s = selective_recomputation(gpt, seq);
        print(fmt::format("  {:<24} {:>7} {:>9.1f} {:>14} {:>5.1f} % {:>10.1f} % {:>7.1f} %", name,
                          seq, s.squared, fmt::format("{:.1f} s b h", s.linear + s.squared),
                          100 * s.saved(), 100 * s.attention_share, 100 * s.added));
    }
    print("  attention: q k^T and p v as a share of a step's FLOPs, forward and backward. That is");
    print(
        "  the number which the paper gives as the price (2.7 and 1.6 %). What runs a second time");
    print("  is its forward, a third of it (added).");
    demo_shares();
}

// `text` is a ramp (batch_ramp.h) of sequences of `seq` tokens.
inline void demo_batch(const std::string& text, int64_t micro_batch, int64_t seq) {
    const int64_t tokens = int64_t(4) << 20, samples = tokens / 4096;
    print("a batch size in four steps");
    print(fmt::format("  1  the batch that training wants: {} tokens", tokens));
    print(fmt::format("  2  the sequence length, 4096:     {} samples", samples));
    print("  3  what one GPU's memory takes:   2 samples at a time (--estimate)");
    for (int64_t gpus : {128, 256, 512})
        print(fmt::format("  {}  micro-batches on {} GPUs:     {} each", gpus == 128 ? "4" : " ",
                          gpus, accumulation_steps(samples, 2, gpus)));

    print(fmt::format("\na batch that grows: {} with {} tokens a sequence", text, seq));
    print(fmt::format("  {:>12} {:>12} {:>12} {:>14} {:>14}", "tokens", "sequences", "steps",
                      "from tokens", "to"));
    const BatchRamp ramp(text, micro_batch, micro_batch, seq);
    double seen = 0;
    int64_t begin = 0;
    for (const BatchRamp::Stage& stage : ramp.stages()) {
        const double each = double(stage.sequences) * double(seq);
        const bool last = stage.until_step == INT64_MAX;
        const double until = seen + each * double(stage.until_step - begin);
        print(fmt::format("  {:>10.2f} M {:>12} {:>12} {:>14} {:>14}", each / 1e6, stage.sequences,
                          last ? "-" : std::to_string(stage.until_step - begin), billions(seen),
                          last ? "the end" : billions(until)));
        seen = until, begin = stage.until_step;
    }
    print(
        "\nwhen to double it: the critical batch is 2e8 / loss^(1/0.21) tokens (Kaplan et al. "
        "2020)");
    print("  critical batch   at loss");
    for (double batch = 0.5e6; batch <= 16e6; batch *= 2)
        print(fmt::format("  {:>12.1f} M   {:>7.2f}", batch / 1e6, loss_of_critical_batch(batch)));
    print(fmt::format(
        "  it has doubled each time that the loss has fallen to {:.1f} % of what it was",
        100 * std::pow(2, -kaplan_alpha)));
}

inline void demo_latent() {
    const LatentAttention& a = deepseek_v3;
    const double tokens = 4096, layers = 61;
    print("attention of DeepSeek-V3: h 7168, 128 heads of 128 + 64, latents 1536 and 512 + 64");
    print(fmt::format(
        "what a layer keeps for attention's backward besides its input, {} tokens, bf16", tokens));
    print(fmt::format("  {:<46} {:>9} {:>11} {:>12} {:>8}", "", "numbers", "a layer", "61 layers",
                      "share"));
    const int64_t plain = kept_plain(a, a.heads);
    const auto row = [&](const char* what, int64_t numbers) {
        const double bytes = 2 * double(numbers) * tokens;
        print(fmt::format("  {:<46} {:>9} {:>11} {:>12} {:>6.1f} %", what, numbers,
                          format_bytes(bytes), format_bytes(layers * bytes),
                          100 * double(numbers) / double(plain)));
    };
    row("plain: q, k, v, o of 128 heads of 128", plain);
    row("8 heads of k and v (grouped queries)", kept_plain(a, 8));
    row("latent, all kept: latents, q, k, v, o", a.kept());
    row("latent, q, k and v made again: latents, o", a.kept_latent());
    print(fmt::format("  a cache for generation holds {} numbers a token (plain {}, 8 heads {})",
                      a.kv_rank + a.rope, 2 * a.heads * a.value, 2 * 8 * a.value));
    const double again = 2 * double(a.up()), forward = 2 * double(a.weights());
    print(
        fmt::format("  made again: {:.0f} MFLOP a token and layer, {:.1f} % of a forward of the "
                    "attention's linears,",
                    again / 1e6, 100 * again / forward));
    print(
        fmt::format("  {:.1f} % of a step's work on a layer with DeepSeek-V3's 37 B parameters a "
                    "token",
                    100 * again / (6 * 37e9 / layers)));
}

}  // namespace ultrascale::single_gpu
