// Compares what others have measured and published with the model of cost.h: the only check of it
// that needs no cluster.
//
//     Megatron-LM's README      nine sizes, H100, 48 replicas, 4096 tokens
//     Llama 3 (2407.21783)      table 4: 405B on 8,192 and 16,384 H100s
//     DeepSeek-V3               one step on 2,048 H800s, whose parts were published as a trace
//     the playbook              the best of its layouts for four models on 1 to 64 nodes
//
// Every other row of the first twelve is used to fit two shares: how much of the peak large
// products reach, and how much of tensor parallelism's communication these two programs hide, at
// most 0.9. The rows between them are held out. (The playbook's program hides none of it: chapter
// 03's SCALING.md.)
//
// What the tables do not say is assumed for all rows alike. Megatron-LM's gradients are summed in
// fp32, a GPT's feed-forward of 4 h counts as the SwiGLU with as many weights, and pipelines run
// one sequence at a time, with a layer a chunk (70B with two: a rank has 26 chunks at most).
// Without a pipeline, a replica's four sequences are one micro-batch: gradients are summed, and
// weights gathered, under only one backward and one forward, so smaller micro-batches would wait
// for what the whole step can hide. The row of 32B shows that this was so: tp 8 leaves each rank
// one network card, of 50 GB/s, for 15.7 GB of gradients and 7.9 GB of weights. Under a quarter of
// the step, so much of them would be waited for that 46 % could not be reached, even if products
// ran as fast as they do alone and all else took no time (a test has the numbers). Llama 3 has a
// layer a chunk (its figure 6), and gathers keys for context parallelism.
#pragma once

#include "cost.h"
#include "lab/predict/memory_formulas.h"

