// The parts a layer is made of, each with its forward and its backward written out. There is no
// autograd: `Saved` shows what a part keeps for its backward, and that is the activation memory.
//
// Every part follows one scheme (x input, y output, dy gradient of y):
//   forward(x, saved)          y; puts into `saved` what the backward will need
//   backward_input(dy, saved)  dx; keeps in `saved` what each linear needs for its weight gradient,
//                              frees the rest
//   backward_weight(saved)     adds the weight gradients in place; needs no dy, frees what is left
//   backward(dy, saved, when)  dx, with each linear's weight gradient right after its dx (now), or
//                              not yet (later)
// A technique changes a part by deriving from it and passing a factory to the model (Parts); parts
// nest, e.g. a tensor parallel linear is communication around an inner Linear.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "config.h"
#include "core/ops.h"
#include "parameter.h"

namespace ultrascale {

// One micro-batch on the device. positions restart where documents start; document_starts is empty
// without documents.
struct Batch {
    Tensor tokens, targets, positions, document_starts;  // (B, T) int32
    int64_t counted_targets = 0;                         // targets that are not ignored
    // number of its first sequence in the run, whatever the layout of ranks
    int64_t first_sample = 0;
    int64_t sequences() const { return tokens.size(0); }
    int64_t length() const { return tokens.size(1); }
};

// What forward keeps for backward, by name; a part's children keep theirs in saved["child"].
class Saved {
public:
    void keep(const std::string& name, Tensor t) {
        if (enabled_) tensors_[name] = std::move(t);
    }
    bool enabled() const { return enabled_; }
    const Tensor& get(const std::string& name) const { return tensors_.at(name); }
    Tensor take(const std::string& name);                         // hands it out and forgets it
    // where backward can make it again
    void drop(const std::string& name) { tensors_.erase(name); }
    Saved& operator[](const std::string& child);
    // keeps nothing from here on, nor do its children: validation, a forward that will be
    // recomputed
    void disable();
    // Calls visit(path, tensor) for everything kept, e.g. "layers.0/qkv_proj/x".
    void for_each(const std::function<void(const std::string&, const Tensor&)>& visit,
                  const std::string& prefix = "") const;

private:
    bool enabled_ = true;
    std::map<std::string, Tensor> tensors_;
    std::map<std::string, Saved> children_;
};

enum class Pass { forward, backward, backward_input, backward_weight };
inline constexpr const char* pass_names[] = {"forward", "backward", "backward-input",
                                             "backward-weight"};

// A stretch of the model that hooks act on: the embedding; each layer; the final norm with the
// head.
struct Unit {
    std::string name;
    std::vector<Parameter*> parameters;
    int index;                          // position in this process's model
    bool reads_in_backward = true;      // its values: an embedding's backward does not
    // its forward adds to gradients already (a head with its loss in chunks)
    bool gradients_in_forward = false;
};

// Called around each unit's passes. Data parallelism and ZeRO live here. A unit's values must be in
// place when before() returns, and its gradients too for a pass that adds to them.
struct Context;
class Hooks {
public:
    virtual ~Hooks() = default;
    virtual void before(const Unit&, Pass, const Context&) {}
    virtual void after(const Unit&, Pass, const Context&) {}
    // After the last of the contributions that begin_gradients() has announced: counted, so that it
    // holds for every order of passes. With split backward a norm's comes in backward-input and a
    // linear's in backward-weight; a tied weight's last one is the head's or the embedding's.
    virtual void gradient_complete(Parameter&, const Context&) {}
};

// What travels with one micro-batch through the model.
struct Context {
    Batch batch;
    // each token's loss counts this much: 1 / counted targets of the global batch
    float token_weight = 1;
    Tensor loss = {};      // (1) fp64; the head adds to it
    int micro_batch = 0;
    bool training = true;      // false: forward only, nothing is kept and no gradient is made
    bool recomputing = false;  // true while a layer's forward runs again inside its backward
    Hooks* hooks = nullptr;
    // Every use of a parameter calls it once in each micro-batch, when its contribution is made;
    // also one that has nothing to contribute (an expert without tokens).
    void contributed(Parameter& parameter) const;
};

enum class WeightGradient { now, later };

// y = x W^T (+ residual); several parameters stacked by rows share one GEMM (q, k, v; gate, up). It
// keeps its input as "x" and its gradient as "dy", one row a token, and nothing else of that size:
// a linear that wraps another one may replace them by the shard its rank owns until backward_weight
// needs them whole, and whoever can make x again may drop it and put it back.
class Linear {
public:
    explicit Linear(std::vector<Parameter*> rows);
    virtual ~Linear() = default;
    virtual Tensor forward(const Tensor& x, Saved& saved, Context& context,
                           const Tensor& residual = {});
    virtual Tensor backward_input(const Tensor& dy, Saved& saved, Context& context);
    virtual void backward_weight(Saved& saved, Context& context);
    virtual Tensor backward(const Tensor& dy, Saved& saved, Context& context, WeightGradient when);

