// The activations of layers with experts. They depend on the rows that arrived; the peak is the
// highest moment of any micro-batch.
//
// From forward to backward a layer keeps (h + 2 F) e bytes and a weight of each row at the experts.
// If the weights were applied where the tokens are, it would also keep the rows that came back, T k
// h e bytes: for moe-16b 42 % more.
#pragma once

#include "../expert_parallel.h"
#include "../kernels/ops_experts.h"
#include "dispatch_statistics.h"
#include "lab/predict/estimate.h"

namespace ultrascale::expert_parallel {

// Sums bytes that are allocated and freed, and keeps the largest sum.
class Ledger {
public:
    explicit Ledger(double held = 0) : now_(held), most_(held) {}
    void take(double bytes) { most_ = std::max(most_, now_ += bytes); }
    void free(double bytes) { now_ -= bytes; }
    void brief(double bytes) { take(bytes), free(bytes); }
    double now() const { return now_; }
    double most() const { return most_; }
    // The pass yields here, or ends.
    void end_turn() { turns_.push_back({most_, now_}), most_ = now_; }
    const TurnBytes& turns() const { return turns_; }

private:
    double now_, most_;  // in this turn
    TurnBytes turns_;
};

// A layer's experts, in bytes, for the rows that arrived: moment by moment, as experts_layer.h and
// the dispatchers allocate and free. Their norm's output, the router's input, is counted with the
// norm.
class ExpertActivations : public FeedForwardActivations {
public:
    // `tokens`: those that this rank routes.
    ExpertActivations(const StepShape& shape, const ExpertOptions& o, int64_t tokens,
                      const DispatchStatistics::Rows& rows)
        : rows_(rows),
          by_rank_(o.ep > 1 && o.dispatch == Dispatch::rank),
          travels_(o.ep > 1),
          plain_(travels_ && o.dispatch == Dispatch::plain),
          sorts_(travels_ && o.slots(shape.config.experts) > o.ep),
          has_loss_(o.has_loss()),
          shared_(shape.config.experts.shared > 0) {
        const ExpertsConfig& config = shape.config.experts;
        const double e = double(dtype_bytes(shape.model.dtype)), N = double(tokens);
        row_ = double(shape.config.hidden) * e, features_ = double(config.ffn) * e;
        sent_ = double(travelling_bytes(shape.config.hidden, shape.model.dtype, o.fp8_rows()));
        gradient_ =
            double(travelling_bytes(shape.config.hidden, shape.model.dtype, o.fp8_gradients()));
        tokens_ = N * row_;
        dy_ = tokens_ * (shape.model.dropout > 0 ? 2 : 1);
        shared_features_ = N * double(config.shared) * features_;
        scores_ = N * double(config.count) * 4, narrow_ = e < 4 ? scores_ / 4 * e : 0;
        logits_ = o.z_coefficient > 0 ? scores_ : 0;
        choice_ = N * double(config.router.top_k) * 4;
        names_ = double(config.router.top_k) * 4;
        arrived_ = double(rows.stages.back().arrived);

        const double R = double(rows.at_experts);
        kept = logits_ + scores_ + choice_ + (by_rank_ ? arrived_ * names_ : choice_) +
               R * (row_ + 2 * features_ + 4) + 2 * shared_features_;
        for_weights = tokens_ + (narrow_ > 0 ? narrow_ : scores_) + R * (2 * row_ + 3 * features_) +
                      (shared_ ? 3 * shared_features_ + tokens_ : 0);
        const auto forward_of = [&](bool keeps) {
            return turns_of(by_rank_ ? forward_by_rank(keeps)
                            : plain_ ? plain_forward(keeps)
                                     : forward_by_choice(keeps));
        };
        const auto backward_of = [&](bool split) {
            return turns_of(by_rank_ ? backward_by_rank(split) : backward_by_choice(split));
        };
        forward_turns = forward_of(true), backward_turns = backward_of(false);
        forward = most_of(forward_turns), forward_alone = most_of(forward_of(false));
        backward = most_of(backward_turns), backward_input = most_of(backward_of(true));
    }

private:
    static TurnBytes turns_of(Ledger l) { return l.end_turn(), l.turns(); }
    static double most_of(const TurnBytes& turns) {
        return std::ranges::max_element(turns, {}, &TurnHeld::most)->most;
    }

    // ---- what both ways of dispatching share ----

