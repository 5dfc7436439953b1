// A parameter is one Hugging Face-named tensor and everything that the rest of the program may want
// to know about it. Initialisation, checkpoints, verification, clipping and every sharding
// technique read only this description.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/tensor.h"

namespace ultrascale {

struct Range {
    int64_t begin, end;
    int64_t size() const { return end - begin; }
};

enum class Start { normal, ones, zeros };  // what a value is before training

struct Parameter {
    std::string name;          // "model.layers.3.self_attn.q_proj.weight"
    Shape shape;               // of the whole tensor
    std::vector<Range> slice;  // the part this rank holds, one range per dimension
    Start start = Start::normal;
    float init_std = 0;        // of Start::normal: the deviation
    bool decays = true;        // AdamW's weight decay: not for norms

    // Who holds what (mesh.h reads it). Along the axes named here the ranks hold different parts of
    // it, or something else instead: "tp" of a linear, "ep" of an expert. Along all others they
    // hold copies (but along "pp", where it is on this rank alone), and its gradient is summed over
    // the data axes among them.
    std::vector<std::string> split_over = {};
    // Groups over which the gradient is summed besides: "tp" for a norm's weight of which each rank
    // saw other tokens; some ranks of a split axis that hold a copy all the same (mesh.h:
    // add_copies).
    std::vector<std::string> also_summed_over = {};
    // contributions to the gradient in a micro-batch, on this rank; 2 for a tied weight
    int uses = 1;

    Tensor value,
        grad;  // local_shape(); hooks may point them at other storage before they are used
    // false: grad holds nothing yet, and the next contribution overwrites what is there
    bool has_grad = true;
    int64_t contributions = 0, missing = 0;  // until a sum is complete: of all, and still to come
    bool complete = false;                   // all have come

    // Whoever contributes to the gradient calls one of these first; has_grad counts it from then
    // on. begin_contribution: what is added to (the addend of a matrix product), or nothing where
    // this is the first. In place: grad, for an operation that can do nothing but add; zeros at
    // first.
    Tensor begin_contribution() { return std::exchange(has_grad, true) ? grad : Tensor(); }
    Tensor begin_contribution_in_place();

    Shape local_shape() const;
    int64_t local_numel() const { return numel(local_shape()); }
    std::string part()
        const;  // of its layer: "self_attn.q_proj" of model.layers.3.self_attn.q_proj.weight
};

// What a rank holds of a named tensor: of its `slice` (one range per dimension) the elements from
// `begin` on, row-major. A whole parameter, the piece of one in a flat shard (ZeRO), or an
// optimizer's state of either. What the elements are is in `tensor`, of any shape.
struct TensorPart {
    std::string name;
    Shape shape;  // of the whole tensor
    std::vector<Range> slice;
    int64_t begin = 0;
    Tensor tensor;

    TensorPart(std::string name, Tensor whole);
    TensorPart(const Parameter& parameter, Tensor tensor, int64_t begin = 0,
               const std::string& prefix = "");

    // Calls visit(block, first, count) for the one to three blocks (one range per dimension of the
    // whole tensor) that make up the part, in order: `count` of its elements from `first` on lie
    // there, row-major.
    void for_each_block(const std::function<void(const std::vector<Range>&, int64_t first,
                                                 int64_t count)>& visit) const;
};

// Fills `to` with the parameter's elements from `begin` on, as drawn from (seed, name): random.h.
// The same numbers for every sharding.
void draw(const Parameter& parameter, int64_t begin, Tensor to, uint64_t seed);

// The parameters of a model in their order of use in forward. Pointers to them stay valid.
class ParameterList {
public:
    // Registers a parameter; `slice` empty means the whole tensor. Storage comes later.
    Parameter* add(Parameter parameter);
    Parameter* find(const std::string& name) const;  // nullptr if there is none
    // State that has no gradient, (n) fp32, zero at first: a router's bias, a history of amax, a
    // loss scale. It is saved and resumed with the optimizer's states, and never summed, clipped or
    // decayed. The same on all ranks, or of a name of its own on each.
    Tensor add_buffer(const std::string& name, int64_t n);
    const std::vector<TensorPart>& buffers() const { return buffers_; }  // called "buffer.NAME"
    auto begin() const { return list_.begin(); }
    auto end() const { return list_.end(); }
    size_t size() const { return list_.size(); }
    int64_t local_numel() const;  // elements this rank holds

    // Gives every parameter's value (or grad) its place in one flat tensor, in order, with no
    // padding: neighbours in the list are neighbours in memory. grads start at zero.
    void allocate_values(DType dtype);
    void allocate_grads(DType dtype, std::shared_ptr<Allocator> from = nullptr);
    // Gradients begin anew: each one's next contribution overwrites it (zeros would have to be
    // written, and read by what adds to them), and it is complete after its uses in `micro_batches`
    // of them.
    void begin_gradients(int64_t micro_batches = 1);
    // Where gradients are about to be summed. The programmer's error: a part did not tell its
    // contribution (Context::contributed).
    void check_complete() const;
    const Tensor& flat_values() const { return flat_values_; }
    const Tensor& flat_grads() const { return flat_grads_; }

    void initialize(uint64_t seed);                                  // draws every value
    // of every parameter what this rank holds of its value (or grad)
    std::vector<TensorPart> parts(Tensor Parameter::*member) const;

private:
    void place(const Tensor& flat, Tensor Parameter::*member);  // one after the other
    std::vector<std::unique_ptr<Parameter>> list_;
    std::vector<TensorPart> buffers_;
    Tensor flat_values_, flat_grads_;
};

// Parameters that lie next to each other (q, k, v; gate, up) read as one matrix: their rows one
// after the other. Checks that they are adjacent in memory; whoever rebinds `value` or `grad` keeps
// them so.
Tensor stacked_values(const std::vector<Parameter*>& parameters);
Tensor stacked_grads(const std::vector<Parameter*>& parameters);
Tensor begin_contributions(const std::vector<Parameter*>& parameters);

}  // namespace ultrascale
