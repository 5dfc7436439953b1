// This file adds to 1_ring.h what a ring needs in practice: any layout, two directions, documents,
// and a backward that saves the hop home. On 4 ranks a step sends 9 or 8 MiB, the plain ring 10
// (fp32; in 16 bits gradients weigh more). For 65,536 tokens two H100s are 1.95 times as fast as
// one.
//
//     at hop      0            1            2            3
//     rank 1   q1 x k1      q1 x k0      q1 x k3      q1 x k2        attend, merge
//     ring        k1 -> 2      k0 -> 2      k3 -> 2                  under way meanwhile
//
// In backward keys and values, kv bytes, travel again, and with each the fp32 sums of their
// gradients, dkv bytes. There are three ways (--ring-backward), here with the ranks where k1 is:
//
//     restarted  1 -> 2 -> 3 -> 0, then dk1 alone -> 1     sends (n-1) kv and n dkv
//                Keys start at their owners, as in forward and in the plain ring. After the last
//                block the gradient has one hop more to go, home.
//     reversed   0 -> 3 -> 2 -> 1                          sends (n-1) kv and (n-1) dkv
//                Forward keeps, instead of the rank's own keys, those that it held last, the next
//                rank's. Backward starts with them and sends everything the other way. A rank's own
//                keys come back last, and their gradient with them, so that no send is left over.
//                All own queries see own keys, so this last hop also finishes dq.
//     kept       0 -> 3 -> 2, then dk1 alone -> 1          sends (n-2) kv and (n-1) dkv
//                The same, but each rank also keeps its own keys, which need not come back: it
//                holds kv more.
//
// Nothing else in a layer communicates.
#pragma once

#include "5_partial_sums.h"
#include "comm/comm.h"

namespace ultrascale::context_parallel {

// The plan of a batch, and the document starts of this rank's tokens (B, T), if there are
// documents.
struct PlanOfBatch {
    RingPlan plan;
    Tensor document_starts;
};

class RingAttention : public AttentionCore {
public:
    // `plan_of` gives the plan of a batch.
    using Plans = std::function<const PlanOfBatch&(const Batch&)>;
    RingAttention(const Communicator& ring, Stream& stream, const ContextOptions& options,
                  Plans plan_of, RowOrders orders)
        : ring_(ring),
          stream_(stream),
          options_(options),
          rank_(ring.rank()),
          plan_of_(std::move(plan_of)),
          orders_(std::move(orders)) {}

    Tensor forward(const Tensor& q, const Tensor& k, const Tensor& v, Saved& saved,
                   Context& context) override {
        const auto& [plan, starts] = plan_of_(context.batch);
        const bool keep_last = reverses(plan) && saved.enabled();
        PartialAttention sum(q, sum_dtype(options_, plan, q.dtype()));
        KvChunks held = kv_chunks_of(plan, k, v);
        for (int hop = 0; hop <= plan.last_hop(); ++hop) {
            // What comes for the last hop is kept, if backward begins with it.
            const Memory category = keep_last && hop + 1 == plan.last_hop() ? Memory::activation
                                                                            : Memory::communication;
            Work under_way;
            KvChunks next = pass_on(plan, held, hop, k, under_way, category);  // to the next rank
            attend(sum, plan, held, hop, starts);                              // meanwhile
            under_way.wait();
            if (hop < plan.last_hop()) held = std::move(next);
        }
        Tensor o = sum.output();
        saved.keep("q", q), saved.keep("o", o), saved.keep("lse", sum.lse());
        saved.keep("k", keep_last ? held[0].all_k() : k);
        saved.keep("v", keep_last ? held[0].all_v() : v);
        if (keep_last && keeps_own()) saved.keep("own k", k), saved.keep("own v", v);
        return o;
    }

    Gradients backward(const Tensor& dout, Saved& saved, Context& context) override {
        // exercise 04.7 begin: keys travel again, and with each the sum of its gradients
        const auto& [forward_plan, starts] = plan_of_(context.batch);
        const bool own_last = reverses(forward_plan);
        const RingPlan plan = own_last ? forward_plan.reversed() : forward_plan;
        PartialGradients partial(saved.take("q"), saved.take("o"), dout, saved.take("lse"),
                                 saved.get("k").size(2), orders_);
        Gradients gradients{.dk = activation_like(saved.get("k")),
                            .dv = activation_like(saved.get("v"))};
        KvChunks held = kv_chunks_of(plan, saved.take("k"), saved.take("v"));
        KvChunks own;
        if (own_last && keeps_own())
            own = kv_chunks_of(plan, saved.take("own k"), saved.take("own v"));

        KvChunks arrived(
            plan.kv_chunks());            // the sums of the ranks that held these KV chunks before
        KvChunks home(plan.kv_chunks());  // this rank's own KV chunks' finished sums
        Work sums_under_way;
        for (int hop = 0; hop <= plan.last_hop(); ++hop) {
            Work under_way;
            // Kept: the keys of the last hop are this rank's own, so nobody needs to send them.
            KvChunks next =
                !own.empty() && hop + 1 == plan.last_hop()
                    ? std::move(own)
                    : pass_on(plan, held, hop, gradients.dk, under_way, Memory::communication);
            const bool finishes = own_last && hop == plan.last_hop();
            if (finishes) partial.next_block_finishes();
            KvChunks sums = gradients_of(partial, plan, held, hop, gradients.dk, starts);
            sums_under_way.wait();
            if (finishes) {
                sums[0].finish(gradients.dk, gradients.dv, arrived[0]);
                gradients.dq = partial.dq();
                return gradients;
            }
            for (size_t p = 0; p < plan.kv_chunks(); ++p)
                if (arrived[p]) sums[p].add(arrived[p]), arrived[p] = {};
            pass_on_sums(plan, sums, hop, gradients.dk, sums_under_way, arrived, home);
            under_way.wait();
            held = std::move(next);
        }
        sums_under_way.wait();
        for (size_t p = 0; p < plan.kv_chunks(); ++p)
            for (int64_t b = 0; b < dout.size(0); ++b) {
                ops::copy(tokens_of(gradients.dk, b, plan.keys(p)), home[p].k[size_t(b)]);
                ops::copy(tokens_of(gradients.dv, b, plan.keys(p)), home[p].v[size_t(b)]);
            }
        gradients.dq = partial.dq();
        return gradients;
        // exercise 04.7 end
    }

private:
    using KvChunks = std::vector<KeysValues>;  // what this rank holds of each KV chunk of a plan

