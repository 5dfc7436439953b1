// The model: parts combined into layers, and layers into a Llama or a range of one.
//
//   tokens -> embedding
//          -> [ x + o_proj(attention(rope(qkv_proj(norm(x))))) ;    self_attention.h, or latent.h
//               x + down(silu(gate(norm(x))) * up(norm(x))) ] * L
//          -> norm -> head -> loss
// The parameters' names are Hugging Face's. With pipelines a process may hold several ranges of
// layers; each is a Llama of its own.
#pragma once

#include "core/trace.h"
#include "parts.h"
#include "recompute.h"
#include "self_attention.h"

namespace ultrascale {

enum class AttentionKind { flash, naive };

struct ModelOptions {
    DType dtype = DType::fp32;  // of parameters and activations
    Recompute recompute = Recompute::none;
    AttentionKind attention = AttentionKind::flash;
    int64_t loss_chunk = 0;  // tokens per chunk of the loss; 0: all in one
    double dropout = 0;      // dropout.h; its masks are drawn from `seed`
    uint64_t seed = 0;
    // What a GPT of 2022 kept: dropout's masks and dropped probabilities, and GELU's output. False:
    // backward draws the masks again, and computes the others again.
    bool keep_masks = false;
};

// The part of the model that a process holds.
struct Stage {
    int64_t first_layer, last_layer;  // [first, last)
    bool embedding, head;
    static Stage whole(const LlamaConfig& config) { return {0, config.layers, true, true}; }
};

// Whether a linear's parameters are split by output rows or by input columns when tensor
// parallelism splits them.
enum class LinearRole { column, row };

// A part's place in the model. By it, factories can treat layers differently, e.g. make the first
// ones dense, or keep the first and the last one in bf16.
struct ModulePath {
    static constexpr int64_t no_layer = -1;
    int64_t layer;     // index in the whole model; no_layer: the final norm
    std::string name;  // "model.layers.3.self_attn"

    ModulePath part(const std::string& part) const { return {layer, name + "." + part}; }
    std::string weight() const { return name + ".weight"; }  // the parameter's name
};

// The factories of the parts. A factory registers its part's parameters (with the slice that this
// rank holds) and returns the part. Each field has a default (default_factories); a chapter
// replaces the fields it changes and may call the others. `linear` decides what a rank holds and
// sends, `gemm` how it multiplies.
struct ModuleFactories {
    int64_t heads, kv_heads;  // held by this rank
    // What all heads share and every rank has whole (latent attention's latents): the groups over
    // which its gradients are summed, "tp" if ranks see other tokens of the stream. enter() takes
    // such a tensor from the stream to the heads, leave() its gradient back, of which each rank
    // then has the summand of its heads. Empty functions: there is nothing to do.
    struct {
        std::vector<std::string> summed_over;
        std::function<Tensor(const Tensor&)> enter, leave;
    } shared_by_heads = {};
    // A linear's shape: its stacked parameters by name, with their global row counts (e.g. "q_proj"
    // in model.layers.3.self_attn with H D rows), and the columns that they share.
    struct LinearShape {
        std::vector<std::pair<std::string, int64_t>> rows;
        int64_t cols;
    };
    template <class Part, class... Arguments>
    using Factory = std::function<std::unique_ptr<Part>(Arguments...)>;
    Factory<Linear, ParameterList&, const ModuleFactories&, const ModulePath&, LinearRole,
            const LinearShape&>
        linear;
    Factory<Linear, ParameterList&, const ModulePath&, std::vector<Parameter*>, LinearRole> gemm;
    Factory<Norm, ParameterList&, const ModulePath&> norm;
    Factory<HeadNorms, ParameterList&, const ModulePath&> head_norms;  // self_attn; may be none
    Factory<AttentionCore, const ModulePath&> attention;               // at the layer's self_attn
    Factory<SelfAttention, ParameterList&, const ModuleFactories&, const ModulePath&>
        self_attention;  // at self_attn; of the parts above
    Factory<FeedForward, ParameterList&, const ModuleFactories&, const ModulePath&>
        feed_forward;                                   // at the layer
    Factory<Checkpoint, const ModulePath&> checkpoint;  // at the layer
    Factory<Embedding, ParameterList&> embedding;
    Factory<Head, ParameterList&, const Stage&> head;
};
ModuleFactories default_factories(const LlamaConfig& config, const ModelOptions& options);

// The standard deviation of a linear's initial weights. A GPT's row linears, which write into the
// residual stream, have init_std / sqrt(2 L) (Radford et al. 2019, section 2.3).
float init_std(const LlamaConfig& config, LinearRole role);

// The output head's weight: the embedding's if it is tied and in the list, otherwise a new one.
// `vocabulary_weight` describes the new one, given its name. If the embedding and a tied head are
// on two ranks, the gradients of both copies are also summed over the group "tied".
Parameter* head_weight(ParameterList& list, const LlamaConfig& config,
                       const std::function<Parameter(const char*)>& vocabulary_weight);

class Layer {
public:
    Layer(ParameterList& parameters, const ModuleFactories& factories, int64_t index,
          Recompute::Kind recompute);

