// A rank's experts as one linear: W (G, out, in) holds a matrix for each of its G experts, and the
// rows of x lie in the order of the experts. One grouped product replaces G small products:
//
//     x (R, in)    W (G, out, in)             y (R, out)
//     | rows of expert 0 | x  W_0^T  -->  | rows of expert 0 |
//     | rows of expert 1 | x  W_1^T  -->  | rows of expert 1 |     dx = dy W_g    dW_g += dy^T x
//     |                  |                |                  |
//     `counts` (G) says how many rows each expert has; some have none.
//
// Each expert's weights are parameters of their own with Hugging Face's names. They are registered
// one after the other, so they are neighbours in memory and W is a view of all of them.
#pragma once

#include "comm/comm.h"
#include "core/error.h"
#include "core/trace.h"
#include "kernels/ops_experts.h"
#include "model/activation.h"
#include "model/parts.h"

namespace ultrascale::expert_parallel {

class GroupedLinear {
public:
    // `parameters`: those of expert 0 come first; each expert has as many, with the same shapes.
    GroupedLinear(std::vector<Parameter*> parameters, int64_t experts, std::string name)
        : parameters_(std::move(parameters)),
          experts_(experts),
          inputs_(parameters_.front()->shape[1]),
          name_(std::move(name)) {
        for (const Parameter* p : parameters_) outputs_ += p->shape[0];
        outputs_ /= experts_;
    }

    // x (R, in) -> (R, out)
    Tensor forward(const Tensor& x, const Tensor& counts, Saved& saved) {
        const TraceName name(TraceName::part, name_);
        const Tensor y = activation({x.rows(), outputs_}, x.dtype());
        ops::grouped_matmul(y, x, weight(stacked_values(parameters_)), counts);
        saved.keep("x", x);
        return y;
    }
    // dy (R, out) -> (R, in)
    Tensor backward_input(const Tensor& dy, const Tensor& counts, Saved& saved) {
        const TraceName name(TraceName::part, name_), pass(TraceName::pass, "dX");
        const Tensor dx = activation({dy.rows(), inputs_}, dy.dtype());
        ops::grouped_matmul_backward_input(dx, dy, weight(stacked_values(parameters_)), counts);
        saved.keep("dy", dy);
        return dx;
    }
    // Reports a contribution of every expert, even of those without rows.
    void backward_weight(const Tensor& counts, Saved& saved, Context& context) {
        const TraceName name(TraceName::part, name_), pass(TraceName::pass, "dW");
        const Tensor x = saved.take("x"), dy = saved.take("dy"),
                     addend = begin_contributions(parameters_);
        ops::grouped_matmul_backward_weight(weight(stacked_grads(parameters_)), dy, x, counts,
                                            addend ? weight(addend) : Tensor());
        for (Parameter* p : parameters_) context.contributed(*p);
    }
    const std::vector<Parameter*>& parameters() const { return parameters_; }

private:
    Tensor weight(const Tensor& all) const { return all.view({experts_, outputs_, inputs_}); }

    std::vector<Parameter*> parameters_;
    int64_t experts_, inputs_, outputs_ = 0;
    std::string name_;  // in the trace
};

struct ExpertRows {
    Tensor rows, counts;  // (R, h) in the experts' order; (G) int32 rows of each of its experts
    Tensor weights;       // (R, 1) fp32, the routers'; in backward their gradients
};

// A rank's experts: SwiGLU (parts.h) with grouped products. A row's weight is applied before the
// last product: down(w a) = w down(a). So the weight's gradient is a sum over numbers that SwiGLU's
// backward reads anyway, and no output of an expert needs to be kept. In bf16 this saves 2 h bytes
// a row; 2 h for its input and 4 F for gate and up remain.
class GroupedSwiGLU {
public:
    GroupedSwiGLU(GroupedLinear gate_up, GroupedLinear down)
        : gate_up_(std::move(gate_up)), down_(std::move(down)) {}

