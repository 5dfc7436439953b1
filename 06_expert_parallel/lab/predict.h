// Predicts by formula the bytes that a rank sends and holds.
//
// Sent, for a layer with experts: in each forward the counts (E numbers; with --dispatch rank n, to
// all ranks), the rows there and back, and their weights (a number a row) there; in each backward
// the rows there and back, and the gradients of the weights back. With T tokens a rank, k choices,
// n ranks and e bytes an element a balanced router sends
//
//     T k h e (n-1)/n     in each of the four all-to-alls (--dispatch expert)
//     T h e (n - 1) p     with one copy a rank, p = 1 - C(E - E/n, k) / C(E, k) (--dispatch rank)
//
// (in fp8 a dispatch sends h + h/32 bytes a row instead of h e; --dispatch-dtype).
// (with a capacity, T k is the number of all places). The exact number follows from the actual
// counts (dispatch_statistics.h), and equals the measured one.
//
// Held: experts are shared by ep ranks, everything else is copied; for activations see
// activations.h.
#pragma once

#include "stage_activations.h"
#include "train/replica_groups.h"

namespace ultrascale::expert_parallel {

// The communication of the rows that arrived.
inline PredictedCommunication sent_of(const DispatchStatistics& statistics) {
    PredictedCommunication communication;
    for (const auto& [call, sent] : statistics.sent())
        communication.add({call.first, 0}, call.second, {sent.calls, sent.bytes, sent.sent});
    return communication;
}

// The rows of a layer's experts in a micro-batch of which a rank routes `tokens` tokens, if the
// router is balanced. --estimate predicts them, and the report calls them expected.
inline int64_t even_rows(const ExpertsConfig& e, const ExpertOptions& o, int64_t tokens) {
    const int64_t chunks = o.chunks_here();
    return o.capacity_factor > 0 ? chunks * e.count * capacity_of(o, e, tokens / chunks)
                                 : tokens * e.router.top_k;
}
// The average number of ranks (or nodes), of n that share this many experts equally, to which a
// token's k choices go.
inline double ranks_of_token(int64_t experts, int64_t k, double n) {
    double none = 1;  // the probability that none of k experts is among a rank's
    for (int64_t j = 0; j < k; ++j)
        none *= std::max(0.0, double(experts) - double(experts) / n - double(j)) /
                (double(experts) - double(j));
    return n * (1 - none);
}
// The stages of --dispatch rank: to the ranks, or with --max-nodes to nodes and then to their
// ranks. The router chooses among the experts of that many nodes.
inline std::vector<DispatchStatistics::Rows::OfStage> balanced_stages(const ExpertsConfig& e,
                                                                      const ExpertOptions& o,
                                                                      int64_t tokens) {
    const bool by_node = o.max_nodes > 0;
    const int64_t ranks = by_node ? o.max_nodes * o.node_size : o.ep,
                  experts = e.count / o.ep * ranks;
    std::vector<DispatchStatistics::Rows::OfStage> stages;
    const auto add = [&](double to, int64_t most) {
        const int64_t rows =
            std::llround(double(tokens) * ranks_of_token(experts, e.router.top_k, to));
        stages.push_back({rows, rows, most});
    };
    if (by_node) add(o.max_nodes, tokens * (o.ep / o.node_size));
    add(double(ranks), by_node ? stages[0].arrived * o.node_size : tokens * o.ep);
    return stages;
}
inline DispatchStatistics::ByLayer balanced_rows(const LlamaConfig& config, const ExpertOptions& o,
                                                 int64_t tokens) {
    const int64_t R = even_rows(config.experts, o, tokens);
    const std::vector<int64_t> chunks(size_t(o.chunks_here()), R / o.chunks_here());
    DispatchStatistics::Rows layer_rows = {R, {{R, R}}, chunks};
    if (o.ep > 1 && o.dispatch == Dispatch::rank)
        layer_rows.stages = balanced_stages(config.experts, o, tokens);
    DispatchStatistics::ByLayer rows;
    for (int64_t l = config.experts.first_dense; l < config.layers; ++l) rows[l] = layer_rows;
    return rows;
}

// The average number of rows that a rank sends away in a dispatch, and gets back in a combine.
inline double expected_rows_away(const ExpertsConfig& e, const ExpertOptions& o, int64_t tokens) {
    const double n = o.ep,
                 copies = o.dispatch != Dispatch::rank
                              ? double(even_rows(e, o, tokens))
                              : double(tokens) * ranks_of_token(e.count, e.router.top_k, n);
    return copies * (n - 1) / n;
}

// How often this layer's forward runs for a micro-batch.
inline int64_t forwards_of(const StepShape& shape, const ExpertOptions& o, int64_t layer) {
    return 1 + (shape.model.recompute.of(layer) == Recompute::full) + o.counts_first();
}

// The sums of gradients: an expert's over dp and the ranks that hold copies, all others over dp and
// ep.
inline void add_sums(Prediction& prediction, const ParameterList& parameters, const Mesh& mesh,
                     DType grad_dtype) {
    for (const auto& p : parameters) {
        const auto add = [&](const Communicator& group) {
            if (group.size() > 1)
                prediction.communication.add(group, Collective::all_reduce, 1,
                                             p->local_numel() * dtype_bytes(grad_dtype));
        };
        add(data_group(mesh, *p));
        for (const std::string& name : p->replica_groups) add(mesh.group(name));
    }
}

// Adds the sums of the step's loads over `all` ranks at its end, and with --aux-over global also
// before it.
inline void add_loads(PredictedCommunication& step_communication, const ExpertOptions& o,
                      const LoadBalance& balance, const Group& all) {
    if (all.ranks == 1) return;
    step_communication.add(all, Collective::all_reduce, 1, balance.step_elements() * 8);
    if (o.counts_first())
        step_communication.add(all, Collective::all_reduce, 1, balance.counted_elements() * 4);
}
// Adds the sums of an auxiliary loss's counts over the ranks that share a micro-batch's tokens, in
// each of a step's `forwards` of a layer with experts (except when one is recomputed).
inline void add_count_sums(PredictedCommunication& step_communication, const StepShape& shape,
                           const ExpertOptions& o, const LoadBalance& balance, int64_t forwards) {
    if (!balance.sums_counts()) return;
    const int64_t segments = o.aux == Aux::sequence ? shape.micro_batch : 1;
    step_communication.add(*balance.shared().ranks, Collective::all_reduce, forwards,
                           forwards * segments * shape.config.experts.count * 4);
}

// Predicts everything but the activations and the rows: this is the same for every routing.
inline Prediction predict_fixed(const StepShape& shape, const ExpertOptions& o,
                                const ParameterList& parameters, const Mesh& mesh,
                                const LoadBalance& balance) {
    Prediction prediction;
    add_parameters(prediction, parameters.local_numel(), shape);
    for (const TensorPart& buffer : parameters.buffers())
        prediction.memory.parameters += buffer.tensor.bytes();
    add_flops(prediction, shape, active_parameter_count(shape.config));
    add_sums(prediction, parameters, mesh, shape.grad_dtype);
    const Communicator &all = mesh.group({"dp", "ep"}), &ep = mesh.norm_group();
    prediction.communication.add_scalar_sum(ep);   // the norm
    prediction.communication.add_scalar_sum(all);  // the loss
    if (all.size() > 1) add_loads(prediction.communication, o, balance, all);
    return prediction;
}

// Adds the rows of a balanced router in a step of this many micro-batches, in a layer with experts.
inline void add_balanced_rows(PredictedCommunication& step_communication, const StepShape& shape,
                              const ExpertOptions& o, int64_t tokens, int64_t layer,
                              int64_t micro_batches) {
    if (o.ep == 1) return;
    const Group ep("ep", o.ep);
    const ExpertsConfig& e = shape.config.experts;
    const int64_t chunks = o.chunks_here(), forwards = micro_batches * forwards_of(shape, o, layer),
                  passes = forwards + micro_batches, even = even_rows(e, o, tokens);
    const auto bytes = [&](bool fp8) {
        return double(travelling_bytes(shape.config.hidden, shape.model.dtype, fp8));
    };
    // Of all transfers of a row, there and back.
    const double row = double(forwards) * (bytes(o.fp8_rows()) + bytes(false)) +
                       double(micro_batches) * (bytes(o.fp8_gradients()) + bytes(false)),
                 away = expected_rows_away(e, o, tokens);
    if (o.dispatch == Dispatch::rank)  // counts
        step_communication.add(ep, Collective::all_gather, forwards, forwards * o.ep * o.ep * 4);
    else if (o.capacity_factor == 0)
        step_communication.add(ep, Collective::all_to_all, forwards * chunks,
                               forwards * chunks * o.slots(e) * 4);
    step_communication.add(
        ep, Collective::all_to_all,
        {2 * passes * chunks, std::llround(std::min(double(even) * row, 9e18)), away * row});
    if (o.dispatch != Dispatch::rank)  // weights there, and their gradients back
        step_communication.add(ep, Collective::all_to_all,
                               {passes * chunks, passes * even * 4, double(passes) * away * 4});
}

inline Prediction predict_balanced(const StepShape& shape, const ExpertOptions& o,
                                   const ParameterList& parameters, const Mesh& mesh,
                                   const LoadBalance& balance, int64_t accumulated) {
    Prediction prediction = predict_fixed(shape, o, parameters, mesh, balance);
    const int64_t tokens = shape.micro_batch * shape.seq;
    const DispatchStatistics::ByLayer rows = balanced_rows(shape.config, o, tokens);
    prediction.memory.peak_activations =
        std::llround(std::min(peak_activations(shape, o, {{0, rows}, {1, rows}}), 9e18));
    for (const auto& [layer, layer_rows] : rows)
        add_balanced_rows(prediction.communication, shape, o, tokens, layer, accumulated);
    return prediction;
}

}  // namespace ultrascale::expert_parallel
