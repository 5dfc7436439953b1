// What a rank holds and sends, by formula. In a step with A micro-batches and L layers, with kv the
// bytes of a rank's keys and values and dkv those of their gradients in fp32 (2 kv if the
// activations have 16 bits), each layer sends
//
//                              forward            backward
//     plain; ring, restarted   (n-1) kv           (n-1) kv + n dkv
//     ring, reversed           (n-1) kv           (n-1) kv + (n-1) dkv
//     ring, own keys kept      (n-1) kv           (n-2) kv + (n-1) dkv
//     bidirectional, rank r   (2n-1-r)/2 kv, and (n-1)/2 kv for rank 0; see add_bidirectional()
//     all-gather               (n-1) kv           (n-1) kv + (n-1) dkv
//     Ulysses                  (u-1)/u (q, k, v, o); the same for their gradients
//
// and everything else sends nothing. If a layer's forward runs again (full recomputation), its
// sends count twice. With a window or documents fewer KV chunks travel. A window's are the same in
// all batches, and counted from the ring's plan; document_counts.h adds up what a run's need.
#pragma once

#include "../9_context_parallel.h"
#include "lab/predict/budget.h"
#include "lab/predict/estimate.h"
#include "lab/report/report.h"
#include "ring_memory.h"
#include "ring_traffic.h"