    // The products alone, for a linear that wraps this one and communicates before, after or
    // between them: nothing is kept, and the result may be some rows of a larger tensor. Those
    // above are made of them.
    virtual void multiply(Tensor y, const Tensor& x,
                          const Tensor& residual = {});           // y = x W^T (+ residual)
    virtual void multiply_backward(Tensor dx, const Tensor& dy);  // dx = dy W
    virtual void add_weight_gradient(const Tensor& dy, const Tensor& x,
                                     Context& context);  // dW += dy^T x, complete with it
    const std::vector<Parameter*>& parameters() const { return parameters_; }
    int64_t inputs() const { return parameters_.front()->slice[1].size(); }
    int64_t outputs() const;  // rows of all parameters that this rank holds

protected:
    std::vector<Parameter*> parameters_;
    std::string name_;  // in the trace: "mlp.down_proj", "self_attn.q_proj+k_proj+v_proj"
};

class Norm {
public:
    Norm(Parameter* weight, float eps) : weight_(weight), eps_(eps), name_(weight->part()) {}
    virtual ~Norm() = default;
    virtual Tensor forward(const Tensor& x, Saved& saved, Context& context);
    // dx = dresidual + the norm's own. The weight's gradient is added here: keeping dy for later
    // would cost more than it.
    virtual Tensor backward(const Tensor& dy, const Tensor& dresidual, Saved& saved,
                            Context& context);

protected:
    Parameter* weight_;
    float eps_;
    std::string name_;  // in the trace
};

// o = attention(q, k, v). Holds no parameters.
class AttentionCore {
public:
    struct Gradients {
        Tensor dq, dk, dv;
    };
    virtual ~AttentionCore() = default;
    virtual Tensor forward(const Tensor& q, const Tensor& k, const Tensor& v, Saved& saved,
                           Context& context) = 0;
    virtual Gradients backward(const Tensor& dout, Saved& saved, Context& context) = 0;
};

// In tiles: keeps q, k, v, o and one number a row; its backward recomputes the probabilities tile
// by tile.
class FlashAttention : public AttentionCore {
public:
    Tensor forward(const Tensor& q, const Tensor& k, const Tensor& v, Saved& saved,
                   Context& context) override;
    Gradients backward(const Tensor& dout, Saved& saved, Context& context) override;
};

// With the T x T probabilities in memory: kept for the backward, or (selective recomputation)
// computed again there.
class NaiveAttention : public AttentionCore {
public:
    explicit NaiveAttention(bool recompute) : recompute_(recompute) {}
    Tensor forward(const Tensor& q, const Tensor& k, const Tensor& v, Saved& saved,
                   Context& context) override;
    Gradients backward(const Tensor& dout, Saved& saved, Context& context) override;

private:
    bool recompute_;
};

// The part of a layer after the second norm. y = residual + f(x).
class FeedForward {
public:
    virtual ~FeedForward() = default;
    virtual Tensor forward(const Tensor& x, const Tensor& residual, Saved& saved,
                           Context& context) = 0;
    virtual Tensor backward(const Tensor& dy, Saved& saved, Context& context,
                            WeightGradient when) = 0;
    virtual void backward_weight(Saved& saved, Context& context) = 0;
};

// Keeps gate and up only. Its output, which down's weight gradient needs, is made again in
// backward, where gate and up are read anyway: F of 3 F elements a token less to keep, for one more
// write.
class SwiGLU : public FeedForward {
public:
    SwiGLU(std::unique_ptr<Linear> gate_up, std::unique_ptr<Linear> down)
        : gate_up_(std::move(gate_up)), down_(std::move(down)) {}
    Tensor forward(const Tensor& x, const Tensor& residual, Saved& saved,
                   Context& context) override;
    Tensor backward(const Tensor& dy, Saved& saved, Context& context, WeightGradient when) override;
    void backward_weight(Saved& saved, Context& context) override;

private:
    std::unique_ptr<Linear> gate_up_, down_;
};

class Embedding {
public:
    explicit Embedding(Parameter* weight) : weight_(weight) {}
    virtual ~Embedding() = default;
    virtual Tensor forward(Saved& saved, Context& context);
    virtual void backward_input(const Tensor& dy, Saved& saved, Context& context);  // only keeps dy
    virtual void backward_weight(Saved& saved, Context& context);

protected:
    Parameter* weight_;
};

// What a layer keeps for full recomputation: its input.
class Checkpoint {
public:
    virtual ~Checkpoint() = default;
    virtual void keep(const Tensor& x, Saved& saved, Context& context);
    virtual Tensor take(Saved& saved, Context& context);
};

// The output head with the loss: logits = x W^T, cross-entropy summed into context.loss.
// With chunk = 0 the logits of the whole micro-batch exist at once and the gradients follow in
// backward. With chunk > 0 the tokens go through in chunks, each making its dx and weight gradient
// at once, so that only chunk x V logits ever exist.
class Head {
public:
    Head(Parameter* weight, int64_t chunk) : weight_(weight), chunk_(chunk) {}
    virtual ~Head() = default;
    virtual Tensor logits(const Tensor& x) const;  // (B, T, V), for sampling
    virtual void forward(const Tensor& x, Saved& saved, Context& context);
    virtual Tensor backward_input(Saved& saved, Context& context);
    virtual void backward_weight(Saved& saved, Context& context);
    virtual Tensor backward(Saved& saved, Context& context, WeightGradient when);

protected:
    // Adds the loss of some tokens (n) to context.loss; in training their logits (n, V) become
    // their own gradient.
    virtual void loss(Tensor logits, const Tensor& targets, Context& context) const;
    Tensor local_logits(const Tensor& x) const;
    void input_gradient(Tensor dx, const Tensor& dlogits) const;
    void weight_gradient(const Tensor& dlogits, const Tensor& x) const;
    Parameter* weight_;
    int64_t chunk_;
};

}  // namespace ultrascale
