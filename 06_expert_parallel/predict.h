// What a rank holds and sends, by formula.
//
// Sent. Of a layer with experts, in each forward: the counts (E numbers), and rows there and back;
// in each backward rows there and back. With T tokens a rank, k choices, n ranks and e bytes an
// element a balanced router sends
//
//     T k h e (n-1)/n     in each of the four all-to-alls (--dispatch expert)
//     T h e (n - 1) p     with one copy a rank, p = 1 - C(E - E/n, k) / C(E, k) (--dispatch rank)
//
// (with a capacity, T k is the number of all places). The exact figure follows from the counts that
// came (traffic.h), and equals what was counted.
//
// Held. Experts are shared by ep ranks, all else is copied. Activations follow the rows that came:
// the peak is the highest moment of any micro-batch.
#pragma once

#include "expert_parallel.h"
#include "report/estimate.h"

namespace ultrascale {

// The activations of a layer with experts, in bytes, for the rows that came: moment by moment, as
// experts.h allocates and frees.
struct ExpertActivations {
    double kept = 0;      // from its forward to its backward, besides norms and attention
    double forward = 0;   // the most that its forward holds, with what it keeps
    double backward = 0;  // the most that its backward holds, with what forward kept

    ExpertActivations(const StepShape& shape, const ExpertOptions& o, const Traffic::Rows& rows) {
        const ExpertsConfig& config = shape.config.experts;
        const double e = double(dtype_bytes(shape.model.dtype)),
                     N = double(shape.micro_batch) * double(shape.seq),
                     h = double(shape.config.hidden) * e, F = double(config.ffn) * e;
        const bool travels = o.ep > 1, sorts = travels && config.count > o.ep,
                   has_shared = config.shared > 0;
        const double tokens = N * h;                          // x, y, dy, dx
        const double shared = N * double(config.shared) * F;  // the shared experts' gate, up or a
        const double in = double(rows.at_experts) * h, a = double(rows.at_experts) * F,
                     home = double(rows.hops[0].left) * h;  // rows where their tokens are
        const double scores = N * double(config.count) * 4,
                     choice = N * double(config.router.top_k) * 4;
        const double logits = o.z_coefficient > 0 ? scores : 0;
        const double of_router = logits + scores + 2 * choice, place = choice;
        if (travels && o.dispatch == Dispatch::rank) {
            by_rank(shape, o, rows, {tokens, shared, in, a, h, scores, choice, logits});
            return;
        }
        kept = of_router + place + in + 2 * a + home + 2 * shared;

        const double sent = of_router + place, y = has_shared ? tokens : 0;
        forward = std::max({
            sent + choice + home,                               // sorted, gathered
            sent + (travels ? home : 0) + in + 3 * shared + y,  // on their way
            sent + (sorts ? 2 * in : 0) + 2 * shared + y,       // in experts' order
            kept - home + a + in + y,                           // a, out
            kept - home + tokens + (sorts ? 2 * in : in),       // in ranks' order
            kept + tokens + (travels ? in : 0),                 // back home
        });

        const double dy = tokens * (shape.model.dropout > 0 ? 2 : 1), dweights = choice;
        const double begin = kept + dy + dweights, dx = has_shared ? tokens : 0;
        const double combined = begin - home, inside = combined - 2 * shared + dx;
        const double after = inside - in - 2 * a;
        const double dlogits = scores + (o.has_loss() ? scores : 0) + (e < 4 ? scores / 2 : 0);
        const double routed = after - logits - scores - choice - (has_shared ? tokens : 0);
        backward = std::max({
            begin + home,                                                     // drows
            combined + home + (travels ? in : 0) + std::max(3 * shared, dx),  // on their way
            inside + (sorts ? 2 * in : in),                                   // in order
            inside + in + 3 * a,                  // dout, da, d(gate, up)
            inside + in,                          // dx of the rows
            after + in + dlogits + tokens,        // the router's dx
            routed + (sorts ? 2 * in : in),       // in ranks' order
            routed + (travels ? in + home : in),  // back home
        });
    }

private:
    struct Bytes {
        double tokens, shared, in, a, row, scores, choice, logits;
    };
    // The same with --dispatch rank: what arrived is gathered once more, for each expert, and
    // summed where the experts are.
    void by_rank(const StepShape& shape, const ExpertOptions& o, const Traffic::Rows& rows,
                 const Bytes& b) {
        const bool has_shared = shape.config.experts.shared > 0;
        const double k = double(shape.config.experts.router.top_k) * 4,
                     arrived = double(rows.hops.back().arrived), M = arrived * b.row,
                     of_router = b.logits + b.scores + 2 * b.choice, y = has_shared ? b.tokens : 0;
        kept = of_router + 2 * arrived * k + 2 * b.in + 2 * b.a + 2 * b.shared;
        const double dy = b.tokens * (shape.model.dropout > 0 ? 2 : 1),
                     begin = kept + dy + b.choice, dx = has_shared ? b.tokens : 0,
                     inside = begin - b.in - 2 * b.shared + dx, after = inside - b.in - 2 * b.a,
                     dlogits = b.scores * (o.has_loss() ? 2 : 1) +
                               (shape.model.dtype != DType::fp32 ? b.scores / 2 : 0),
                     routed = after - b.logits - b.scores - b.choice - y;
        forward =
            std::max(of_router + 3 * arrived * k + M + b.in + 2 * b.shared + y, kept + b.a + y);
        backward =
            std::max({begin - 2 * b.shared + dx + b.in + arrived * k + M, inside + b.in + 3 * b.a,
                      after + b.in + dlogits + b.tokens, routed + b.in + M});
        double before = 0;  // rows that an earlier hop brought
        for (const Traffic::Rows::OfHop& hop : rows.hops) {
            const double left = double(hop.left) * b.row, came = double(hop.arrived) * b.row,
                         all = before + left + came;
            forward = std::max(
                {forward, of_router + double(hop.left + hop.arrived) * k + all + 3 * b.shared + y,
                 kept + b.tokens + all});
            backward = std::max({backward, begin + all + std::max(3 * b.shared, dx), routed + all});
            before = came;
        }
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
                 stream = N * double(shape.config.hidden) * double(dtype_bytes(shape.model.dtype));
    double before = 0, most = 0;  // kept of the layers so far; the highest moment
    for (int64_t layer = 0; layer < shape.config.layers; ++layer) {
        double kept, peak;
        if (const auto of = rows.find(layer); of != rows.end()) {
            const ExpertActivations experts(shape, o, of->second);
            const double rest = layer_activations(bare).total();
            kept = rest + experts.kept;
            peak =
                std::max({double(peak_activation_bytes(bare)),
                          rest + experts.forward + (full ? stream : 0), rest + experts.backward});
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
inline int64_t even_rows(const StepShape& shape, const ExpertOptions& o) {
    const ExpertsConfig& e = shape.config.experts;
    const int64_t N = shape.micro_batch * shape.seq;
    return o.capacity_factor > 0 ? e.count * capacity_of(o, e, N) : N * e.router.top_k;
}
inline Traffic::ByLayer balanced_rows(const StepShape& shape, const ExpertOptions& o) {
    const ExpertsConfig& e = shape.config.experts;
    const int64_t R = even_rows(shape, o);
    Traffic::ByLayer rows;
    for (int64_t l = e.first_dense; l < shape.config.layers; ++l) rows[l] = {R, {{R, R}}};
    return rows;
}

// Rows that a rank sends away in a dispatch, and that come back in a combine, on average.
inline double expected_rows_away(const StepShape& shape, const ExpertOptions& o) {
    const ExpertsConfig& e = shape.config.experts;
    const double T = double(shape.micro_batch) * double(shape.seq), n = o.ep;
    if (o.dispatch == Dispatch::expert) return double(even_rows(shape, o)) * (n - 1) / n;
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
        std::llround(std::min(peak_activations(shape, o, balanced_rows(shape, o)), 9e18));
    if (o.ep == 1) return prediction;
    const Group ep("ep", o.ep);
    const ExpertsConfig& e = shape.config.experts;
    const int64_t layers = (shape.config.layers - e.first_dense) * accumulated,
                  forwards = forwards_of(shape, o), rows = 2 * (forwards + 1);
    if (o.capacity_factor == 0)
        prediction.communication.add(ep, Collective::all_to_all, layers * forwards,
                                     layers * forwards * e.count * 4);
    const double row = double(shape.config.hidden) * double(dtype_bytes(shape.model.dtype)),
                 away = expected_rows_away(shape, o) * row, all = double(even_rows(shape, o)) * row;
    prediction.communication.add(
        ep, Collective::all_to_all,
        {layers * rows, std::llround(double(layers * rows) * all), double(layers * rows) * away});
    return prediction;
}

}  // namespace ultrascale