    // (R, h) -> (R, h), weighted
    Tensor forward(ExpertRows in, Saved& saved) {
        Tensor gate_up = gate_up_.forward(in.rows, in.counts, saved["gate_up"]);  // (R, 2 F)
        in.rows = {};
        const Tensor a = activation({gate_up.rows(), gate_up.cols() / 2}, gate_up.dtype());
        ops::swiglu_forward(a, gate_up, in.weights);
        saved.keep("weights", std::move(in.weights));
        saved.keep("gate_up", std::move(gate_up));
        saved.keep("counts", in.counts);
        const Tensor out = down_.forward(a, in.counts, saved["down"]);
        saved["down"].drop("x");
        return out;
    }
    // Takes the gradient of the output (R, h) and returns those of the input and the weights. With
    // `now` the weight gradients of down are added, too; those of gate and up remain for later.
    ExpertRows backward(Tensor dout, Saved& saved, Context& context, WeightGradient when) {
        const Tensor counts = saved.get("counts");
        Tensor da = down_.backward_input(dout, counts, saved["down"]);  // (R, F)
        dout = {};
        Tensor gate_up = saved.take("gate_up"), dgate_up = activation_like(gate_up);  // (R, 2 F)
        const Tensor weights = saved.take("weights"), dweights = activation_like(weights);
        ops::swiglu_backward(dgate_up, da, gate_up, weights, dweights);  // da: now down's input
        saved["down"].keep("x", std::move(da));
        gate_up = {};
        if (when == WeightGradient::now) down_.backward_weight(counts, saved["down"], context);
        return {gate_up_.backward_input(dgate_up, counts, saved["gate_up"]), {}, dweights};
    }
    void backward_weight_of_gate_up(Saved& saved, Context& context) {
        gate_up_.backward_weight(saved.take("counts"), saved["gate_up"], context);
    }
    void backward_weight(Saved& saved, Context& context) {
        down_.backward_weight(saved.get("counts"), saved["down"], context);
        backward_weight_of_gate_up(saved, context);
    }

private:
    GroupedLinear gate_up_, down_;
};

// An expert that a rank holds, and further groups over which its gradient is summed.
struct HeldExpert {
    int64_t number;
    std::vector<std::string> replica_groups = {};
};
// Each rank of `ep` holds the same number of neighbouring experts.
inline std::vector<HeldExpert> neighbouring_experts(int64_t E, const Communicator& ep,
                                                    const std::vector<std::string>& groups = {}) {
    const int64_t here = E / ep.size(), first = ep.rank() * here;
    std::vector<HeldExpert> held;
    for (int64_t e = first; e < first + here; ++e) held.push_back({e, groups});
    return held;
}

// Registers the experts of a layer that this rank holds. `uses`: how often a micro-batch runs
// through them.
inline GroupedSwiGLU experts_of_rank(ParameterList& list, const ModulePath& block,
                                     const LlamaConfig& config, const std::vector<HeldExpert>& held,
                                     int uses = 1) {
    const ExpertNames names = expert_names(config);
    const auto grouped = [&](const std::vector<const char*>& matrices, int64_t out, int64_t in) {
        std::vector<Parameter*> all;
        std::string together = "experts";  // in the trace: "experts.gate_proj.up_proj"
        for (const char* matrix : matrices) together += fmt::format(".{}", matrix);
        for (const HeldExpert& expert : held)
            for (const char* matrix : matrices)
                all.push_back(list.add({
                    .name =
                        block.part(fmt::format("experts.{}.{}", expert.number, matrix)).weight(),
                    .shape = {out, in},
                    .init_std = float(config.init_std),
                    .split_over = {"ep"},
                    .replica_groups = expert.replica_groups,
                    .uses = uses,
                }));
        return GroupedLinear(std::move(all), int64_t(held.size()), std::move(together));
    };
    const int64_t h = config.hidden, F = config.experts.ffn;
    GroupedLinear gate_up = grouped({names.gate, names.up}, F, h),
                  down = grouped({names.down}, h, F);
    return {std::move(gate_up), std::move(down)};
}

}  // namespace ultrascale::expert_parallel
