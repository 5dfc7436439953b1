// A GPT-2 (Radford et al. 2019), built of the same layers as a Llama, with other parts:
//
//   tokens -> embedding + positions                             LearnedPositions
//          -> [ x + o_proj(attention(qkv_proj(norm(x)))) ;      LayerNorm; every linear has a bias,
//               x + down(gelu(up(norm(x)))) ] * L               no rotation; GELU
//          -> norm -> head -> loss                              the embedding's weight
//
// Dropout acts on the residual stream (dropout.h), and on attention's probabilities. Parameters
// have a Llama's names here ("model.layers.3.self_attn.q_proj.bias"), so that all that cuts a
// Llama cuts a GPT, too; files have GPT-2's (files/checkpoint_gpt2.h). q, k and v pass through a
// rotation by zero, which leaves their bits as they are.
#pragma once

#include "dropout.h"

namespace ultrascale {

class LayerNorm : public Norm {
public:
    LayerNorm(Parameter* weight, Parameter* bias, float eps) : Norm(weight, eps), bias_(bias) {}
    Tensor forward(const Tensor& x, Saved& saved, Context& context) override;
    Tensor backward(const Tensor& dy, const Tensor& dresidual, Saved& saved,
                    Context& context) override;

private:
    Parameter* bias_;
};

// Keeps the input of GELU. Backward, which reads it anyway, computes GELU again for down's weight
// gradient, unless keep_masks says to keep its output, too.
class GELU : public FeedForward {
public:
    GELU(std::unique_ptr<Linear> up, std::unique_ptr<Linear> down, bool keeps_output)
        : up_(std::move(up)), down_(std::move(down)), keeps_output_(keeps_output) {}
    Tensor forward(const Tensor& x, const Tensor& residual, Saved& saved,
                   Context& context) override;
    Tensor backward(const Tensor& dy, Saved& saved, Context& context, WeightGradient when) override;
    void backward_weight(Saved& saved, Context& context) override;

private:
    std::unique_ptr<Linear> up_, down_;
    bool keeps_output_;
};

// embedding + positions. `tokens` says which tokens of the micro-batch the rows of the stream are.
class LearnedPositions : public Embedding {
public:
    LearnedPositions(std::unique_ptr<Embedding> inner, Parameter* positions, TokensOfRows tokens)
        : Embedding(positions), inner_(std::move(inner)), tokens_(std::move(tokens)) {}
    Tensor forward(Saved& saved, Context& context) override;
    void backward_input(const Tensor& dy, Saved& saved, Context& context) override {
        inner_->backward_input(dy, saved, context);
    }
    void backward_weight(Saved& saved, Context& context) override;

private:
    std::unique_ptr<Embedding> inner_;
    TokensOfRows tokens_;
};

// Naive attention whose probabilities are dropped. A probability's mask is a function of its place
// in the whole run, so a rank that holds some of the heads draws the same masks as one device:
//     number = ((sample H + head) T + query) T + key
class DropoutAttention : public AttentionCore {
public:
    struct Settings {
        Dropout dropout;
        bool recompute;                 // selective recomputation: keeps only q, k and v
        int64_t first_head, all_heads;  // of this rank, and of the model
    };
    DropoutAttention(const Settings& settings, const ModulePath& path)
        : settings_(settings), path_(path.name) {}
    Tensor forward(const Tensor& q, const Tensor& k, const Tensor& v, Saved& saved,
                   Context& context) override;
    Gradients backward(const Tensor& dout, Saved& saved, Context& context) override;

private:
    // Which random numbers this rank's probabilities of a micro-batch draw.
    ops::ProbabilityDropout numbers(int64_t pairs, const Context& context) const;

    Settings settings_;
    std::string path_;
};

// Registers a bias for each of a linear's weights, which must have just been registered. A row
// linear's bias is whole on every rank.
void add_biases(ParameterList& list, const std::vector<Parameter*>& weights, LinearRole role);

// Adds positions to the embedding. `summed_over`: groups over which their gradient is summed.
void add_positions(ModuleFactories& factories, const LlamaConfig& config, TokensOfRows tokens = {},
                   std::vector<std::string> summed_over = {});

// Gives a GPT with dropout an attention that drops; it must be naive. `first_head`: of this rank.
void add_attention_dropout(ModuleFactories& factories, const LlamaConfig& config,
                           const ModelOptions& options, int64_t first_head = 0);

}  // namespace ultrascale