namespace ultrascale::context_parallel {

// Rounds bytes, which are added up as doubles: these are exact up to 2^53 (9 PB) and do not
// overflow for a sequence of 10^12 tokens.
inline int64_t whole_bytes(double bytes) { return std::llround(std::min(bytes, 9e18)); }

// The name of the ring's group.
inline std::string ring_group(const ContextOptions& o) {
    return o.variant == Variant::usp ? "ring" : "cp";
}

// The bytes of a rank's tensors in one layer's attention.
struct AttentionBytes {
    double q, kv, sums;  // q or o; k and v, as the ring or attention has them; their fp32 gradients
    double own_kv;       // k and v of the rank's own tokens: less, if Ulysses copies key heads
    double lse;          // the log-sum-exp
    AttentionBytes(const StepShape& shape, const ContextOptions& o) {
        const LlamaConfig& c = shape.config;
        const double e = double(dtype_bytes(shape.model.dtype)),
                     tokens = double(shape.micro_batch) * double(shape.seq) / o.cp;
        q = tokens * double(c.q_size()) * e, own_kv = 2 * tokens * double(c.kv_size()) * e;
        lse = tokens * double(c.heads) * 4;
        kv =
            own_kv * double(std::max<int64_t>(c.kv_heads, o.ulysses_degree())) / double(c.kv_heads);
        sums = kv * 4 / e;
    }
};

// How often layers run: forward again in the backward of a layer that recomputes.
struct LayerPasses {
    int64_t forward, backward;
};
inline LayerPasses layer_passes(const Recompute& recompute, int64_t layers) {
    return {recompute.forwards(layers), layers};
}

// Returns what a rank sends round the ring for a micro-batch, in so many passes through layers.
inline PredictedCommunication::Kind ring_of_layers(const StepShape& shape, const ContextOptions& o,
                                                   const RingPlan& plan, int rank,
                                                   const LayerPasses& passes) {
    const AttentionBytes bytes(shape, o);
    const int64_t tokens = shape.seq / o.ring_degree();  // of a rank
    PredictedCommunication::Kind ring;
    const auto add = [&](const RingTraffic& pass, int64_t times, double all_tokens_bytes) {
        ring.calls += times * pass.calls;
        const int64_t sent = times * int64_t(all_tokens_bytes) / tokens * pass.tokens;
        ring.bytes += sent, ring.sent += double(sent);
    };
    add(traffic_of_keys(plan, rank), passes.forward + passes.backward, bytes.kv);
    add(traffic_of_gradients(plan, rank), passes.backward, bytes.sums);
    return ring;
}

// What attention holds beyond what attention on one device would: activations, and communication
// buffers, of which backward needs at least as many as forward.
struct AttentionMemory {
    double kept = 0, forward = 0, backward = 0, communication_forward = 0, communication = 0;
};
inline AttentionMemory attention_memory(const StepShape& shape, const ContextOptions& o,
                                        const RingPlan& plan, int rank) {
    AttentionMemory m;
    if (o.cp == 1) return m;
    const AttentionBytes bytes(shape, o);
    const bool half = shape.model.dtype != DType::fp32;
    const double n = o.cp, dq = half ? 2 * bytes.q : bytes.q;  // dq: its sum in fp32
    if (o.variant == Variant::all_gather) {
        const bool in_order = shape.micro_batch == 1 && o.layout == Layout::contiguous;
        // Keys, values and, in backward, their gradients are whole; each is put in order after it
        // was gathered, and before it is scattered.
        m.communication_forward = n * bytes.kv * (in_order ? 1 : 1.5);
        m.communication = n * (bytes.kv + bytes.sums * (in_order ? 1 : 1.5));
        // The peak is while attention computes, or when only dq, dk and dv are left, put together.
        m.backward = std::max((half ? bytes.sums / 2 : 0) - bytes.kv, -bytes.q - 2 * bytes.lse);
        return m;
    }
    if (o.variant == Variant::plain) {
        // Keys that are held and those that arrive, and sums that leave and those that arrive; with
        // two ranks one of each pair is the rank's own.
        m.communication = (n > 2 ? 2 : 1) * (bytes.kv + bytes.sums);
        m.forward = half ? 2 * bytes.q : 0;  // the output's sum in fp32
        // Until hop 0 is over, the rank's own keys exist, with the gradients' part and sums. At the
        // end the part and the sums still exist, while dq, dk and dv are rounded.
        m.backward = dq - bytes.q - 2 * bytes.kv + 2 * bytes.sums +
                     std::max(bytes.kv, half ? bytes.q + bytes.kv : 0);
        return m;
    }
    if (o.ring_degree() > 1) {
        const bool reversed = o.backward != RingBackward::restarted && plan.can_reverse(),
                   kept = reversed && o.backward == RingBackward::kept;
        const bool again = shape.model.recompute.full_layers > 0;
        const RingMemory ring =
            ring_memory(plan, reversed, kept, again, rank, bytes.kv, bytes.sums);
        const DType sum = sum_dtype(o, plan, shape.model.dtype);
        const double merged = bytes.q / double(dtype_bytes(shape.model.dtype)) *
                              double(dtype_bytes(sum));  // the sum of partial outputs
        m.kept = kept ? bytes.kv : 0;
        m.forward = (sum == shape.model.dtype ? 0 : merged) + (reversed && !kept ? bytes.kv : 0);
        // dq is summed in fp32. It is rounded in the reversed ring's last hop; otherwise at the
        // end, when the last sums have come home.
        m.backward = dq - bytes.q - bytes.kv + m.kept +
                     std::max(ring.sums, (reversed ? ring.last : ring.home) + (half ? bytes.q : 0));
        m.communication_forward = ring.communication_forward;
        m.communication = ring.communication;
    }
    if (o.ulysses_degree() > 1) {
        const bool in_order = shape.micro_batch * (o.layout == Layout::zigzag ? 2 : 1) == 1;
        const double copies = bytes.kv - bytes.own_kv, all = in_order ? 1 : 2;
        m.kept += bytes.q + copies;  // o with all tokens and, for the next linear, with all heads
        m.forward += bytes.q + bytes.own_kv;
        m.backward += bytes.q + 2 * copies;
        const double sums = copies > 0 ? bytes.own_kv / 2 * (1 + (half ? 2 : 1)) : 0;
        m.communication_forward = std::max(m.communication_forward, all * bytes.q);
        m.communication = std::max({m.communication, all * bytes.q, all * bytes.kv / 2 + sums});
    }
    return m;
}

// The ring's plan for every batch, without documents.
inline RingPlan plan_without_documents(const StepShape& shape, const ContextOptions& o) {
    return {SequenceCut(o.layout, o.ring_degree(), shape.seq, mask_of(shape.config)),
            o.bidirectional, nullptr};
}

// Adds what the ring's KV chunks send in these passes, if they go round in both directions.
inline void add_bidirectional(PredictedCommunication& p, const Group& ring, int rank,
                              const LayerPasses& passes, const AttentionBytes& bytes) {
    const int64_t n = ring.ranks, keys = passes.forward + passes.backward, sums = passes.backward;
    const double kv = bytes.kv / 2, sum = bytes.sums / 2;
    // A head goes through all ranks. The tails of ranks r .. n-1 pass through rank r on their way
    // to rank 0, which sends their gradients home.
    const int64_t bidirectional = rank > 0 ? n - rank : 0, gradients = rank > 0 ? n - rank : n - 1;
    p.add(ring, Collective::send_recv, keys * (n - 1),
          whole_bytes(double(keys * (n - 1 + bidirectional)) * kv));
    p.add(ring, Collective::send_recv, sums * n, whole_bytes(double(sums * (n + gradients)) * sum));
}

// Adds what the ranks of a context-parallel group send in a step with A micro-batches; `rank` is
// the place in the ring.
inline void add_attention(Prediction& prediction, const StepShape& shape, const ContextOptions& o,
                          int64_t A, int rank) {
    if (o.cp == 1) return;
    const AttentionBytes bytes(shape, o);
    const LayerPasses of_one = layer_passes(shape.model.recompute, shape.config.layers),
                      passes = {A * of_one.forward, A * of_one.backward};
    const int64_t all = passes.forward + passes.backward;
    PredictedCommunication& step = prediction.communication;
    const auto add = [&](const Group& group, Collective kind, int64_t calls,
                         double bytes_per_call) {
        step.add(group, kind, calls, whole_bytes(double(calls) * bytes_per_call));
    };
    if (o.variant == Variant::all_gather) {
        const Group cp("cp", o.cp);
        add(cp, Collective::all_gather, 2 * all, o.cp * bytes.kv / 2);
        add(cp, Collective::reduce_scatter, 2 * passes.backward, o.cp * bytes.sums / 2);
    }
    if (const int64_t n = o.ring_degree(); n > 1 && o.has_ring()) {
        const Group ring(ring_group(o), n);
        if (shape.config.window > 0) {
            step.groups[ring.name][size_t(Collective::send_recv)] +=
                ring_of_layers(shape, o, plan_without_documents(shape, o), rank, passes);
        } else if (o.bidirectional) {
            add_bidirectional(step, ring, rank, passes, bytes);
        } else {
            const int64_t backward = o.backward == RingBackward::kept ? n - 2 : n - 1;
            add(ring, Collective::send_recv, passes.forward * (n - 1) + passes.backward * backward,
                bytes.kv);
            add(ring, Collective::send_recv,
                passes.backward * (o.backward == RingBackward::restarted ? n : n - 1), bytes.sums);
        }
    }
    if (const int64_t u = o.ulysses_degree(); u > 1) {
        const Group inside("ulysses", u);
        add(inside, Collective::all_to_all, 2 * all, bytes.q);       // q, o
        add(inside, Collective::all_to_all, 2 * all, bytes.kv / 2);  // k, v
    }
}

// The sizes with which a rank computes, without what attention holds besides.
inline LocalSizes local_sizes(const StepShape& shape, const ContextOptions& o) {
    LocalSizes sizes = local_sizes(shape);
    sizes.stream_tokens /= o.cp, sizes.region_tokens /= o.cp;
    return sizes;
}

// Predicts what place `rank` of the ring holds, with so many parameters, whole on every rank.
inline Prediction predict_memory(const StepShape& shape, const ContextOptions& o,
                                 int64_t parameters, int rank) {
    Prediction prediction;
    add_parameters(prediction, parameters, shape);
    const AttentionMemory besides =
        attention_memory(shape, o, plan_without_documents(shape, o), rank);
    LocalSizes sizes = local_sizes(shape, o);
    sizes.attention_besides = {besides.kept, besides.forward, besides.backward};
    add_activations(prediction, sizes);
    prediction.memory.peak_communication += whole_bytes(besides.communication);
    return prediction;
}

// What this rank holds if other layers of a shape recompute.
inline auto memory_by_shape(const ContextOptions& o) {
    const int place = Communicator::world().rank() % o.cp / o.ulysses_degree();
    return [=](const StepShape& shape) {
        return predict_memory(shape, o, parameter_count(shape.config), place).memory;
    };
}

// Predicts a step for place `rank` of the ring. `summed_over` sum gradients and loss.
inline Prediction predict(const StepShape& shape, const ContextOptions& o,
                          const ParameterList& parameters, int64_t A, const Group& summed_over,
                          int rank) {
    Prediction prediction = predict_memory(shape, o, parameters.local_numel(), rank);
    add_flops(prediction, shape, parameter_count(shape.config));
    add_attention(prediction, shape, o, A, rank);
    add_gradient_sums(prediction, parameters, summed_over, shape.grad_dtype);
    prediction.communication.add_scalar_sum(summed_over);  // the loss
    return prediction;
}

}  // namespace ultrascale::context_parallel