    // x, dy and the results: (B, T, h), or the technique's own layout of the residual stream.
    Tensor forward(const Tensor& x, Saved& saved, Context& context);
    Tensor backward(Tensor dy, Saved& saved, Context& context, WeightGradient when);
    void backward_weight(Saved& saved, Context& context);

private:
    Tensor attention(const Tensor& x, Saved& saved, Context& context);
    Tensor attention_backward(const Tensor& dy, Saved& saved, Context& context,
                              WeightGradient when);
    Tensor feed_forward(const Tensor& x, Saved& saved, Context& context);
    Tensor feed_forward_backward(const Tensor& dy, Saved& saved, Context& context,
                                 WeightGradient when);

    Recompute::Kind recompute_;
    std::unique_ptr<Norm> input_norm_, post_attention_norm_;
    std::unique_ptr<SelfAttention> self_attention_;
    std::unique_ptr<FeedForward> feed_forward_;
    std::unique_ptr<Checkpoint> checkpoint_;
};

// Runs a unit's pass between the unit's hooks, named after the unit in the trace.
template <class Work>
void run_unit(const Unit& unit, Pass pass, const Context& context, Work&& work) {
    const TraceName name(TraceName::part, unit.name),
        name_of_pass(TraceName::pass, pass_names[int(pass)]);
    const SectionSpan span;
    if (context.hooks) context.hooks->before(unit, pass, context);
    work();
    if (context.hooks) context.hooks->after(unit, pass, context);
}

class Llama {
public:
    // Describes the parameters but gives them no storage (ParameterList::allocate_values or a
    // sharding technique does). The stages of one process may register in a shared list. They must
    // be built in the model's order, so that a tied head finds the embedding's weight there.
    Llama(const LlamaConfig& config, const ModelOptions& options, const ModuleFactories& factories,
          Stage stage, ParameterList* shared = nullptr);
    // A whole model, built of default parts.
    Llama(const LlamaConfig& config, const ModelOptions& options);

    // If shared, those of all stages.
    ParameterList& parameters() { return parameters_; }
    const ParameterList& parameters() const { return parameters_; }
    const std::vector<Unit>& units() const { return units_; }

    // Passes a micro-batch through a whole model. forward adds to batch.loss and keeps in `saved`
    // what backward needs; backward adds to the gradients and empties `saved`.
    void forward(Context& batch, Saved& saved);
    void backward(Context& batch, Saved& saved);

    // Passes a micro-batch through a stage. x (B, T, h) is the stage's input, or empty if the stage
    // begins with the embedding. Returns its output (B, T, h), or an empty tensor if it ends with
    // the head, which adds to context.loss.
    Tensor forward(Tensor x, Saved& saved, Context& context);
    // dy is empty if the stage ends with the head. Returns dx, or an empty tensor if the stage
    // begins with the embedding.
    Tensor backward(Tensor dy, Saved& saved, Context& context,
                    WeightGradient when = WeightGradient::now);
    Tensor backward_input(Tensor dy, Saved& saved, Context& context) {
        return backward(std::move(dy), saved, context, WeightGradient::later);
    }
    void backward_weight(Saved& saved, Context& context);

    // Passes a micro-batch forward through one of units(), with its hooks, for a caller that does
    // other work between units.
    Tensor forward_unit(const Unit& unit, Tensor x, Saved& saved, Context& context);

    // Logits (B, T, V). Forward only; the model must end with the head. x (B, T, h) is its input if
    // it does not begin with the embedding.
    Tensor logits(const Batch& batch, Hooks* hooks = nullptr, Tensor x = {});

private:
    Tensor backward_unit(const Unit& unit, Tensor dy, Saved& saved, Context& context,
                         WeightGradient when);
    void backward_weight_unit(const Unit& unit, Saved& saved, Context& context);
    bool is_head(const Unit& unit) const { return head_ && unit.index + 1 == int(units_.size()); }
    // nullptr for the embedding, and for the final norm with the head.
    Layer* layer(const Unit& unit) const;

    LlamaConfig config_;
    ModelOptions options_;
    std::unique_ptr<ParameterList> own_parameters_;  // empty: a shared list has them
    ParameterList& parameters_;
    std::vector<Unit> units_;
    std::unique_ptr<Embedding> embedding_;
    std::vector<std::unique_ptr<Layer>> layers_;
    std::unique_ptr<Norm> norm_;
    std::unique_ptr<Head> head_;
};

}  // namespace ultrascale
