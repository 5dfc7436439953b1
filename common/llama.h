// The model: parts put together into layers, and layers into (a range of) a Llama.
//
//   tokens -> embedding -> [ x + o_proj(attention(rope(qkv_proj(norm(x))))) ; x + down(silu(gate(norm(x))) * up(norm(x))) ] * L
//          -> norm -> head -> loss
// Names are Hugging Face's. A process may hold several ranges of layers (pipelines); each is a Llama of its own.
#pragma once

#include "parts.h"

namespace ultrascale {

enum class Recompute { none, selective, full };
enum class AttentionKind { flash, naive };

struct ModelOptions {
    DType dtype = DType::fp32;  // of parameters and activations
    Recompute recompute = Recompute::none;
    AttentionKind attention = AttentionKind::flash;
    int64_t loss_chunk = 0;  // tokens per chunk of the loss; 0: all at once
};

// Which part of the model a process holds.
struct Stage {
    int64_t first_layer, last_layer;  // [first, last)
    bool embedding, head;
    static Stage whole(const LlamaConfig& config) { return {0, config.layers, true, true}; }
};

// Whether a linear's parameters are split by output rows or by input columns when tensor parallelism splits them.
enum class LinearRole { column, row };

// How parts are made. A factory registers the parameters it wants (with the slice its rank holds) and returns the part.
// Each field has a default (default_parts); a chapter replaces the ones it changes and may call the others. `linear` decides
// what a rank holds and sends, `gemm` how it multiplies.
struct Parts {
    int64_t heads, kv_heads;  // that this rank holds
    // names and global row counts of the stacked parameters, and the columns they share
    struct LinearShape {
        std::vector<std::pair<std::string, int64_t>> rows;
        int64_t cols;
    };
    std::function<std::unique_ptr<Linear>(ParameterList&, const Parts&, LinearRole, const LinearShape&)> linear;
    std::function<std::unique_ptr<Linear>(std::vector<Parameter*>, LinearRole)> gemm;
    std::function<std::unique_ptr<Norm>(ParameterList&, const std::string& name)> norm;
    std::function<std::unique_ptr<AttentionCore>()> attention;
    std::function<std::unique_ptr<FeedForward>(ParameterList&, const Parts&, const std::string& layer_name)> feed_forward;
    std::function<std::unique_ptr<Embedding>(ParameterList&)> embedding;
    std::function<std::unique_ptr<Head>(ParameterList&, const Stage&)> head;
    std::function<std::unique_ptr<Checkpoint>()> checkpoint;
};
Parts default_parts(const LlamaConfig& config, const ModelOptions& options);

// The output head's weight: the embedding's where it is tied and this process has both; else one of its own, which `vocabulary_weight`
// describes (by its name), and which is a copy, not the owner, where it is tied and the embedding is another process's.
struct HeadWeight {
    Parameter* weight;
    bool shared;  // with the embedding, whose backward completes its gradient
};
HeadWeight head_weight(ParameterList& list, const LlamaConfig& config, const Stage& stage,
                       const std::function<Parameter(const char*)>& vocabulary_weight);

class Layer {
public:
    Layer(ParameterList& parameters, const LlamaConfig& config, const Parts& parts, int64_t index, Recompute recompute);

    Tensor forward(const Tensor& x, Saved& saved, Context& context);
    Tensor backward(Tensor dy, Saved& saved, Context& context, WeightGradient when);
    void backward_weight(Saved& saved, Context& context);

    // The two segments, so that a schedule can interleave those of different micro-batches.
    Tensor attention_forward(const Tensor& x, Saved& saved, Context& context);
    Tensor attention_backward(const Tensor& dy, Saved& saved, Context& context, WeightGradient when);
    Tensor feed_forward_forward(const Tensor& x, Saved& saved, Context& context);
    Tensor feed_forward_backward(const Tensor& dy, Saved& saved, Context& context, WeightGradient when);

private:
    int64_t heads_, kv_heads_, head_dim_;
    Recompute recompute_;
    Tensor frequencies_;
    std::unique_ptr<Norm> input_norm_, post_attention_norm_;
    std::unique_ptr<Linear> qkv_proj_, o_proj_;
    std::unique_ptr<AttentionCore> attention_;
    std::unique_ptr<FeedForward> feed_forward_;
    std::unique_ptr<Checkpoint> checkpoint_;
};

class Llama {
public:
    // Describes the parameters; gives them no storage (ParameterList::allocate_values, or a sharding technique does).
    Llama(const LlamaConfig& config, const ModelOptions& options, const Parts& parts, Stage stage);
    Llama(const LlamaConfig& config, const ModelOptions& options);  // the whole model of default parts

    ParameterList& parameters() { return parameters_; }
    const std::vector<Unit>& units() const { return units_; }

    // x (B, T, h), or empty where the stage begins with the embedding; returns (B, T, h), or nothing where the stage ends
    // with the head, which adds to context.loss.
    Tensor forward(Tensor x, Saved& saved, Context& context);
    // dy empty where the stage ends with the head; returns dx, or nothing where it begins with the embedding.
    Tensor backward(Tensor dy, Saved& saved, Context& context, WeightGradient when = WeightGradient::now);
    Tensor backward_input(Tensor dy, Saved& saved, Context& context) {
        return backward(std::move(dy), saved, context, WeightGradient::later);
    }
    void backward_weight(Saved& saved, Context& context);

    Tensor logits(const Batch& batch, Hooks* hooks = nullptr);  // (B, T, V): forward only, for a whole model

private:
    // Runs a unit's pass between its hooks, and under its name in the trace.
    template <class Work>
    void run(const Unit& unit, Pass pass, const Context& context, Work&& work) const;
    Tensor forward_layers(Tensor x, Saved& saved, Context& context);

    LlamaConfig config_;
    ModelOptions options_;
    ParameterList parameters_;
    std::vector<Unit> units_;
    std::unique_ptr<Embedding> embedding_;
    std::vector<std::unique_ptr<Layer>> layers_;
    std::unique_ptr<Norm> norm_;
    std::unique_ptr<Head> head_;
};

}  // namespace ultrascale
