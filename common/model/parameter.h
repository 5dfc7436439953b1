// A parameter is one tensor with its Hugging Face name and everything that the rest of the program
// needs to know about it. Initialisation, checkpoints, verification, clipping and every sharding
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

enum class Init { normal, ones, zeros };  // the initial values

struct Parameter {
    std::string name;          // "model.layers.3.self_attn.q_proj.weight"
    Shape shape;               // of the whole tensor
    std::vector<Range> slice;  // the part this rank holds, one range per dimension
    Init init = Init::normal;
    float init_std = 0;  // standard deviation for Init::normal
    bool decays = true;  // AdamW's weight decay applies; not to norms

    // Which ranks hold what (train/replica_groups.h reads it). Along the axes named here, ranks
    // hold different parts of the parameter ("tp" for a linear) or different parameters ("ep" for
    // an expert). Along all other axes they hold copies (except along "pp", where only this rank
    // has it), and the gradient is summed over the data axes among these.
    std::vector<std::string> split_over = {};
    // Further groups over which the gradient is summed: "tp" for the weight of a norm that sees
    // different tokens on each rank, or a group of ranks that hold copies although they differ
    // along a split axis (mesh.h: add_copies).
    std::vector<std::string> replica_groups = {};
    // A linear's weight may have a bias, one element for each row that the rank holds.
    Parameter* bias = nullptr;
    // Contributions to the gradient per micro-batch on this rank: 2 for a tied weight.
    int uses = 1;
    // Whether each contribution is added at once. False for a head whose loss is computed in
    // chunks: it adds once for every chunk.
    bool added_at_once = true;

    Tensor value,
        grad;  // of local_shape(); hooks may rebind them to other storage before use
    // False if grad holds no sum yet; then the next contribution overwrites it.
    bool has_grad = true;
    int64_t contributions = 0, missing = 0;  // needed for a complete sum; still missing
    bool complete = false;                   // none is missing

    // Every use of the parameter calls one of these before it contributes to the gradient; both set
    // has_grad. begin_contribution() returns grad as the addend of a matrix product, or an empty
    // tensor for the first contribution. begin_contribution_in_place() returns grad for an
    // operation that can only add to it, zeroed for the first contribution.
    Tensor begin_contribution() { return std::exchange(has_grad, true) ? grad : Tensor(); }
    Tensor begin_contribution_in_place();

    Shape local_shape() const;
    int64_t local_numel() const { return numel(local_shape()); }
    // Whether it belongs to a norm, whose backward adds its gradient together with dx.
    bool of_norm() const { return name.find("norm.") != name.npos; }
    std::string part() const;  // "self_attn.q_proj" for model.layers.3.self_attn.q_proj.weight
};

// The part of a named tensor that a rank holds: the elements of its `slice` (one range per
// dimension) from `begin` on, row-major. It may be a whole parameter, a parameter's piece in a flat
// shard (ZeRO), or an optimizer state of either. `tensor`, of any shape, holds the elements.
struct TensorPart {
    std::string name;
    Shape shape;  // of the whole tensor
    std::vector<Range> slice;
    int64_t begin = 0;
    Tensor tensor;

    TensorPart(std::string name, Tensor whole);
    TensorPart(const Parameter& parameter, Tensor tensor, int64_t begin = 0,
               const std::string& prefix = "");

    // Calls visit(block, first, count) in order for the one to three rectangular blocks that make
    // up the part. A block is one range per dimension of the whole tensor; row-major, it holds the
    // part's `count` elements from `first` on.
    using Visit =
        std::function<void(const std::vector<Range>& block, int64_t first, int64_t count)>;
    void for_each_block(const Visit& visit) const {
        for_each_block(slice, begin, tensor.numel(), visit);
    }
    // The same for a part that is only described: `count` elements of `slice` from `begin` on.
    static void for_each_block(const std::vector<Range>& slice, int64_t begin, int64_t count,
                               const Visit& visit);
};

// Fills `to` with the parameter's elements from `begin` on, drawn from (seed, name) by random.h, so
// that they are the same for every sharding.
void draw(const Parameter& parameter, int64_t begin, Tensor to, uint64_t seed);

// A model's parameters in the order in which forward uses them. Pointers to them stay valid.
class ParameterList {
public:
    // Registers a parameter, without storage; an empty `slice` means the whole tensor.
    Parameter* add(Parameter parameter);
    Parameter* find(const std::string& name) const;  // nullptr if there is none
    // Adds state without a gradient, (n) fp32, initially zero: a router's bias, a history of amax,
    // a loss scale. It is saved and loaded with the optimizer's states, and never summed, clipped
    // or decayed. A buffer must be the same on all ranks, or have a different name on each.
    Tensor add_buffer(const std::string& name, int64_t n);
    const std::vector<TensorPart>& buffers() const { return buffers_; }  // named "buffer.NAME"
    auto begin() const { return list_.begin(); }
    auto end() const { return list_.end(); }
    size_t size() const { return list_.size(); }
    int64_t local_numel() const;  // elements this rank holds

    // Allocates one flat tensor for the values (or grads) of all parameters, in order and without
    // padding, so that neighbours in the list are neighbours in memory. Grads start at zero.
    void allocate_values(DType dtype);
    void allocate_grads(DType dtype, std::shared_ptr<Allocator> from = nullptr);
    // Starts new gradients: the first contribution to each overwrites it (zeros would have to be
    // written, and read again by the addition), and each is complete after all its uses in
    // `micro_batches` micro-batches.
    void begin_gradients(int64_t micro_batches = 1);
    // Fails if a part did not report its contribution (Context::contributed), which is a bug. It is
    // called before gradients are summed.
    void check_complete() const;
    const Tensor& flat_values() const { return flat_values_; }
    const Tensor& flat_grads() const { return flat_grads_; }

    void initialize(uint64_t seed);  // draws all values
    // This rank's part of every parameter's value (or grad).
    std::vector<TensorPart> parts(Tensor Parameter::*member) const;

private:
    void bind(const Tensor& flat, Tensor Parameter::*member);  // in order, without gaps
    std::vector<std::unique_ptr<Parameter>> list_;
    std::vector<TensorPart> buffers_;
    Tensor flat_values_, flat_grads_;
};

// Points the value (or grad) of these parameters to their places in `flat`, in order and without
// padding.
void bind_to_flat(const std::vector<Parameter*>& parameters, const Tensor& flat,
                  Tensor Parameter::*member);
int64_t local_numel(const std::vector<Parameter*>& parameters);  // the sum over all of them

// Parameters that lie next to each other (q, k, v; gate, up) as one matrix of all their rows.
// Checks that they are adjacent in memory, so whoever rebinds `value` or `grad` must keep them
// adjacent.
Tensor stacked_values(const std::vector<Parameter*>& parameters);
Tensor stacked_grads(const std::vector<Parameter*>& parameters);
Tensor begin_contributions(const std::vector<Parameter*>& parameters);

}  // namespace ultrascale