    // The bytes that a router keeps (in a forward that keeps nothing, its choices), and the
    // weights.
    double router(bool keeps) const { return (keeps ? logits_ + scores_ : 0) + 2 * choice_; }
    void shared_forward(Ledger& l, bool keeps) const {
        if (!shared_) return;
        l.take(3 * shared_features_);  // gate, up and a
        if (!keeps) l.free(2 * shared_features_);
        l.take(tokens_), l.free(shared_features_);
    }
    void shared_backward(Ledger& l, bool split) const {
        if (!shared_) return;
        l.take(3 * shared_features_), l.free(2 * shared_features_);  // d(gate, up), a; gate, up
        if (!split) l.free(shared_features_);
        l.take(tokens_);  // dx
        if (!split) l.free(2 * shared_features_);
    }
    // The tokens' rows, or their gradients, in fp8: what is sent in copies.
    double packed(double size) const { return size < row_ ? tokens_ / row_ * size : 0; }
    void unpack(Ledger& l, double R, double size) const {
        if (size < row_) l.take(R * row_), l.free(R * size);
    }
    void experts_forward(Ledger& l, double R, bool keeps) const {
        const double in = R * row_, a = R * features_, w = R * 4;
        l.take(2 * a);  // gate and up
        if (!keeps) l.free(in);
        l.take(a);
        if (!keeps) l.free(2 * a + w);
        l.take(in), l.free(a);  // out
    }
    void experts_backward(Ledger& l, double R, bool split) const {
        const double in = R * row_, a = R * features_, w = R * 4;
        l.take(3 * a + w), l.free(2 * a);  // d(gate, up), a, the weights' gradients; gate and up
        if (!split) l.free(a + in);        // a, and dout
        l.take(in), l.free(w);             // dx; weights
    }
    // The rest of the backward, when dx is on its way back: d(gate, up), and x.
    void gate_up_backward(Ledger& l, double R, bool split) const {
        if (!split) l.free(R * (2 * features_ + row_));
    }
    void router_backward(Ledger& l, bool split) const {
        l.take(scores_);                   // d(logits)
        if (has_loss_) l.brief(scores_);   // d(scores)
        l.take(narrow_), l.take(tokens_);  // d(logits) in the model's type; dx
        l.free(logits_ + scores_ + choice_);
        if (narrow_ > 0) l.free(scores_);
        if (!split) l.free((narrow_ > 0 ? narrow_ : scores_) + tokens_);  // and x
        if (shared_) l.free(tokens_);  // dx is added to that of the shared experts
    }

    // ---- one copy for each choice ----

    double chunk(size_t c) const { return double(rows_.chunks[c]); }
    double leave() const { return double(rows_.stages[0].left); }
    // Chunk c arrives and the next one departs; after `experts` it goes back; then follows `rest`.
    // Weights travel there, their gradients back.
    void dispatch_and_combine(Ledger& l, bool there, const std::function<void(double R)>& experts,
                              const std::function<void(double R)>& rest) const {
        const size_t n = rows_.chunks.size();
        const double sent = there ? sent_ : gradient_, home = leave() * row_, weights = leave() * 4;
        const auto in = [&](size_t c) { return chunk(c) * row_; };
        const auto w = [&](size_t c) { return chunk(c) * 4; };
        for (size_t c = 0; c < n; ++c) {
            if (travels_ && n == 1) l.free(leave() * sent);
            if (travels_ && there && c + 1 == n) l.free(weights);
            if (sorts_) l.brief(chunk(c) * sent);
            if (sorts_ && there) l.brief(w(c));
            unpack(l, chunk(c), sent);
            if (travels_ && c + 1 < n) l.take(in(c + 1) + (there ? w(c + 1) : 0));
            experts(chunk(c));
            if (travels_ && c > 0) l.free(in(c - 1) + (there ? 0 : w(c - 1)));
            if (sorts_ && !there) l.brief(w(c));
            if (travels_ && !there && c == 0) l.take(weights);
            if (sorts_) l.brief(in(c));
            if (travels_ && n == 1) l.take(home);
            rest(chunk(c));
        }
    }
    Ledger forward_by_choice(bool keeps) const {
        const double n = double(rows_.chunks.size());
        Ledger l(router(keeps) + choice_);  // and row_map
        l.take(packed(sent_) + leave() * (sent_ + 4));
        l.brief(choice_ / n);  // the order of a chunk
        l.free(packed(sent_));
        if (travels_) l.take(chunk(0) * (sent_ + 4));
        shared_forward(l, keeps);
        l.end_turn();
        dispatch_and_combine(
            l, true, [&](double R) { experts_forward(l, R, keeps); }, [](double) {});
        if (!shared_) l.take(tokens_);
        l.end_turn();
        return l;
    }
    Ledger backward_by_choice(bool split) const {
        Ledger l(kept + dy_);
        l.take(packed(gradient_) + leave() * gradient_), l.free(packed(gradient_));
        if (travels_) l.take(chunk(0) * gradient_);
        shared_backward(l, split);
        l.end_turn();
        dispatch_and_combine(
            l, false, [&](double R) { experts_backward(l, R, split); },
            [&](double R) { gate_up_backward(l, R, split); });
        l.end_turn();
        l.take(choice_);  // the weights' gradients, where the router is
        l.free(leave() * 4 + (travels_ ? chunk(rows_.chunks.size() - 1) * 4 : 0));
        router_backward(l, split);
        return l;
    }

