// --playbook --svg DIR: cheatsheet.svg, the cheatsheet as one poster for A3: what each technique
// cuts, sends and holds, with the figures of one model on one cluster, and the formulas behind.
#pragma once

#include "imagined.h"
#include "playbook.h"
#include "rule_of_thumb.h"

namespace ultrascale::five_d::playbook {

// How four ranks share something: each has it whole, or they have rows, columns or fields of it.
enum class Share { none, whole, rows, columns, fields };

struct PosterRow {
    const char *name, *cuts, *saves, *sends, *hidden, *when, *limit;
    Share tokens, weights, gradients, states;
    std::optional<Plan> plan;  // of the example; none: its model has no experts
};
// In the letters of CHEATSHEET.md. On the example's 64 GPUs the ranks that a technique leaves are
// data parallel.
inline std::vector<PosterRow> poster_rows() {
    using enum Share;
    return {
        {"data parallel", "the batch", "nothing", "2 Ψ (n-1)/n", "backward", "always, first",
         "weights on every rank", rows, whole, whole, whole, Plan{.dp = 64, .micro_batches = 4}},
        {"ZeRO-1", "and states", "states / n", "2 Ψ (n-1)/n", "backward, forward",
         "instead of plain", "gradients are whole", rows, whole, whole, rows,
         Plan{.dp = 64, .zero = 1, .micro_batches = 4}},
        {"ZeRO-2", "and gradients", "+ gradients / n", "(m+1) Ψ (n-1)/n", "backward, forward",
         "few micro-batches", "sums for each of them", rows, whole, rows, rows,
         Plan{.dp = 64, .zero = 2, .micro_batches = 4}},
        {"ZeRO-3", "and weights", "+ weights / n", "3 m Ψ (n-1)/n", "layers' compute",
         "model > a GPU", "512 ranks", rows, rows, rows, rows,
         Plan{.dp = 64, .zero = 3, .micro_batches = 4}},
        {"tensor + sequence", "heads, F, V, tokens", "all / n", "10 L m T h (n-1)/n", "little",
         "within a node", "n ≤ a node, heads", columns, columns, columns, columns,
         Plan{.dp = 8, .tp = 8, .micro_batches = 32}},
        {"context", "the sequence", "activations / n", "L m (n-1) (2 kv + dkv)", "attention",
         "from 32k tokens", "weights stay whole", columns, whole, whole, whole,
         Plan{.dp = 8, .cp = 8, .micro_batches = 32}},
        {"pipeline (1F1B)", "the layers", "all but activations", "2 m T h", "other micro-batches",
         "across nodes", "bubble (p-1)/m", whole, rows, rows, rows,
         Plan{.dp = 8, .pp = 8, .micro_batches = 32}},
        {"expert", "the experts", "experts / n", "4 L m T k h (n-1)/n", "another micro-batch",
         "models with experts", "uneven loads", rows, fields, fields, fields, std::nullopt},
        {"recomputation", "activations in time", "all but inputs", "forward's, again", "-",
         "nothing else fits", "a third more FLOPs", rows, rows, rows, rows,
         Plan{.dp = 64, .zero = 3, .micro_batches = 4, .recompute = Recompute::full}}};
}

// Returns the bytes that the first rank sends in a step, by the chapter's own prediction.
inline double bytes_sent(const StepShape& whole, const Plan& plan) {
    Options options;
    options.micro_batch = plan.micro_batch, options.grad_accum = plan.micro_batches;
    StepShape shape = whole;
    shape.micro_batch = plan.micro_batch;
    options.recompute = shape.model.recompute = plan.recompute;
    double sent = 0;
    for (const auto& [group, kinds] :
         predict_imagined(options, shape, plan.techniques(), 0).communication.groups)
        for (const auto& kind : kinds) sent += kind.sent;
    return sent;
}

inline void draw_share(Svg& svg, const Box& box, Share share) {
    if (share == Share::none) return;
    const int columns = share == Share::columns  ? 4
                        : share == Share::fields ? 2
                                                 : 1,
              rows = share == Share::rows     ? 4
                     : share == Share::fields ? 2
                                              : 1;
    const double width = box.width / columns, height = box.height / rows;
    for (int i = 0; i < rows * columns; ++i) {
        const Box part{box.x + i % columns * width, box.y + double(i / columns) * height, width,
                       height};
        svg.rect(part, share == Share::whole ? Role::workspace : role_of_rank(i));
        svg.outline(part, {.width = 0.75});
    }
}

// The lines of the poster's formulas, each with its value for the example.
inline std::vector<std::pair<std::string, std::string>> poster_formulas(const PlanFor& f) {
    constexpr double p = 8, m = 32, v = 4;  // of the pipeline
    const StepShape& shape = f.shape;
    const Hardware& h = f.hardware;
    const double n = double(f.gpus), tp = h.nodes.ranks;
    const LlamaConfig& c = shape.config;
    const double N = double(parameter_count(c)), large = h.peak * h.product_share;
    const auto gb = [](double bytes) { return fmt::format("{:.1f} GB", bytes / 1e9); };
    const auto kept = [&](const Keeping& keeping) {
        return gb(double(estimate_memory(keep(shape, keeping)).peak_activations));
    };
    return {
        {"parameters N = 2 h V + L (2 h + h (H + 2 K) D + H D h + 3 h F) + h",
         fmt::format("{:.2f} B", N / 1e9)},
        {"weights in bf16 2 N, gradients in fp32 4 N, states 12 N: 18 N", gb(18 * N)},
        {"activations of a GPT, L s b h (34 + 5 a s / h)", gb(book_activations(shape))},
        {"ours: all without tiles; selective", kept(keepings[0]) + "; " + kept(keepings[1])},
        {"in tiles (FlashAttention); full recomputation",
         kept(keepings[2]) + "; " + kept(keepings[3])},
        {"FLOPs of a token, 6 N + 12 L H D s",
         fmt::format("{:.1f} G", model_flops_per_token(c, int64_t(N), shape.seq) / 1e9)},
        {"MFU = FLOPs of a token x tokens/s / peak",
         fmt::format("peak {:.0f} TFLOP/s", h.peak / 1e12)},
        {"sent by a ring: all-reduce 2 (n-1)/n S, all others (n-1)/n S",
         fmt::format("n {}: {:.2f} S, {:.2f} S", n, 2 * (n - 1) / n, (n - 1) / n)},
        {"a sum hides under the backward of 2 R/B tokens",
         fmt::format("{:.0f} tokens", 2 * large / h.inside.bytes_per_second)},
        {"tp sends / computes: (tp-1)/(2 h) x R / (numbers/s)",
         fmt::format("tp {}: {:.2f}", tp,
                     (tp - 1) / (2 * double(c.hidden)) * large / (h.inside.bytes_per_second / 2))},
        {"bubble / work: 1F1B (p-1)/m, interleaved (p-1)/(v m)",
         fmt::format("p {}, m {}: {:.0f} %; v {}: {:.1f} %", p, m, 100 * (p - 1) / m, v,
                     100 * (p - 1) / (v * m))},
        {"tokens a step = micro-batch x accumulation x dp x ep x s",
         fmt::format("{}", f.sequences * shape.seq)}};
}

// What others have run: the published share of the peak beside the predicted one.
inline void draw_others(Svg& svg, double x, double y) {
    svg.text(x, y, "What others ran: MFU published, and predicted", {.size = 18, .bold = true});
    for (const PublishedRow& row : published_rows()) {
        if (row.plan.ranks() < 2000) continue;
        MemoryModel memory(row.shape);
        Hardware h = find_hardware(row.hardware);
        h.tensor_hidden = 0.9;  // what these programs hide (published.h)
        svg.text(x, y += 24, row.name + ": " + describe(row.plan), {.size = 13});
        svg.text(1567, y, fmt::format("{:.0f}, {:.0f} %", row.mfu, compare(row, h, memory).mfu),
                 {.anchor = Text::end, .size = 14});
    }
}

inline void draw_poster(const std::string& directory) {
    const StepShape shape = shape_of("llama-3-8b", 4096);
    Planner planner(
        {.shape = shape, .hardware = find_hardware("h100"), .gpus = 64, .sequences = 256});
    const double limit = double(planner.what().limit());
    Svg svg(1587, 1122, "ultrascale.cpp: the cheatsheet of parallel training",
            "What each technique cuts, saves, sends; formulas; and the figures of Llama-3-8B on 64 "
            "H100s, all by the programs' formulas.",
            420);
    svg.text(20, 54,
             "Example: Llama-3-8B, bf16 with gradients in fp32, 256 sequences of 4096 tokens "
             "a step on 64 H100s. Ranks that a technique leaves over are data parallel. "
             "All figures are predicted.",
             {.size = 15});
    constexpr double columns[] = {20, 155, 336, 482, 630, 798, 945, 1092, 1240, 1470, 1530};
    constexpr const char* heads[] = {"technique",
                                     "4 ranks share",
                                     "what is cut",
                                     "memory saved",
                                     "a rank sends in a step",
                                     "hidden by",
                                     "when",
                                     "limit",
                                     "held by a GPU, of 80 GB",
                                     "sends",
                                     "MFU"};
    constexpr double top = 118, pitch = 54;
    for (size_t i = 0; i < std::size(columns); ++i)
        svg.text(columns[i], 88, heads[i], {.size = 14, .bold = true});
    for (int i = 0; i < 4; ++i)
        svg.text(155 + 45 * i, 106, std::array{"tokens", "weights", "grads", "states"}[size_t(i)],
                 {.size = 12});
    svg.text(1470, 106, "GB", {.size = 12}), svg.text(1530, 106, "%", {.size = 12});
    const Axis held{0, 160e9, 1240, 1410};
    std::vector<std::pair<std::string, Ranked>> steps;
    const std::vector<PosterRow> rows = poster_rows();
    svg.line({held(80e9), top - 4}, {held(80e9), top + pitch * double(rows.size()) - 10},
             {.width = 1.5, .dashed = true});
    double y = top;
    for (const PosterRow& row : rows) {
        svg.line({20, y - 6}, {1567, y - 6}, {.role = Role::faint});
        svg.text(20, y + 26, row.name, {.size = 14, .bold = true});
        const Share shares[] = {row.tokens, row.weights, row.gradients, row.states};
        for (int i = 0; i < 4; ++i) draw_share(svg, {155 + 45. * i, y, 38, pitch - 14}, shares[i]);
        const char* words[] = {row.cuts, row.saves, row.sends, row.hidden, row.when, row.limit};
        for (size_t i = 0; i < std::size(words); ++i)
            svg.text(columns[2 + i], y + 26, words[i], {.size = 14});
        if (row.plan) {
            const Ranked r = planner.one(*row.plan);
            if (double(r.memory.most) <= limit) steps.emplace_back(row.name, r);
            const double end =
                draw_stacked_bar(svg, held, y + 8, 24, parts_of(row.name, r.memory.memory));
            svg.text(end + 6, y + 26, fmt::format("{:.0f}", double(r.memory.most) / 1e9),
                     {.size = 14, .bold = double(r.memory.most) > limit, .halo = true});
            svg.text(1470, y + 26, fmt::format("{:.1f}", bytes_sent(shape, *row.plan) / 1e9),
                     {.size = 14});
            svg.text(1530, y + 26,
                     double(r.memory.most) <= limit ? fmt::format("{:.1f}", 100 * planner.mfu(r))
                                                    : "no fit",
                     {.size = 14});
        } else {
            svg.text(1240, y + 26, "this model has no experts", {.size = 14, .halo = true});
        }
        y += pitch;
    }
    draw_legend(
        svg, 20, y + 2,
        {{Role::workspace, "every rank has all of it"}, {Role::rank0, "rank 0's part, and so on"}});
    draw_legend(svg, 900, y + 2, memory_legend());
    svg.text(
        20, y + 40,
        "L layers, h width, F features, V vocabulary, H (a) heads, K key-value heads, D = h/H, s "
        "tokens "
        "of a sequence, b sequences of a micro-batch, m micro-batches of a rank's step, Ψ bytes of "
        "weights, n ranks,",
        {.size = 14});
    svg.text(20, y + 60,
             "p stages, v chunks a stage, T tokens of a micro-batch x bytes of a number, kv and "
             "dkv bytes of "
             "keys with values and of their gradients, k experts of a token, R FLOP/s of a GPU, B "
             "bytes/s "
             "of a link, S bytes.",
             {.size = 14});

    const double below = y + 100;
    svg.text(20, below, "Formulas, and this model", {.size = 18, .bold = true});
    y = below + 28;
    for (const auto& [formula, value] : poster_formulas(planner.what())) {
        svg.text(20, y, formula, {.size = 14});
        svg.text(650, y, value, {.anchor = Text::end, .size = 14, .bold = true});
        svg.line({20, y + 8}, {650, y + 8}, {.role = Role::faint});
        y += 27;
    }
    svg.text(690, below,
             "Where the step goes: the fastest of all layouts, and those above that fit",
             {.size = 18, .bold = true});
    const Planned all = planner.plan();
    y = below + 16;
    steps.insert(steps.begin(), {describe(all.fit.front().plan), all.fit.front()});
    double longest = 0;
    for (const auto& [name, r] : steps) longest = std::max(longest, r.seconds);
    const Axis step{0, longest, 850, 1400};
    for (const auto& [name, r] : steps) {
        const StepCost& cost = r.cost;
        svg.text(690, y + 16, name, {.size = 14});
        const double end = draw_stacked_bar(
            svg, step, y, 20,
            {{Role::forward, cost.compute, "compute"},
             {Role::communication, cost.tensor + cost.context + cost.experts, "in layers"},
             {Role::exposed, cost.uneven + cost.bubble + cost.messages, "pipeline"},
             {Role::gradients, cost.data, "gradients and weights"},
             {Role::update, cost.optimizer, "optimizer"}});
        svg.text(end + 8, y + 16,
                 fmt::format("{:.0f} ms, {:.1f} %", 1e3 * r.seconds, 100 * planner.mfu(r)),
                 {.size = 14});
        y += 27;
    }
    draw_legend(svg, 690, y + 4,
                {{Role::forward, "compute"},
                 {Role::communication, "waits in layers"},
                 {Role::exposed, "bubble"},
                 {Role::gradients, "sums, gathers"},
                 {Role::update, "optimizer"}});
    const double last = y += 58;
    svg.text(690, y, "The playbook's rule of thumb", {.size = 18, .bold = true});
    const RuleOfThumb rule = rule_of_thumb(planner);
    for (size_t i = 0; i < rule.steps.size(); ++i)
        svg.text(690, y += 24, fmt::format("{}. {}", i + 1, rule.steps[i]), {.size = 14});
    if (rule.chosen)
        svg.text(690, y + 24,
                 fmt::format("{}: {:.2f} times the fastest step", describe(rule.chosen->plan),
                             rule.chosen->seconds / all.fit.front().seconds),
                 {.size = 14});
    draw_others(svg, 1060, last);
    write_picture(directory, "cheatsheet.svg", svg);
}

}  // namespace ultrascale::five_d::playbook
