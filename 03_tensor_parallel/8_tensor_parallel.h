// This file puts together the model's parts under tensor parallelism, each of which has a file of
// its own. It also determines which slice of each parameter a rank holds, and over which ranks its
// gradient is summed.
//
//                        slice               split over   gradient summed over,
//                                                         besides the data axes
//     embedding, head    V/tp rows           tp
//     q; gate, up        rows / tp           tp
//     k, v               rows / min(tp, K)   tp           "kv", where tp/K ranks hold copies
//     o, down            columns / tp        tp
//     norms, latents     whole               -            "tp" with sequence parallelism
//
// AdamW updates a slice as it would update it in the whole matrix. Muon does not: the
// orthogonalized slice is no slice of the orthogonalized matrix. So this chapter and 09 have no
// --optimizer.
#pragma once

#include "1_plain.h"
#include "2_row_linear.h"
#include "3_attention_heads.h"
#include "3_latent_heads.h"
#include "3_vocabulary_embedding.h"
#include "3_vocabulary_head.h"
#include "4_sequence_parallel.h"
#include "5_async_backward.h"
#include "6_chunked_linear.h"
#include "6_halves.h"
#include "7_partition_checkpoints.h"
#include "comm/mesh.h"
#include "model/gpt.h"

namespace ultrascale::tensor_parallel {

// Returns why the model cannot be split over tp ranks; if it can, nothing.
inline std::string why_no_split(const LlamaConfig& config, int64_t tp) {
    if (const std::string reason = why_no_heads(config, tp); !reason.empty()) return reason;
    if (config.ffn % tp != 0)
        return fmt::format("a feed-forward size of {} cannot be split equally; tp must divide it",
                           config.ffn);
    if (config.vocab < tp)
        return fmt::format("a vocabulary of {} does not have a token for each rank", config.vocab);
    return "";
}

// Throws UserError if the model, or a micro-batch with `seq` tokens per sequence, cannot be split
// over options.tp ranks.
inline void check_splits(const LlamaConfig& config, const TensorOptions& options,
                         int64_t micro_batch, int64_t seq) {
    const int64_t tp = options.tp;
    if (const std::string reason = why_no_split(config, tp); !reason.empty()) {
        int64_t fewer = tp - 1;  // that divide the ranks, too
        while (tp % fewer != 0 || !why_no_split(config, fewer).empty()) --fewer;
        user_error("--tp {}: {}{}", tp, reason,
                   fewer > 1 ? fmt::format("; --tp {} would work", fewer) : "");
    }
    if (options.sequence_parallel && seq % tp != 0)
        user_error(
            "--sequence-parallel: sequences of {} cannot be split over --tp {}; --seq {} would "
            "work",
            format_count(seq, "token"), tp, std::max<int64_t>(seq / tp, 1) * tp);
    const int64_t parts = parts_of_micro_batch(options);
    if (parts > 1 && config.latent)
        user_error("--overlap halves knows a Llama's attention; this model's is latent");
    if (micro_batch % parts != 0)
        user_error("--overlap halves: {} cannot be halved; --micro-batch {} would work",
                   format_count(micro_batch, "sequence"), micro_batch + 1);
    if (options.partition_checkpoints && micro_batch / parts * seq % tp != 0)
        user_error(
            "--partition-checkpoints: a micro-batch of {} x {} tokens cannot be split over --tp {}",
            micro_batch / parts, seq, tp);
}

class TensorParallel {
public:
    // All ranks call it. `mesh` must have the axis "tp"; the group "kv" is added where there are
    // copies. `region`, if given, replaces the one that the options ask for.
    TensorParallel(const LlamaConfig& config, const TensorOptions& options, Mesh& mesh,
                   std::unique_ptr<ParallelRegion> region = nullptr)
        : config_(config),
          options_(options),
          tp_(mesh.group("tp")),
          heads_(split_heads(config, tp_.size(), tp_.rank())) {
        if (heads_.copies > 1)
            mesh.add_copies(tp_.split(tp_.rank() / heads_.copies, tp_.rank(), "kv", heads_.copies,
                                      tp_.rank() % heads_.copies));
        if (region)
            region_ = std::move(region);
        else if (options.sequence_parallel)
            region_ = std::make_unique<SequenceParallelRegion>(tp_, options);
        else
            region_ = std::make_unique<ParallelRegion>(tp_, options);
    }

