// The parts of a layer, each with its forward and its backward written out. There is no autograd:
// `Saved` holds the tensors that a part keeps for its backward, and they are the activation memory.
//
// Every part follows one scheme (x: input, y: output, dy: gradient of y):
//   forward(x, saved)          returns y; puts into `saved` what the backward will need
//   backward_input(dy, saved)  returns dx; keeps in `saved` what each linear needs for its weight
//                              gradient, frees the rest
//   backward_weight(saved)     adds the weight gradients in place; needs no dy, frees what is left
//   backward(dy, saved, when)  returns dx; computes each linear's weight gradient right after its
//                              dx (now), or not yet (later)
// A technique changes a part by deriving from it and passing a factory to the model
// (ModuleFactories). Parts nest, e.g. a tensor-parallel linear is communication around an inner
// Linear.
#pragma once

#include <any>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "batch.h"
#include "config.h"
#include "core/ops.h"
#include "parameter.h"

namespace ultrascale {

// The tensors, by name, that forward keeps for backward, and at most one object of the part's own
// type; a part's children keep theirs in saved["child"]. As nothing is kept in the parts, any
// number of micro-batches can be in flight, and whoever frees a Saved frees all that its forward
// kept.
class Saved {
public:
    void keep(const std::string& name, Tensor t) {
        if (enabled_) tensors_[name] = std::move(t);
    }
    bool enabled() const { return enabled_; }
    bool has(const std::string& name) const { return tensors_.contains(name); }
    const Tensor& get(const std::string& name) const { return tensors_.at(name); }
    Tensor take(const std::string& name);  // returns and removes it
    // Drops a tensor that backward can compute again.
    void drop(const std::string& name) { tensors_.erase(name); }
    // Keeps information that is not in a tensor, such as how many rows went to which rank.
    void keep_object(std::any object) {
        if (enabled_) object_ = std::move(object);
    }
    template <class Object>
    Object take_object() {  // returns and removes it
        return std::any_cast<Object>(take_any());
    }
    Saved& operator[](const std::string& child);
    // From now on it and its children keep nothing: for validation, or for a forward that will be
    // recomputed.
    void disable();
    // Calls visit(path, tensor) for every tensor kept by name, e.g. "layers.0/qkv_proj/x".
    void for_each(const std::function<void(const std::string&, const Tensor&)>& visit,
                  const std::string& prefix = "") const;

private:
    std::any take_any();
    bool enabled_ = true;
    std::map<std::string, Tensor> tensors_;
    std::any object_;
    std::map<std::string, Saved> children_;
};

enum class Pass { forward, backward, backward_input, backward_weight };
inline constexpr const char* pass_names[] = {"forward", "backward", "backward-input",
                                             "backward-weight"};

// A section of the model that hooks act on: the embedding, a layer, or the final norm with the
// head.
struct Unit {
    std::string name;
    std::vector<Parameter*> parameters;
    int index;                      // position in this process's model
    bool reads_in_backward = true;  // backward reads the values; not an embedding's
    // Whether forward already adds to gradients, as a head with its loss in chunks does.
    bool gradients_in_forward = false;
};

// Called around each unit's passes. Data parallelism and ZeRO are implemented as hooks. When
// before() returns, a unit's values must be in place, and so must its gradients if the pass adds to
// them.
struct Context;
class Hooks {
public:
    virtual ~Hooks() = default;
    virtual void before(const Unit&, Pass, const Context&) {}
    virtual void after(const Unit&, Pass, const Context&) {}
    // Called after the last of the contributions that begin_gradients() has announced.
    // Contributions are counted, so this works for every order of passes: with a split backward a
    // norm contributes in backward-input and a linear in backward-weight, and a tied weight's last
    // contribution may come from the head or from the embedding.
    virtual void gradient_complete(Parameter&, const Context&) {}
    // Called after the forward of a whole model, with the tensors that its backward will need.
    virtual void forward_done(const Saved&, const Context&) {}
};

// The data that accompany one micro-batch through the model.
struct Context {
    Batch batch;
    // The weight of each token's loss: 1 / counted targets of the global batch.
    float token_weight = 1;
    Tensor loss = {};  // (1) fp64; the head adds to it
    int micro_batch = 0;
    bool training = true;      // false: forward only; nothing is kept, no gradients
    bool as_trained = false;   // a forward without training uses dropout nevertheless
    bool recomputing = false;  // a layer's forward runs again inside its backward
    Hooks* hooks = nullptr;
    std::vector<Parameter*>* contributions = nullptr;  // to which contributed() appends, if given
    bool drops() const { return training || as_trained; }
    // Every use of a parameter calls this once per micro-batch when it has added its contribution;
    // a use with nothing to contribute (an expert without tokens) calls it, too.
    void contributed(Parameter& parameter) const;
};

enum class WeightGradient { now, later };

// y = x W^T (+ bias) (+ residual). Several parameters stacked by rows share one GEMM (q, k, v;
// gate, up). It keeps its input as "x" and its output's gradient as "dy", one row per token, and
// nothing else of that size. A linear that wraps another one may replace them by this rank's shard
// until backward_weight needs them whole, and a part that can compute x again may drop it and put
// it back later.
class Linear {
public:
    explicit Linear(std::vector<Parameter*> rows);
    virtual ~Linear() = default;
    virtual Tensor forward(const Tensor& x, Saved& saved, Context& context,
                           const Tensor& residual = {});
    virtual Tensor backward_input(const Tensor& dy, Saved& saved, Context& context);
    virtual void backward_weight(Saved& saved, Context& context);
    virtual Tensor backward(const Tensor& dy, Saved& saved, Context& context, WeightGradient when);