    // Attends to all that this rank holds at a hop: in the plain ring to one KV chunk, all keys of
    // its owner; bidirectional or with documents (4_ring_plan.h) to several, or to none.
    void attend(PartialAttention& sum, const RingPlan& plan, const KvChunks& held, int hop,
                const Tensor& starts) const {
        for (size_t p = 0; p < plan.kv_chunks(); ++p) {
            const int owner = plan.owner(p, rank_, hop);
            if (owner == RingPlan::none) continue;
            for (size_t b = 0; b < held[p].k.size(); ++b)
                for (const Block& block : plan.blocks(p, rank_, owner, int64_t(b))) {
                    const Range keys = plan.in_kv_chunk(p, block.keys);
                    sum.add(int64_t(b), block, tokens_of(held[p].k[b], 0, keys),
                            tokens_of(held[p].v[b], 0, keys), starts);
                }
        }
    }
    // The same for backward: adds to dQ, and returns what this rank adds to dK and dV of each
    // KV chunk, in fp32; `like` is k.
    KvChunks gradients_of(PartialGradients& partial, const RingPlan& plan, const KvChunks& held,
                          int hop, const Tensor& like, const Tensor& starts) const {
        KvChunks sums(plan.kv_chunks());
        for (size_t p = 0; p < plan.kv_chunks(); ++p) {
            const int owner = plan.owner(p, rank_, hop);
            if (owner == RingPlan::none) continue;
            sums[p] = KeysValues::empty(like, plan.tokens(p), DType::fp32, Memory::activation);
            for (int64_t b = 0; b < like.size(0); ++b)
                partial.add(plan, p, plan.blocks(p, rank_, owner, b), b, held[p], sums[p], starts);
        }
        return sums;
    }
    // Received tensors, in memory to which other GPUs can copy, if all ranks' calls are alike.
    KeysValues received(const RingPlan& plan, size_t p, const Tensor& like, DType dtype,
                        Memory category) const {
        return KeysValues::empty(like, plan.tokens(p), dtype, category,
                                 plan.is_uniform() ? ring_.symmetric_memory() : nullptr);
    }
    bool reverses(const RingPlan& plan) const {
        return options_.backward != RingBackward::restarted && plan.can_reverse();
    }
    bool keeps_own() const { return options_.backward == RingBackward::kept; }
    static KvChunks kv_chunks_of(const RingPlan& plan, const Tensor& k, const Tensor& v) {
        KvChunks held;
        for (size_t p = 0; p < plan.kv_chunks(); ++p)
            held.push_back(KeysValues::tokens_of(k, v, plan.keys(p)));
        return held;
    }
    // Sends the KV chunks that travel on, and returns those that come; `like` is k.
    KvChunks pass_on(const RingPlan& plan, const KvChunks& held, int hop, const Tensor& like,
                     Work& under_way, Memory category) const {
        KvChunks next(plan.kv_chunks());
        std::vector<Transfer> transfers;
        for (size_t p = 0; p < plan.kv_chunks(); ++p) {
            if (plan.goes_on(p, rank_, hop)) held[p].send(transfers, plan.to(p, rank_));
            if (plan.owner(p, rank_, hop + 1) == RingPlan::none) continue;
            next[p] = received(plan, p, like, like.dtype(), category);
            next[p].receive(transfers, plan.from(p, rank_));
        }
        if (!transfers.empty()) under_way = ring_.send_recv(std::move(transfers), stream_);
        return next;
    }
    // Sends each sum after its KV chunk, or home if that has ended; `arrived` and `home` receive.
    void pass_on_sums(const RingPlan& plan, const KvChunks& sums, int hop, const Tensor& like,
                      Work& under_way, KvChunks& arrived, KvChunks& home) const {
        std::vector<Transfer> transfers;
        for (size_t p = 0; p < plan.kv_chunks(); ++p) {
            const auto receive = [&](KvChunks& into, int from, Memory category) {
                into[p] = received(plan, p, like, DType::fp32, category);
                into[p].receive(transfers, from);
            };
            const int owner = plan.owner(p, rank_, hop);
            if (plan.goes_on(p, rank_, hop))
                sums[p].send(transfers, plan.to(p, rank_));
            else if (owner == rank_)
                home[p] = sums[p];
            else if (owner != RingPlan::none)
                sums[p].send(transfers, owner);
            if (plan.owner(p, rank_, hop + 1) != RingPlan::none)
                receive(arrived, plan.from(p, rank_), Memory::communication);
            if (plan.hops(p, rank_) == hop && plan.end(p, rank_) != rank_)
                receive(home, plan.end(p, rank_), Memory::activation);
        }
        if (!transfers.empty()) under_way = ring_.send_recv(std::move(transfers), stream_);
    }

    const Communicator& ring_;
    Stream& stream_;
    ContextOptions options_;
    int rank_;
    Plans plan_of_;
    RowOrders orders_;
};

}  // namespace ultrascale::context_parallel
