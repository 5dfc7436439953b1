#include "step_sizes.h"

#include "core/error.h"

namespace ultrascale {

StepShape step_shape(const Options& options, const LlamaConfig& config) {
    const int64_t seq = options.seq > 0 ? options.seq : config.default_seq;
    const double tokens = double(options.micro_batch) * double(seq);
    if (tokens > 1e15)  // more would not be counted exactly
        user_error("--micro-batch {} --seq {}: {:.1e} tokens; at most 10^15", options.micro_batch,
                   seq, tokens);
    if (config.gpt && seq > config.max_positions)
        user_error("--seq {}: this GPT has learned {} positions", seq, config.max_positions);
    if (config.gpt && options.dropout > 0 && options.attention != AttentionKind::naive)
        user_error(
            "--dropout: a GPT also drops attention's probabilities, which attention in tiles does "
            "not have; use --attention naive");
    if (options.recompute.given_layers() > config.layers)
        user_error("--recompute {}: the model has only {}", options.recompute.text(),
                   format_count(config.layers, "layer"));
    return {.config = config,
            .model = {options.dtype, options.recompute, options.attention, options.loss_chunk,
                      options.dropout, options.seed, options.keep_masks},
            .grad_dtype = options.grad_dtype(),
            .micro_batch = options.micro_batch,
            .seq = seq,
            .muon = options.optimizer.muon};
}

DataOptions data_options(const Options& options, const StepShape& shape,
                         std::vector<SamplesCut> cuts) {
    DataOptions data{.seq = shape.seq,
                     .window = shape.config.window,
                     .prefix = shape.config.prefix,
                     .cuts = std::move(cuts)};
    if (options.shuffle) data.shuffle_seed = options.seed;
    if (options.document_token >= 0) data.document_token = options.document_token;
    if (options.ignore_token >= 0) data.ignore_token = options.ignore_token;
    return data;
}

int64_t checked_sequences(double sequences) {
    if (sequences > 1e7)
        user_error("a step of {:.0f} sequences: at most 10^7, see --grad-accum", sequences);
    return int64_t(sequences);
}

int64_t sequences_of_step(const Options& options, int64_t replicas) {
    return checked_sequences(double(options.micro_batch) * double(options.grad_accum) *
                             double(replicas));
}

}  // namespace ultrascale