namespace ultrascale::five_d {

struct PublishedRow {
    std::string name;
    StepShape shape;
    Plan plan;
    double mfu = 0;         // %; 0: the seconds of a step are published instead
    double seconds = 0;     // a step's
    bool causal = false;    // the published MFU counts half of attention's scores
    bool looks_up = false;  // it counts no product for the embedding, a look-up
    double memory_gb = 0;   // the first rank's, in 2^30 bytes; 0: not published
    Program program = Program::ours;
    const char* hardware = "h100";
    bool hides_experts = false;  // one micro-batch's rows travel while another one computes
    double faster_products = 1;  // how many times as fast fp8's are
};

inline StepShape published_shape(const LlamaConfig& config, int64_t seq) {
    return {.config = config,
            .model = {.dtype = DType::bf16},
            .grad_dtype = DType::fp32,
            .micro_batch = 1,
            .seq = seq};
}
inline StepShape published_shape(int64_t L, int64_t h, int64_t D, int64_t K, int64_t F, int64_t V,
                                 bool tied, int64_t seq) {
    return published_shape({.layers = L,
                            .hidden = h,
                            .heads = h / D,
                            .kv_heads = K > 0 ? K : h / D,
                            .head_dim = D,
                            .ffn = F,
                            .vocab = V,
                            .tied = tied},
                           seq);
}

// Megatron-LM's nine rows and Llama 3's three: rows 0, 2, 4 ... are fitted, the others held out.
// Megatron-LM's are published as TFLOP/s of a GPU.
inline std::vector<PublishedRow> published_rows() {
    std::vector<PublishedRow> rows;
    const auto megatron = [&](const char* name, int64_t h, int64_t L, int64_t tp, int64_t pp,
                              double tflops) {
        const int64_t sequences = 4 * pp,  // of a replica
            layers = L / pp, layers_per_chunk = layers > most_chunks ? 2 : 1;
        rows.push_back({.name = fmt::format("Megatron-LM {}", name),
                        .shape = published_shape(L, h, 128, 0, 8 * h / 3, 131072, false, 4096),
                        .plan = {.dp = 48,
                                 .tp = tp,
                                 .pp = pp,
                                 .zero = 1,
                                 .micro_batch = pp == 1 ? sequences : 1,
                                 .micro_batches = pp == 1 ? 1 : sequences,
                                 .chunks = pp == 1 ? 1 : int(layers / layers_per_chunk)},
                        .mfu = 100 * tflops / 989.5,
                        .looks_up = true});
    };
    megatron("1.7B", 2048, 24, 1, 1, 408.8);
    megatron("7.1B", 4096, 30, 2, 1, 465.9);
    megatron("16B", 6144, 32, 4, 1, 489.1);
    megatron("32B", 7168, 48, 8, 1, 459.6);
    megatron("70B", 8192, 84, 8, 2, 419.7);
    megatron("119B", 10240, 92, 8, 4, 420.5);
    megatron("177B", 12288, 96, 8, 6, 432.8);
    megatron("314B", 16384, 96, 8, 8, 474.4);
    megatron("462B", 18432, 112, 8, 16, 459.9);
    const auto llama = [&](int64_t cp, int64_t dp, int64_t seq, double mfu) {
        const int64_t batch = 16 * 1024 * 1024 / seq;
        rows.push_back(
            {.name = fmt::format("Llama-3-405B, {} GPUs{}", 128 * cp * dp, cp > 1 ? ", 131k" : ""),
             .shape = published_shape(126, 16384, 128, 8, 53248, 128256, false, seq),
             .plan = {.dp = dp,
                      .tp = 8,
                      .cp = cp,
                      .pp = 16,
                      .zero = 1,
                      .micro_batches = batch / dp,
                      .chunks = 7,
                      .context = {.variant = Variant::all_gather}},
             .mfu = mfu,
             .causal = true});
    };
    llama(1, 64, 8192, 43), llama(1, 128, 8192, 41), llama(16, 8, 131072, 38);
    return rows;
}

// DeepSeek-V3's step. DualPipe is represented by 1F1B in which the experts' rows travel under
// another micro-batch. Products in fp8 are as much faster than in bf16 as on the H200 of chapter
// 07's MEASURED.md.
inline PublishedRow deepseek_row() {
    StepShape shape = published_shape(deepseek_v3_by_formula(), 4096);
    return {.name = "DeepSeek-V3, 2048 H800s",
            .shape = shape,
            .plan = {.dp = 2, .ep = 64, .pp = 16, .zero = 1, .micro_batches = 120},
            .seconds = 19.926,
            .hardware = "h800",
            .hides_experts = true,
            .faster_products = 1.55};
}

// The playbook's 18 best layouts: nodes, model, DP/TP/PP, micro-batches and their sequences, ZeRO,
// MFU, GB. nanotron's source shows what a rank holds (models/llama.py: GLUActivation and the loss;
// optim/gradient_accumulator.py; DDP in trainer.py), and that the first rank writes the table, in
// 2^30 bytes (log_throughput). It does not show which of its two columns the playbook prints: what
// tensors took, or what PyTorch's allocator reserved for them, which is more.
inline std::vector<PublishedRow> playbook_rows() {
    const StepShape models[] = {published_shape(16, 2048, 64, 0, 8192, 131072, true, 4096),
                                published_shape(28, 3072, 96, 0, 8192, 131072, true, 4096),
                                published_shape(32, 4096, 128, 0, 14336, 131072, false, 4096),
                                published_shape(80, 8192, 128, 0, 28672, 131072, false, 4096)};
    const char* names[] = {"1.34B", "3.57B", "8.86B", "80B"};
    struct Cell {
        int nodes, model;
        int64_t dp, tp, pp, accumulated, micro_batch;
        int zero;
        double mfu, gb;
    };
    constexpr Cell cells[] = {
        {1, 0, 4, 1, 2, 16, 4, 1, 44.3, 41.8},   {1, 1, 4, 1, 2, 32, 2, 1, 46.7, 56.9},
        {1, 2, 2, 1, 4, 128, 1, 1, 45.2, 63.1},  {2, 0, 8, 1, 2, 32, 1, 1, 41.6, 19.5},
        {2, 1, 8, 1, 2, 16, 2, 1, 43.8, 54.3},   {2, 2, 4, 4, 1, 16, 4, 1, 43.9, 58.3},
        {4, 0, 16, 1, 2, 16, 1, 1, 38.4, 16.4},  {4, 1, 16, 1, 2, 8, 2, 1, 40.4, 53.3},
        {4, 2, 16, 1, 2, 16, 1, 1, 43.3, 61.1},  {4, 3, 1, 8, 4, 256, 1, 0, 14.8, 66.0},
        {16, 0, 64, 2, 1, 1, 4, 0, 29.5, 38.8},  {16, 1, 32, 4, 1, 1, 8, 0, 34.6, 66.2},
        {16, 2, 16, 8, 1, 2, 8, 0, 36.3, 66.9},  {16, 3, 1, 4, 32, 256, 1, 0, 34.3, 61.2},
        {64, 0, 128, 2, 2, 1, 2, 1, 5.3, 8.4},   {64, 1, 128, 4, 1, 1, 2, 1, 10.5, 16.4},
        {64, 2, 128, 4, 1, 1, 2, 0, 18.7, 57.8}, {64, 3, 32, 16, 1, 4, 2, 1, 17.8, 53.5}};
    std::vector<PublishedRow> rows;
    for (const Cell& cell : cells)
        rows.push_back({.name = fmt::format("{:>2} x 8, {}", cell.nodes, names[cell.model]),
                        .shape = models[cell.model],
                        .plan = {.dp = cell.dp,
                                 .tp = cell.tp,
                                 .pp = cell.pp,
                                 .zero = cell.zero,
                                 .micro_batch = cell.micro_batch,
                                 .micro_batches = cell.accumulated},
                        .mfu = cell.mfu,
                        .looks_up = true,
                        .memory_gb = cell.gb,
                        .program = Program::eager});
    return rows;
}

// A row beside the model's prediction.
struct Compared {
    double mfu = 0, seconds = 0, error = 0;  // error: predicted / published - 1, of the rate
    MemoryModel::RankMemory memory;
    StepCost cost;
};
inline Compared compare(const PublishedRow& row, Hardware hardware, MemoryModel& memory) {
    hardware.product_share *= row.faster_products;
    CostModel model(row.shape, hardware, memory);
    Compared c{.cost = model.of(row.plan)};
    if (row.hides_experts) c.cost.experts = std::max(c.cost.experts - c.cost.compute, 0.0);
    c.seconds = c.cost.seconds();
    c.mfu = 100 * model.mfu(row.plan, c.seconds);
    const LlamaConfig& config = row.shape.config;
    const double all = model_flops_per_token(config, parameter_count(config), row.shape.seq),
                 masked = 6 * double(config.layers * config.q_size() * row.shape.seq),
                 table = config.tied ? 0 : 6 * double(config.vocab * config.hidden);
    if (row.causal) c.mfu *= (all - masked) / all;
    if (row.looks_up) c.mfu *= (all - table) / all;
    c.error = row.mfu > 0 ? c.mfu / row.mfu - 1 : row.seconds / c.seconds - 1;
    return c;
}

inline double mean_error(const std::vector<double>& errors) {
    double sum = 0;
    for (const double error : errors) sum += std::abs(error);
    return sum / double(errors.size());
}

// The two shares with the smallest mean error over the fitted rows, found on a grid.
struct Fit {
    Hardware hardware;
    double error = 1e9;
};
inline Fit fit(const std::vector<PublishedRow>& rows) {
    std::vector<MemoryModel> memory;
    for (const PublishedRow& row : rows) memory.emplace_back(row.shape);
    Fit best;
    for (int share = 50; share <= 90; ++share)
        for (int hidden = 0; hidden <= 18; ++hidden) {
            Hardware hardware = find_hardware("h100");
            hardware.product_share = share / 100.0, hardware.tensor_hidden = hidden / 20.0;
            std::vector<double> errors;
            for (size_t i = 0; i < rows.size(); i += 2)
                errors.push_back(compare(rows[i], hardware, memory[i]).error);
            if (const double error = mean_error(errors); error < best.error - 1e-12)
                best = {hardware, error};
        }
    return best;
}

// Spearman's rank correlation; 1 means the same order.
inline double rank_correlation(const std::vector<double>& a, const std::vector<double>& b) {
    const auto ranks = [](const std::vector<double>& x) {
        std::vector<double> of(x.size());
        for (size_t i = 0; i < x.size(); ++i)
            for (size_t j = 0; j < x.size(); ++j)
                of[i] += x[j] < x[i] ? 1 : x[j] == x[i] && i != j ? 0.5 : 0;
        return of;
    };
    const std::vector<double> p = ranks(a), q = ranks(b);
    const double mean = (double(a.size()) - 1) / 2;
    double both = 0, variance_p = 0, variance_q = 0;
    for (size_t i = 0; i < a.size(); ++i) {
        both += (p[i] - mean) * (q[i] - mean);
        variance_p += (p[i] - mean) * (p[i] - mean), variance_q += (q[i] - mean) * (q[i] - mean);
    }
    return both / std::sqrt(variance_p * variance_q);
}

}  // namespace ultrascale::five_d
