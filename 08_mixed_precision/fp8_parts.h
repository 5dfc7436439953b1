// The model's parts that multiply in fp8, as a whole: finds and connects them, and rounds their
// weights anew after every update.
#pragma once

#include <map>
#include <set>

#include "2_plain_fp8_linear.h"
#include "6_fp8_linear.h"
#include "7_fp8_head.h"
#include "7_smooth_swiglu.h"
#include "8_storage.h"
#include "model/llama.h"

namespace ultrascale::mixed_precision {

class Fp8Linears {
public:
    explicit Fp8Linears(const PrecisionOptions& options)
        : Fp8Linears(std::make_shared<Fp8Shared>(options)) {}
    explicit Fp8Linears(std::shared_ptr<Fp8Shared> shared) : shared_(std::move(shared)) {}

    // Makes the linears of a model of so many layers multiply in fp8, or in blocks, whatever wraps
    // them, and with --head fp8 its head.
    void add_to(ModuleFactories& factories, int64_t layers) {
        const Recipe& recipe = shared_->options.recipe;
        if (!recipe.fp8()) return;
        const int64_t narrow_layers = layers - layers_in_bf16(recipe, layers);
        factories.gemm = [this, narrow_layers](ParameterList&, const ModulePath& path,
                                               std::vector<Parameter*> rows,
                                               LinearRole) -> std::unique_ptr<Linear> {
            const std::string part = rows.front()->part();
            const bool keeps = shared_->options.keep_fp8 &&
                               (part == "self_attn.q_proj" || part == "mlp.gate_proj");
            stacks_.push_back(rows);
            if (path.layer >= narrow_layers) return std::make_unique<Linear>(std::move(rows));
            if (shared_->options.recipe.blocks()) return shared_->linear_of_blocks(std::move(rows));
            if (shared_->options.recipe.plain)
                return std::make_unique<PlainFp8Linear>(std::move(rows));
            if (shared_->options.smooth && part == "mlp.down_proj")
                return std::make_unique<SmoothLinear>(std::move(rows), shared_->options);
            const std::string weight = rows.front()->name;
            auto linear = std::make_unique<Fp8Linear>(std::move(rows), shared_, keeps);
            linears_.push_back(linear.get());
            by_name_[weight.substr(0, weight.rfind('.'))] = linear.get();
            return linear;
        };
        if (!shared_->options.head_fp8) return;
        factories.head = [this, plain = factories.head](ParameterList& list, const Stage& stage) {
            return std::make_unique<Fp8Head<Head>>(shared_, *plain(list, stage));
        };
    }
    std::set<const Parameter*> parameters() const {
        std::set<const Parameter*> all;
        for (const auto& stack : stacks_) all.insert(stack.begin(), stack.end());
        return all;
    }
    // Returns the linear whose first weight is `name`.weight ("model.layers.3.self_attn.q_proj"),
    // if it is built already; nullptr if there is none, or if it is another kind of linear.
    Fp8Linear* find(const std::string& name) const {
        const auto found = by_name_.find(name);
        return found == by_name_.end() ? nullptr : found->second;
    }
    // Remembers a part that feeds this linear: `connect` is called when the model is built.
    void when_built(const std::string& name, std::function<void(Fp8Linear&)> connect) {
        connections_.emplace_back(name, std::move(connect));
    }
    // Called after the model is built: connects the parts, allocates scales and history buffers.
    void allocate(ParameterList& parameters) {
        for (const auto& [name, connect] : std::exchange(connections_, {}))
            if (Fp8Linear* linear = find(name)) connect(*linear);
        if (is_fp8(shared_->options.recipe.weights))
            for (Fp8Linear* linear : linears_) linear->weights().allocate_scales();
        shared_->histories.allocate(parameters);
    }
    // Rounds master weights, after they have changed, to weights in fp8.
    void round_weights(Storage& storage) {
        if (!is_fp8(shared_->options.recipe.weights)) return;
        std::span<Storage::StoredParameter> held = storage.linears();
        size_t next = 0;  // stacks and parameters have the same order
        for (size_t i = 0; i < linears_.size(); ++i) {
            const size_t end = next + stacks_[i].size();
            linears_[i]->weights().round(stacked_masters(held.subspan(next, end - next)));
            next = end;
        }
    }
    AmaxHistories& histories() { return shared_->histories; }

private:
    // Returns one matrix of all rows. Rows with scales of their own are converted to fp32 first.
    static Tensor stacked_masters(std::span<Storage::StoredParameter> stack) {
        int64_t rows = 0;
        for (const Storage::StoredParameter& h : stack) rows += h.master.size(0);
        const int64_t cols = stack.front().master.size(1);
        if (!stack.front().master_scale) return stack.front().master.extended_view({rows, cols});
        Tensor all = Tensor::empty({rows, cols}, DType::fp32, Memory::workspace);
        int64_t begin = 0;
        for (const Storage::StoredParameter& h : stack) {
            const int64_t end = begin + h.master.size(0);
            ops::copy(all.slice(begin, end), Storage::exact(h));
            begin = end;
        }
        return all;
    }
    std::shared_ptr<Fp8Shared> shared_;
    std::vector<Fp8Linear*> linears_;  // the model owns them
    std::map<std::string, Fp8Linear*> by_name_;
    std::vector<std::pair<std::string, std::function<void(Fp8Linear&)>>> connections_;
    std::vector<std::vector<Parameter*>> stacks_;
};

}  // namespace ultrascale::mixed_precision
