// What a rank holds and sends, by formula.
//
// Sent. Of a layer with experts, in each forward: the counts (E numbers), and rows there and back; in
// each backward rows there and back. With T tokens a rank, k choices, n ranks and e bytes an element
// a balanced router sends
//
//     T k h e (n-1)/n     in each of the four all-to-alls (--dispatch expert)
//     T h e (n - 1) p     with one copy a rank, p = 1 - C(E - E/n, k) / C(E, k) (--dispatch rank)
//
// The exact figure follows from the counts that came (traffic.h), and equals what was counted.
//
// Held. Experts are shared by ep ranks, all else is copied. Activations follow the rows that came:
// the peak is the highest moment of any micro-batch.
#pragma once

#include "expert_parallel.h"
#include "report/estimate.h"

namespace ultrascale {

// The activations of a layer with experts, in bytes, for the rows that came.
struct ExpertActivations {
    double kept = 0;      // from its forward to its backward, without norms and attention
    double forward = 0;   // the most that its forward holds besides, while kept is complete
    double backward = 0;  // the most that its backward holds in all, without `kept` of the others

    ExpertActivations(const StepShape& shape, const ExpertOptions& o, const Traffic::Rows& rows) {
        const ExpertsConfig& config = shape.config.experts;
        const double e = double(dtype_bytes(shape.model.dtype)),
                     N = double(shape.micro_batch) * double(shape.seq), k = double(config.router.top_k),
                     E = double(config.count), h = double(shape.config.hidden) * e,
                     F = double(config.ffn) * e, shared = N * double(config.shared) * F;
        const double R = double(rows.at_experts), left = double(rows.left);
        const double scores = N * E * 4, choice = N * k * 4;
        const bool travels = o.ep > 1, sorts = travels && config.count > o.ep;
        const double of_router = scores * (o.z_coefficient > 0 ? 2 : 1) + 2 * choice;
        const double in = R * h, gate_up = 2 * R * F, back = left * h;
        kept = of_router + choice + in + gate_up + back + 2 * shared;
        // y is made where rows have come back.
        forward = N * h;
        forward = std::max(forward, R * F + in - back);               // experts: a, out
        if (travels) forward = std::max(forward, (sorts ? in : 0));   // rows on their way back
        // Backward, moment by moment; what it has used is freed.
        const double all = kept, dweights = choice, dy = N * h;
        const double of_shared = config.shared > 0 ? N * h : 0;  // its dx waits for the others
        double most = all + dy + dweights + back;  // drows
        const double without_back = all - back;
        if (travels) most = std::max(most, without_back + dy + dweights + back + in + of_shared);
        if (sorts) most = std::max(most, without_back + dy + dweights + 2 * in + of_shared);
        const double in_experts = without_back - 2 * shared + of_shared + dy + dweights;
        most = std::max(most, in_experts + in + R * F + 2 * R * F);  // dout, da, d(gate, up)
        most = std::max(most, in_experts + in);                      // dx of the rows
        const double used = in_experts - in - gate_up;
        if (sorts) most = std::max(most, used + 2 * in);
        if (travels) most = std::max(most, used + in + back);
        most = std::max(most, used + (travels ? back : in) + 2 * scores + N * h);
        backward = most;
    }
};

// The peak of a rank's activations in a micro-batch whose layers with experts had these rows.
inline double peak_activations(const StepShape& shape, const ExpertOptions& o,
                               const Traffic::ByLayer& rows) {
    LocalSizes dense = local_sizes(shape), bare = dense, head = dense;
    bare.features = 0, bare.layers = dense.layers = 1, head.layers = 0;
    bare.embedding = bare.head = dense.embedding = dense.head = false;
    const bool full = shape.model.recompute == Recompute::full;
    const double N = double(shape.micro_batch) * double(shape.seq),
                 stream = N * double(shape.config.hidden) *
                          double(dtype_bytes(shape.model.dtype));
    double before = 0, most = 0;  // kept of the layers so far; the highest moment
    for (int64_t layer = 0; layer < shape.config.layers; ++layer) {
        double kept, peak;
        if (const auto of = rows.find(layer); of != rows.end()) {
            const ExpertActivations experts(shape, o, of->second);
            const double rest = layer_activations(bare).total();
            kept = rest + experts.kept;
            peak = std::max({double(peak_activation_bytes(bare)) ,
                             kept + experts.forward + (full ? stream : 0),
                             rest + experts.backward});
        } else {
            kept = layer_activations(dense).total();
            peak = double(peak_activation_bytes(dense));
        }
        most = std::max(most, before + peak);
        before += full ? stream : kept;
    }
    // The moments of the head, over what all layers kept.
    return std::max(most, before + double(peak_activation_bytes(head)));
}

// With a balanced router: what --estimate predicts, and what the report calls the expectation.
inline Traffic::ByLayer balanced_rows(const StepShape& shape) {
    const ExpertsConfig& e = shape.config.experts;
    const int64_t R = shape.micro_batch * shape.seq * e.router.top_k;
    Traffic::ByLayer rows;
    for (int64_t l = e.first_dense; l < shape.config.layers; ++l) rows[l] = {R, R, R};
    return rows;
}

// Rows that a rank sends away in a dispatch, and that come back in a combine, on average.
inline double expected_rows_away(const StepShape& shape, const ExpertOptions& o) {
    const ExpertsConfig& e = shape.config.experts;
    const double T = double(shape.micro_batch) * double(shape.seq), n = o.ep;
    if (o.dispatch == Dispatch::expert) return T * double(e.router.top_k) * (n - 1) / n;
    double none = 1;  // the probability that none of k experts is among a rank's
    for (int64_t j = 0; j < e.router.top_k; ++j)
        none *= std::max(0.0, double(e.count) - double(e.count) / n - double(j)) /
                (double(e.count) - double(j));
    return T * (n - 1) * (1 - none);
}

inline int64_t forwards_of(const StepShape& shape, const ExpertOptions& o) {
    return 1 + (shape.model.recompute == Recompute::full ? 1 : 0) + (o.counts_first() ? 1 : 0);
}

// The sums of gradients: an expert's over dp, all others over dp and ep.
inline void add_sums(Prediction& prediction, const ParameterList& parameters, const Mesh& mesh,
                     DType grad_dtype) {
    for (const auto& p : parameters)
        if (const Communicator& group = mesh.data_group(*p); group.size() > 1)
            prediction.communication.add(group, Collective::all_reduce, 1,
                                         p->local_numel() * dtype_bytes(grad_dtype));
}

// All but the activations and the rows: the same for every routing.
inline Prediction predict_fixed(const StepShape& shape, const ExpertOptions& o,
                                const ParameterList& parameters, const Mesh& mesh,
                                const Balance& balance) {
    Prediction prediction;
    add_parameters(prediction, parameters.local_numel(), shape);
    for (const TensorPart& buffer : parameters.buffers())
        prediction.memory.parameters += buffer.tensor.bytes();
    add_flops(prediction, shape, active_parameter_count(shape.config));
    add_sums(prediction, parameters, mesh, shape.grad_dtype);
    const Communicator &all = mesh.group({"dp", "ep"}), &ep = mesh.norm_group();
    if (ep.size() > 1) prediction.communication.add(ep, Collective::all_reduce, 1, 8);  // the norm
    if (all.size() == 1) return prediction;
    prediction.communication.add(all, Collective::all_reduce, 1, 8);  // the loss
    prediction.communication.add(all, Collective::all_reduce, 1, balance.step_elements() * 8);
    if (o.counts_first())
        prediction.communication.add(all, Collective::all_reduce, 1,
                                     balance.counted_elements() * 4);
    return prediction;
}

// A step with a balanced router.
inline Prediction predict_balanced(const StepShape& shape, const ExpertOptions& o,
                                   const ParameterList& parameters, const Mesh& mesh,
                                   const Balance& balance, int64_t accumulated) {
    Prediction prediction = predict_fixed(shape, o, parameters, mesh, balance);
    prediction.memory.peak_activations =
        std::llround(std::min(peak_activations(shape, o, balanced_rows(shape)), 9e18));
    if (o.ep == 1) return prediction;
    const Group ep("ep", o.ep);
    const ExpertsConfig& e = shape.config.experts;
    const int64_t layers = (shape.config.layers - e.first_dense) * accumulated,
                  forwards = forwards_of(shape, o), rows = 2 * (forwards + 1);
    prediction.communication.add(ep, Collective::all_to_all, layers * forwards,
                                 layers * forwards * e.count * 4);
    const double row = double(shape.config.hidden) * double(dtype_bytes(shape.model.dtype)),
                 away = expected_rows_away(shape, o) * row,
                 all = double(shape.micro_batch * shape.seq * e.router.top_k) * row;
    prediction.communication.add(ep, Collective::all_to_all,
                                 {layers * rows, std::llround(double(layers * rows) * all),
                                  double(layers * rows) * away});
    return prediction;
}

}  // namespace ultrascale
