// The activations of layers with experts. They follow the rows that came: the peak is the highest
// moment of any micro-batch.
//
// From forward to backward a layer keeps of each row at the experts (h + 2 F) e bytes and a weight.
// If the weights were applied where the tokens are, it would keep what came back as well, T k h e
// bytes: for moe-16b 42 % more.
#pragma once

#include "expert_parallel.h"
#include "report/estimate.h"

namespace ultrascale {

// Bytes that are allocated and freed, and the most there were at once.
class Ledger {
public:
    explicit Ledger(double held = 0) : now_(held), most_(held) {}
    void take(double bytes) { most_ = std::max(most_, now_ += bytes); }
    void free(double bytes) { now_ -= bytes; }
    void brief(double bytes) { take(bytes), free(bytes); }
    double now() const { return now_; }
    double most() const { return most_; }

private:
    double now_, most_;
};

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
        const double scores = N * double(config.count) * 4,
                     choice = N * double(config.router.top_k) * 4;
        const Bytes b{.tokens = N * h,  // x, y, dy, dx
                      .shared = N * double(config.shared) * F,
                      .in = double(rows.at_experts) * h,
                      .a = double(rows.at_experts) * F,
                      .row = h,
                      .scores = scores,
                      .choice = choice,
                      .logits = o.z_coefficient > 0 ? scores : 0};
        if (o.ep > 1 && o.dispatch == Dispatch::rank)
            by_rank(shape, o, rows, b);
        else
            by_choice(shape, o, rows, b);
    }

private:
    struct Bytes {
        // shared: the shared experts' gate, up or a; in, a: rows at the experts, and the same with
        // F columns; choice: a number for each choice
        double tokens, shared, in, a, row, scores, choice, logits;
        double of_router() const { return logits + scores + choice; }  // what it keeps
    };
    void by_choice(const StepShape& shape, const ExpertOptions& o, const Traffic::Rows& rows,
                   const Bytes& b) {
        const bool travels = o.ep > 1, sorts = travels && shape.config.experts.count > o.ep,
                   has_shared = b.shared > 0;
        const double home = double(rows.hops[0].left) * b.row;  // rows where their tokens are
        const size_t n = rows.chunks.size();
        const auto in = [&](size_t c) { return double(rows.chunks[c]) * b.row; };
        const auto a = [&](size_t c) { return in(c)*b.a / std::max(b.in, 1.0); };
        const auto w = [&](size_t c) { return double(rows.chunks[c]) * 4; };
        const double weights = double(rows.hops[0].left) * 4;
        // Chunk c arrives and the next one departs, and it goes back after `experts`, which leaves
        // `in` behind: rows for the way back. Weights travel there, their gradients back.
        const auto journey = [&](Ledger& ledger, bool there,
                                 const std::function<void(size_t)>& experts) {
            const auto both = [&](size_t c, bool with_weights) {
                return in(c) + (with_weights ? w(c) : 0);
            };
            for (size_t c = 0; c < n; ++c) {
                if (travels && n == 1) ledger.free(home);
                if (travels && there && c + 1 == n) ledger.free(weights);
                if (sorts) ledger.brief(in(c));
                if (sorts && there) ledger.brief(w(c));
                if (travels && c + 1 < n) ledger.take(both(c + 1, there));
                experts(c);
                if (travels && c > 0) ledger.free(both(c - 1, !there));
                if (sorts && !there) ledger.brief(w(c));
                if (travels && !there && c == 0) ledger.take(weights);
                if (sorts) ledger.brief(in(c));
                if (travels && n == 1) ledger.take(home);
            }
        };

        Ledger f(b.of_router() + 2 * b.choice);  // and the weights; the places
        f.take(home + weights);
        f.brief(b.choice / double(n));  // the order of a chunk
        if (travels) f.take(in(0) + w(0));
        f.take(3 * b.shared + (has_shared ? b.tokens : 0));
        f.free(b.shared);
        journey(f, true, [&](size_t c) {
            f.take(3 * a(c) + in(c));  // gate, up and a; out. It keeps its rows.
            f.free(a(c));
        });
        if (!has_shared) f.take(b.tokens);
        if (travels) f.free(in(n - 1));
        forward = f.most();
        kept = f.now() - b.tokens - home - b.choice;

        const double dlogits = b.scores * (o.has_loss() ? 2 : 1) +
                               (shape.model.dtype != DType::fp32 ? b.scores / 2 : 0),
                     dx = has_shared ? b.tokens : 0;
        Ledger g(kept + b.tokens * (shape.model.dropout > 0 ? 2 : 1));
        g.take(home);
        if (travels) g.take(in(0));
        g.brief(std::max(3 * b.shared, dx));
        g.free(2 * b.shared), g.take(dx);
        journey(g, false, [&](size_t c) {
            g.take(3 * a(c) + w(c));  // dout has come; da, d(gate, up), those of weights
            g.free(3 * a(c) + in(c));
            g.brief(in(c));  // dx of the rows
            g.free(2 * a(c) + w(c));
        });
        g.take(b.choice);  // the weights' gradients, where the router is
        g.free(weights + (travels ? w(n - 1) : 0));
        g.take(dlogits + b.tokens);  // the router's dx; then its x is not needed any more
        g.free(dlogits + b.logits + b.scores + b.choice + b.tokens + dx);
        backward = g.most();
    }
    // The same with --dispatch rank: what arrived is gathered once more, for each expert, and
    // summed where the experts are.
    void by_rank(const StepShape& shape, const ExpertOptions& o, const Traffic::Rows& rows,
                 const Bytes& b) {
        const bool has_shared = shape.config.experts.shared > 0;
        const double k = double(shape.config.experts.router.top_k) * 4,
                     arrived = double(rows.hops.back().arrived), M = arrived * b.row,
                     of_router = b.of_router(), y = has_shared ? b.tokens : 0;
        const double weights = b.in / b.row * 4;
        kept = of_router + arrived * k + weights + b.in + 2 * b.a + 2 * b.shared;
        const double dy = b.tokens * (shape.model.dropout > 0 ? 2 : 1), begin = kept + dy,
                     dx = has_shared ? b.tokens : 0, inside = begin - 2 * b.shared + dx,
                     after = inside - b.in - 2 * b.a - weights,
                     dlogits = b.scores * (o.has_loss() ? 2 : 1) +
                               (shape.model.dtype != DType::fp32 ? b.scores / 2 : 0),
                     routed = after - b.logits - b.scores - b.choice - y;
        forward =
            std::max(of_router + b.choice + 3 * arrived * k + M + weights + b.in + 2 * b.shared + y,
                     kept + b.choice + b.in + b.a + y);
        backward = std::max({inside + b.in + M, inside + b.in + 3 * b.a + weights,
                             after + b.in + dlogits + b.choice + b.tokens, routed + b.in + M});
        double before = 0;  // rows that an earlier hop brought
        for (const Traffic::Rows::OfHop& hop : rows.hops) {
            const double left = double(hop.left) * b.row, came = double(hop.arrived) * b.row,
                         all = before + left + came;
            forward = std::max(
                {forward,
                 of_router + b.choice + double(hop.left + hop.arrived) * k + all + 3 * b.shared + y,
                 kept + b.choice + b.tokens + all});
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

}  // namespace ultrascale
