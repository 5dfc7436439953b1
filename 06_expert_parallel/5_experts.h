// A rank's experts as one linear: W (G, out, in) holds a matrix for each of its G experts, and the
// rows of x lie in the experts' order. One grouped product takes the place of G small ones:
//
//     x (R, in)    W (G, out, in)             y (R, out)
//     | rows of expert 0 | x  W_0^T  -->  | rows of expert 0 |
//     | rows of expert 1 | x  W_1^T  -->  | rows of expert 1 |     dx = dy W_g    dW_g += dy^T x
//     |                  |                |                  |
//     `counts` (G) says how many rows each expert has; some have none.
//
// Each expert's weights are parameters of their own, with Hugging Face's names; they are registered
// one after the other, so that they are neighbours in memory and W is a view of all of them.
#pragma once

#include "core/error.h"
#include "core/trace.h"
#include "kernels/ops_experts.h"
#include "model/activation.h"
#include "model/parts.h"

namespace ultrascale::expert_parallel {

class GroupedLinear {
public:
    // `parameters`: of expert 0 first; each expert has as many of them, of the same shapes.
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
    // Reports a contribution of every expert, also of those without rows.
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

}  // namespace ultrascale::expert_parallel