    // The plain dispatch: rows travel first, then their weights; nothing overlaps.
    Ledger plain_forward(bool keeps) const {
        const double R = double(rows_.at_experts), home = leave() * row_;
        Ledger l(router(keeps) + choice_);  // and row_map
        l.brief(choice_);                   // the order
        for (const double size : {row_, 4.0}) {
            l.take(leave() * size), l.take(R * size), l.free(leave() * size);
            if (sorts_) l.brief(R * size);
        }
        experts_forward(l, R, keeps);
        if (sorts_) l.brief(R * row_);
        l.take(home), l.free(R * row_);
        l.take(tokens_);
        return l;
    }

    // ---- one copy for each rank ----

    // The memory in which rows arrive is not an activation if it is a permanent buffer.
    static double in_memory(const DispatchStatistics::Rows::OfStage& stage) {
        return stage.in_buffer ? 0 : 1;
    }
    // The data that came back to a stage's tokens: `size` bytes for each row, or for the numbers
    // beside it.
    static double at_home(const DispatchStatistics::Rows::OfStage& stage, double size, bool row) {
        return double(stage.left) * size * (row ? in_memory(stage) : 1);
    }

    // Rows that arrived are stored once more, for each expert, and summed where the experts are.
    Ledger forward_by_rank(bool keeps) const {
        const double R = double(rows_.at_experts);
        Ledger l(router(keeps) + packed(sent_));
        double before = packed(sent_);  // from an earlier stage
        for (const DispatchStatistics::Rows::OfStage& stage : rows_.stages) {
            const double leave = double(stage.most), came = double(stage.arrived),
                         rows = came * sent_ * in_memory(stage);
            l.take(leave * (sent_ + names_));  // rows and weights
            l.take(rows + came * names_), l.free(leave * names_ + before);
            before = rows + came * names_;
            if (&stage == &rows_.stages.back())
                l.take(arrived_ * names_), l.brief(arrived_ * names_);
            if (&stage == &rows_.stages.front()) shared_forward(l, keeps), l.end_turn();
            l.free(leave * sent_);
        }
        l.take(R * (sent_ + 4)), l.free(before);  // rows and weights
        unpack(l, R, sent_);
        experts_forward(l, R, keeps);
        start_combine(l, R * row_, row_, true);
        if (!shared_) l.take(tokens_);
        l.end_turn();
        combine_over_stages(l, row_, true);
        return l;
    }
    Ledger backward_by_rank(bool split) const {
        const double R = double(rows_.at_experts);
        Ledger l(kept + dy_ + packed(gradient_));
        double before = 0;
        for (const DispatchStatistics::Rows::OfStage& stage : rows_.stages) {
            const double rows = double(stage.arrived) * gradient_ * in_memory(stage);
            l.take(double(stage.left) * gradient_ + rows);
            if (&stage == &rows_.stages.front()) shared_backward(l, split), l.end_turn();
            l.free(double(stage.left) * gradient_ + before), before = rows;
        }
        l.take(R * gradient_), l.free(before);
        unpack(l, R, gradient_);
        experts_backward(l, R, split);
        start_combine(l, R * 4, names_, false);
        start_combine(l, R * row_, row_, true);
        gate_up_backward(l, R, split);
        l.end_turn();
        l.take(choice_);
        combine_over_stages(l, names_, false);
        router_backward(l, split);
        combine_over_stages(l, row_, true);
        return l;
    }
    // The experts' `rows` become a sum of `size` bytes for each row that arrived, which is sent
    // back.
    void start_combine(Ledger& l, double rows, double size, bool row) const {
        l.take(arrived_ * size), l.free(rows);
        l.take(at_home(rows_.stages.back(), size, row));
    }
    // The sum arrives, and passes the other stages.
    void combine_over_stages(Ledger& l, double size, bool row) const {
        for (size_t i = rows_.stages.size(); i-- > 0;) {
            if (i > 0) l.take(double(rows_.stages[i - 1].arrived) * size);
            l.free(double(rows_.stages[i].arrived) * size + at_home(rows_.stages[i], size, row));
            if (i > 0) l.take(at_home(rows_.stages[i - 1], size, row));
        }
    }

    DispatchStatistics::Rows rows_;
    bool by_rank_, travels_, plain_, sorts_, has_loss_, shared_;
    double row_, features_;   // a row's bytes: h elements, F elements
    double sent_, gradient_;  // in a dispatch, and in a backward's
    // (N, h); the same with dropout's copy; the shared experts' gate, up or a; a number for each
    // token and expert, in fp32, and in a narrower dtype; for each choice.
    double tokens_, dy_, shared_features_, scores_, narrow_, logits_, choice_;
    double arrived_, names_;  // by rank: rows that arrived; of each k numbers
};

}  // namespace ultrascale::expert_parallel