    // Returns the factories of this rank's part of the model. Its parts keep a pointer to this
    // object.
    ModuleFactories factories(const ModelOptions& model) const {
        ModelOptions plain = model;
        plain.dropout = 0;  // added last, around these parts
        ModuleFactories factories = default_factories(config_, plain);
        factories.heads = heads_.heads, factories.kv_heads = heads_.kv_heads;
        factories.linear = [this](ParameterList& list, const ModuleFactories& factories,
                                  const ModulePath& path, LinearRole role,
                                  const ModuleFactories::LinearShape& shape) {
            return linear(list, factories, path, role, shape);
        };
        // With sequence parallelism each rank's norms and positions see its own tokens.
        const std::vector<std::string> summed_over = options_.sequence_parallel
                                                         ? std::vector<std::string>{"tp"}
                                                         : std::vector<std::string>();
        share_latents(factories, *region_, summed_over);
        factories.norm = [summed_over, plain = factories.norm](ParameterList& list,
                                                               const ModulePath& path) {
            const auto before = std::ptrdiff_t(list.size());
            std::unique_ptr<Norm> norm = plain(list, path);
            for (auto p = list.begin() + before; p != list.end(); ++p)
                (*p)->replica_groups = summed_over;
            return norm;
        };
        factories.head_norms = [plain = factories.head_norms](ParameterList& list,
                                                              const ModulePath& path) {
            std::unique_ptr<HeadNorms> norms = plain(list, path);
            if (norms)  // each rank saw its own heads
                for (const char* name : {"q_norm", "k_norm"})
                    list.find(path.part(name).weight())->replica_groups = {"tp"};
            return norms;
        };
        factories.embedding = [this](ParameterList& list) {
            return std::make_unique<VocabularyEmbedding>(
                list.add(vocabulary_weight("model.embed_tokens.weight")), *region_);
        };
        const TokensOfRows tokens = [this](int64_t rows) { return region_->tokens(rows); };
        add_positions(factories, config_, tokens, summed_over);
        factories.head = [this, model](ParameterList& list, const Stage&) {
            Parameter* weight = head_weight(
                list, config_, [this](const char* name) { return vocabulary_weight(name); });
            return vocabulary_head(weight, model.loss_chunk);
        };
        if (options_.partition_checkpoints)
            factories.checkpoint = [this](const ModulePath&) {
                return std::make_unique<PartitionedCheckpoint>(*region_);
            };
        const uint64_t own = options_.same_seed
                                 ? 0
                                 : 0x9E3779B97F4A7C15u * uint64_t(Communicator::world().rank() + 1);
        add_attention_dropout(factories, config_, model, heads_.q_rows.begin / config_.head_dim);
        add_dropout(factories, {.p = float(model.dropout),
                                .seed = model.seed + own,
                                .tokens = tokens,
                                .keeps_masks = model.keep_masks});
        return factories;
    }

    const Communicator& group() const { return tp_; }
    // Returns which tokens of a micro-batch this rank's rows of the residual stream are.
    std::vector<TokenRange> tokens(int64_t rows) const { return region_->tokens(rows); }
    const TensorOptions& options() const { return options_; }

private:
    Range share(int64_t size) const {
        return {size * tp_.rank() / tp_.size(), size * (tp_.rank() + 1) / tp_.size()};
    }

    std::unique_ptr<Linear> linear(ParameterList& list, const ModuleFactories& factories,
                                   const ModulePath& path, LinearRole role,
                                   const ModuleFactories::LinearShape& shape) const {
        std::vector<Parameter*> rows;
        for (const auto& [part, size] : shape.rows) {
            const std::string name = path.part(part).weight();
            Parameter p{
                .name = name, .shape = {size, shape.cols}, .init_std = init_std(config_, role)};
            p.split_over = {"tp"};
            if (role == LinearRole::row)
                p.slice = {{0, size}, share(shape.cols)};
            else if (!is_key_or_value(name))
                p.slice = {share(size), {0, shape.cols}};
            else {
                p.slice = {heads_.kv_rows, {0, shape.cols}};
                if (heads_.copies > 1) p.replica_groups = {"kv"};
            }
            rows.push_back(list.add(std::move(p)));
        }
        if (config_.gpt) add_biases(list, rows, role);
        std::unique_ptr<Linear> gemm = factories.gemm(list, path, std::move(rows), role);
        if (role == LinearRole::row && tp_.rank() > 0) gemm->leave_out_bias();
        return role == LinearRole::row ? row_linear(std::move(gemm))
                                       : column_linear(std::move(gemm));
    }

    // Returns the linear that the options ask for: plain, or of which rung of the ladder.
    std::unique_ptr<Linear> column_linear(std::unique_ptr<Linear> gemm) const {
        if (options_.plain) return std::make_unique<PlainColumnLinear>(gemm->parameters(), tp_);
        if (options_.overlap == Overlap::chunk)
            return std::make_unique<ChunkedColumnLinear>(std::move(gemm), *region_);
        if (options_.overlap == Overlap::halves && options_.sequence_parallel)
            return std::make_unique<ColumnLinearOfHalves>(std::move(gemm), *region_);
        if (options_.overlap != Overlap::none)
            return std::make_unique<AsyncColumnLinear>(std::move(gemm), *region_);
        if (region_->gathers_again())
            return std::make_unique<RegatheringColumnLinear>(std::move(gemm), *region_);
        return std::make_unique<ColumnLinear>(std::move(gemm), *region_);
    }
    std::unique_ptr<Linear> row_linear(std::unique_ptr<Linear> gemm) const {
        if (options_.plain) return std::make_unique<PlainRowLinear>(gemm->parameters(), tp_);
        if (options_.overlap == Overlap::chunk)
            return std::make_unique<ChunkedRowLinear>(std::move(gemm), *region_);
        return std::make_unique<RowLinear>(std::move(gemm), *region_);
    }
    std::unique_ptr<Head> vocabulary_head(Parameter* weight, int64_t loss_chunk) const {
        if (options_.overlap != Overlap::none)
            return std::make_unique<AsyncVocabularyHead>(weight, loss_chunk, *region_);
        return std::make_unique<VocabularyHead>(weight, loss_chunk, *region_);
    }

    Parameter vocabulary_weight(const char* name) const {
        Parameter p{.name = name,
                    .shape = {config_.vocab, config_.hidden},
                    .init_std = float(config_.init_std)};
        p.slice = {vocabulary_shard(config_.vocab, tp_.size(), tp_.rank()), {0, config_.hidden}};
        p.split_over = {"tp"};
        return p;
    }

    LlamaConfig config_;
    TensorOptions options_;
    const Communicator& tp_;
    HeadSplit heads_;
    std::unique_ptr<ParallelRegion> region_;
};

}  // namespace ultrascale::tensor_parallel