    // The products alone, which the functions above call. A linear that wraps this one uses them
    // and communicates before, after or between them. They keep nothing, and the result may be some
    // rows of a larger tensor.
    virtual void multiply(Tensor y, const Tensor& x,
                          const Tensor& residual = {});           // y = x W^T (+ bias, residual)
    virtual void multiply_backward(Tensor dx, const Tensor& dy);  // dx = dy W
    virtual void add_weight_gradient(const Tensor& dy, const Tensor& x,
                                     Context& context);  // dW += dy^T x, also the bias's; reports
    const std::vector<Parameter*>& parameters() const { return parameters_; }
    int64_t inputs() const { return parameters_.front()->slice[1].size(); }
    int64_t outputs() const;  // total rows that this rank holds
    // The sum over ranks that follows must contain the bias once: all ranks but one call this.
    void leave_out_bias() { adds_bias_ = false; }

protected:
    std::vector<Parameter*> parameters_, biases_;  // no biases, or one for each
    bool adds_bias_ = true;
    std::string name_;  // in the trace: "mlp.down_proj", "self_attn.q_proj+k_proj+v_proj"
};

class Norm {
public:
    Norm(Parameter* weight, float eps) : weight_(weight), eps_(eps), name_(weight->part()) {}
    virtual ~Norm() = default;
    virtual Tensor forward(const Tensor& x, Saved& saved, Context& context);
    // dx = dresidual + the norm's input gradient. The weight's gradient is computed here too:
    // keeping dy for later would cost more.
    virtual Tensor backward(const Tensor& dy, const Tensor& dresidual, Saved& saved,
                            Context& context);

protected:
    Parameter* weight_;
    float eps_;
    std::string name_;  // in the trace
};

// RMSNorm of each head of q and k before RoPE (Qwen 3), on qkv (B, T, (H + 2K) D). v is unchanged.
class HeadNorms {
public:
    HeadNorms(Parameter* q, Parameter* k, float eps) : q_(q), k_(k), eps_(eps) {}
    virtual ~HeadNorms() = default;
    // heads = H + K. Keeps its input qkv.
    virtual Tensor forward(const Tensor& qkv, int64_t heads, Saved& saved, Context& context);
    virtual void backward(Tensor dqkv, Saved& saved, Context& context);  // in place

protected:
    Parameter *q_, *k_;
    float eps_;
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

// Works in tiles: keeps q, k, v, o and one number per row; backward recomputes the probabilities
// tile by tile.
class FlashAttention : public AttentionCore {
public:
    Tensor forward(const Tensor& q, const Tensor& k, const Tensor& v, Saved& saved,
                   Context& context) override;
    Gradients backward(const Tensor& dout, Saved& saved, Context& context) override;
};

// Holds the T x T probabilities in memory. They are kept for backward, or computed again there
// (selective recomputation).
class NaiveAttention : public AttentionCore {
public:
    explicit NaiveAttention(bool recompute) : recompute_(recompute) {}
    Tensor forward(const Tensor& q, const Tensor& k, const Tensor& v, Saved& saved,
                   Context& context) override;
    Gradients backward(const Tensor& dout, Saved& saved, Context& context) override;

private:
    bool recompute_;
};

// The part of a layer after the second norm: y = residual + f(x).
class FeedForward {
public:
    virtual ~FeedForward() = default;
    virtual Tensor forward(const Tensor& x, const Tensor& residual, Saved& saved,
                           Context& context) = 0;
    virtual Tensor backward(const Tensor& dy, Saved& saved, Context& context,
                            WeightGradient when) = 0;
    virtual void backward_weight(Saved& saved, Context& context) = 0;
};

// Keeps only gate and up. Backward, which reads them anyway, computes the SwiGLU output again,
// because down's weight gradient needs it. This saves F of 3 F kept elements per token for one more
// write.
class SwiGLU : public FeedForward {
public:
    SwiGLU(std::unique_ptr<Linear> gate_up, std::unique_ptr<Linear> down)
        : gate_up_(std::move(gate_up)), down_(std::move(down)) {}
    Tensor forward(const Tensor& x, const Tensor& residual, Saved& saved,
                   Context& context) override;
    Tensor backward(const Tensor& dy, Saved& saved, Context& context, WeightGradient when) override;
    void backward_weight(Saved& saved, Context& context) override;

protected:
    // Computes dgate_up, and overwrites da with a, which forward did not keep.
    virtual void gradient(Tensor dgate_up, Tensor da, const Tensor& gate_up);
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

// Stores a layer's input, which is all that full recomputation keeps.
class Checkpoint {
public:
    virtual ~Checkpoint() = default;
    virtual void keep(const Tensor& x, Saved& saved, Context& context);
    virtual Tensor take(Saved& saved, Context& context);
};

// The output head with the loss: logits = x W^T, and the cross-entropy is summed into context.loss.
// With chunk = 0 the logits of the whole micro-batch exist at once, and backward computes the
// gradients. With chunk > 0 forward processes the tokens in chunks and computes each chunk's dx and
// weight gradient immediately, so that only chunk x V logits ever exist.
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
    // Adds the loss of some tokens (n) to context.loss. In training it overwrites their logits (n,
    // V) with their gradient.
    virtual void loss(Tensor logits, const Tensor& targets, Context& context) const;
    // The products alone, which the functions above call, for a head that multiplies in another
    // way. With chunks of tokens, each is called once for every chunk. The first gradient's
    // function may keep something for the second's, which is called later.
    virtual Tensor local_logits(const Tensor& x) const;  // x W^T
    virtual void input_gradient(Tensor dx, const Tensor& dlogits,
                                Saved& saved) const;  // dx = dlogits W
    virtual void weight_gradient(const Tensor& dlogits, const Tensor& x,
                                 Saved& saved) const;  // dW += dlogits^T x
    Parameter* weight_;
    int64_t chunk_;
};

}  // namespace ultrascale
