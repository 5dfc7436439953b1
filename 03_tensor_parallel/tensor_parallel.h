// The model's parts under tensor parallelism, each in its own file, put together: which slice of each parameter a rank holds, over which
// ranks a gradient is summed, and who counts it in the global norm.
//
//                                     slice               copies on                gradient summed over
//     embedding, head                 V/tp rows           -                        dp
//     q; gate, up                     rows / tp           -                        dp
//     k, v                            rows / min(tp, K)   tp/K ranks ("kv")        dp; kv where there are copies
//     o, down                         columns / tp        -                        dp
//     norms                           whole               tp ranks                 dp; tp with sequence parallelism
#pragma once

#include <optional>

#include "attention_heads.h"
#include "dropout.h"
#include "llama.h"
#include "mesh.h"
#include "partition_checkpoints.h"
#include "row_linear.h"
#include "sequence_parallel.h"
#include "vocabulary_embedding.h"
#include "vocabulary_head.h"

namespace ultrascale {

// Throws UserError where `config` cannot be split over options.tp ranks or a micro-batch of `seq` tokens a sequence not over them.
inline void check_splits(const LlamaConfig& config, const TensorOptions& options, int64_t micro_batch, int64_t seq) {
    const int64_t tp = options.tp;
    check_heads(config, tp);
    if (config.ffn % tp != 0)
        user_error("--tp {}: a feed-forward size of {} cannot be shared out equally; tp must divide it", tp, config.ffn);
    if (config.vocab < tp) user_error("--tp {}: a vocabulary of {} has not a token for each rank", tp, config.vocab);
    if (options.sequence_parallel && seq % tp != 0)
        user_error("--sequence-parallel: sequences of {} tokens cannot be shared out over --tp {}; --seq {} would do", seq, tp,
                   std::max<int64_t>(seq / tp, 1) * tp);
    if (options.partition_checkpoints && micro_batch * seq % tp != 0)
        user_error("--partition-checkpoints: a micro-batch of {} x {} tokens cannot be shared out over --tp {}", micro_batch, seq, tp);
}

class TensorParallel {
public:
    // All ranks call it. `mesh` has the axis "tp". `border`: other conjugates than the options ask for.
    TensorParallel(const LlamaConfig& config, const TensorOptions& options, const Mesh& mesh, uint64_t seed,
                   std::unique_ptr<Conjugates> border = nullptr)
        : config_(config), options_(options), tp_(mesh.group("tp")), heads_(split_heads(config, tp_.size(), tp_.rank())) {
        if (heads_.copies > 1) kv_ = tp_.split(tp_.rank() / heads_.copies, tp_.rank(), "kv");
        if (border)
            border_ = std::move(border);
        else if (options.sequence_parallel)
            border_ = std::make_unique<SequenceParallel>(tp_, options, &shapes_);
        else
            border_ = std::make_unique<Conjugates>(tp_, options, &shapes_);
        const uint64_t own = options.same_seed ? 0 : 0x9E3779B97F4A7C15u * uint64_t(Communicator::world().rank() + 1);
        dropout_ = {float(options.dropout), seed + own, border_.get()};
    }

    // Of the model that `plain` parts would make. Keeps pointing to this object.
    Parts parts(const ModelOptions& model) const {
        Parts parts = default_parts(config_, model);
        parts.heads = heads_.heads, parts.kv_heads = heads_.kv_heads;
        parts.linear = [this](ParameterList& list, const Parts& parts, LinearRole role, const Parts::LinearShape& shape) {
            return linear(list, parts, role, shape);
        };
        parts.norm = [this](ParameterList& list, const std::string& name) {
            Parameter weight{.name = name, .shape = {config_.hidden}, .is_norm = true};
            weight.replicated_over = {"dp", "tp"};
            weight.summed_over = {"dp"};
            if (options_.sequence_parallel) weight.summed_over.push_back("tp");  // each rank saw its own tokens
            weight.owner = tp_.rank() == 0;
            return std::make_unique<Norm>(list.add(weight), float(config_.norm_eps));
        };
        parts.embedding = [this](ParameterList& list) {
            return std::make_unique<VocabularyEmbedding>(list.add(vocabulary_weight("model.embed_tokens.weight")), *border_);
        };
        parts.head = [this, model](ParameterList& list, const Stage& stage) {
            const auto [weight, shared] = head_weight(list, config_, stage, [this](const char* name) { return vocabulary_weight(name); });
            return std::make_unique<VocabularyHead>(weight, model.loss_chunk, !shared, *border_);
        };
        if (options_.partition_checkpoints) parts.checkpoint = [this] { return std::make_unique<PartitionedCheckpoint>(tp_); };
        add_dropout(parts, dropout_);
        return parts;
    }

    // After the last backward of a step: the gradients of what several of these ranks hold copies of.
    void sum_copies(const ParameterList& parameters) const {
        if (options_.sequence_parallel) all_reduce_gradients(parameters, tp_);
        if (kv_) all_reduce_gradients(parameters, *kv_);
    }

    const Communicator& group() const { return tp_; }
    const TensorOptions& options() const { return options_; }
    const ShapeTable& shapes() const { return shapes_; }

private:
    Range share(int64_t size) const { return {size * tp_.rank() / tp_.size(), size * (tp_.rank() + 1) / tp_.size()}; }

    std::unique_ptr<Linear> linear(ParameterList& list, const Parts& parts, LinearRole role, const Parts::LinearShape& shape) const {
        std::vector<Parameter*> rows;
        for (const auto& [name, size] : shape.rows) {
            Parameter p{.name = name, .shape = {size, shape.cols}, .init_std = float(config_.init_std)};
            p.replicated_over = p.summed_over = {"dp"};
            if (role == LinearRole::row)
                p.slice = {{0, size}, share(shape.cols)};
            else if (!is_key_or_value(name))
                p.slice = {share(size), {0, shape.cols}};
            else {
                p.slice = {heads_.kv_rows, {0, shape.cols}};
                if (kv_) {
                    p.replicated_over.push_back("kv"), p.summed_over.push_back("kv");
                    p.owner = kv_->rank() == 0;
                }
            }
            rows.push_back(list.add(std::move(p)));
        }
        std::unique_ptr<Linear> gemm = parts.gemm(std::move(rows), role);
        if (role == LinearRole::row) return std::make_unique<RowLinear>(std::move(gemm), *border_);
        return std::make_unique<ColumnLinear>(std::move(gemm), *border_);
    }

    Parameter vocabulary_weight(const char* name) const {
        Parameter p{.name = name, .shape = {config_.vocab, config_.hidden}, .init_std = float(config_.init_std)};
        p.slice = {vocabulary_shard(config_.vocab, tp_.size(), tp_.rank()), {0, config_.hidden}};
        p.replicated_over = p.summed_over = {"dp"};
        return p;
    }

    LlamaConfig config_;
    TensorOptions options_;
    const Communicator& tp_;
    HeadSplit heads_;
    std::optional<Communicator> kv_;  // the ranks that hold the same key-value heads, where there are several
    mutable ShapeTable shapes_;
    std::unique_ptr<Conjugates> border_;
    Dropout dropout_;
};

// The sum over all elements of the model, each counted once, in fp64: (1) on the device. All ranks of the group call it.
inline Tensor squared_gradient_norm(const ParameterList& parameters, const Communicator& group) {
    Tensor sum = squared_gradient_norm(parameters);
    if (group.size() > 1) group.all_reduce(sum);
    return sum;
}

}  // namespace ultrascale
