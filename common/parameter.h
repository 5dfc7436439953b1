// A parameter is one Hugging Face-named tensor and everything that the rest of the program may want to know about it.
// Initialisation, checkpoints, verification, clipping and every sharding technique read only this description.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tensor.h"

namespace ultrascale {

struct Range {
    int64_t begin, end;
    int64_t size() const { return end - begin; }
};

struct Parameter {
    std::string name;          // "model.layers.3.self_attn.q_proj.weight"
    Shape shape;               // of the whole tensor
    std::vector<Range> slice;  // the part this rank holds, one range per dimension
    bool is_norm = false;      // starts at one, no weight decay
    float init_std = 0;        // else starts normal with this deviation

    std::vector<std::string> replicated_over;  // mesh axes whose ranks hold the same values ("dp", "cp")
    std::vector<std::string> summed_over;      // mesh axes over which the gradient is summed
    bool owner = true;                         // this rank counts it in the norm and saves it: false for all copies but one

    Tensor value, grad;    // local_shape(); hooks may point them at other storage before they are used
    bool has_grad = true;  // false: grad holds nothing yet, and the next contribution overwrites what is there

    // For whoever makes a contribution, which has_grad then counts. sum_so_far: what it is added to, or nothing (the addend of a matrix
    // product). begun_grad: grad, for an operation that can do nothing but add; zeros if it held nothing.
    Tensor sum_so_far() { return std::exchange(has_grad, true) ? grad : Tensor(); }
    Tensor begun_grad();

    Shape local_shape() const;
    int64_t local_numel() const { return numel(local_shape()); }
    std::string part()
        const;  // of its layer: "self_attn.q_proj" of model.layers.3.self_attn.q_proj.weight
};

// What a rank holds of a named tensor: of its `slice` (one range per dimension) the elements from `begin` on, row-major. A whole
// parameter, the piece of one in a flat shard (ZeRO), or an optimizer's state of either. What the elements are is in `tensor`, of
// any shape.
struct TensorPart {
    std::string name;
    Shape shape;  // of the whole tensor
    std::vector<Range> slice;
    int64_t begin = 0;
    Tensor tensor;

    TensorPart(std::string name, Tensor whole);
    TensorPart(const Parameter& parameter, Tensor tensor, int64_t begin = 0, const std::string& prefix = "");

    // Calls visit(block, first, count) for the one to three blocks (one range per dimension of the whole tensor) that make up the
    // part, in order: `count` of its elements from `first` on lie there, row-major.
    void for_each_block(const std::function<void(const std::vector<Range>&, int64_t first, int64_t count)>& visit) const;
};

// Fills `to` with the parameter's elements from `begin` on, as drawn from (seed, name): random.h. The same numbers for every
// sharding.
void draw(const Parameter& parameter, int64_t begin, Tensor to, uint64_t seed);

// The parameters of a model in their order of use in forward. Pointers to them stay valid.
class ParameterList {
public:
    // Registers a parameter; `slice` empty means the whole tensor. Storage comes later.
    Parameter* add(Parameter parameter);
    Parameter* find(const std::string& name) const;  // nullptr if there is none
    auto begin() const { return list_.begin(); }
    auto end() const { return list_.end(); }
    size_t size() const { return list_.size(); }
    int64_t local_numel() const;  // elements this rank holds

    // Gives every parameter's value (or grad) its place in one flat tensor, in order, with no padding: neighbours in the
    // list are neighbours in memory. grads start at zero.
    void allocate_values(DType dtype);
    void allocate_grads(DType dtype, std::shared_ptr<Allocator> from = nullptr);
    // Gradients begin anew: each one's next contribution overwrites it. (Zeros would have to be written, and read by what adds to them.)
    void clear_grads();
    const Tensor& flat_values() const { return flat_values_; }
    const Tensor& flat_grads() const { return flat_grads_; }

    void initialize(uint64_t seed);                                  // draws every value
    std::vector<TensorPart> parts(Tensor Parameter::*member) const;  // of every parameter what this rank holds of its value (or grad)

private:
    void place(const Tensor& flat, Tensor Parameter::*member);  // one after the other
    std::vector<std::unique_ptr<Parameter>> list_;
    Tensor flat_values_, flat_grads_;
};

// Parameters that lie next to each other (q, k, v; gate, up) read as one matrix: their rows one after the other.
// Checks that they are adjacent in memory; whoever rebinds `value` or `grad` keeps them so.
Tensor stacked_values(const std::vector<Parameter*>& parameters);
Tensor stacked_grads(const std::vector<Parameter*>& parameters);
Tensor stacked_sum_so_far(const std::vector<Parameter*>& parameters);

}  // namespace ultrascale
