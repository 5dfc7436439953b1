// The plain dispatch (1_plain_dispatch.h) as a dispatcher. It adds chunks of tokens and a stream of
// communication, so that rows may travel while experts compute, and lets a dispatch with a capacity
// derive from it. On two H200s a rank trains 93,722 tokens/s instead of 89,819 with it (--overlap
// chunks).
//
// Each token's row travels to the ranks of its experts; their outputs travel back and are summed.
// One copy of the row travels for each choice (--dispatch expert):
//
//     rank 0                                rank 1
//     x: N rows                             x: N rows
//     sort: a row for each choice           ...
//     | to 0 | to 1 | ---- all-to-all ----- | to 0 | to 1 |       uneven: counts go first
//     | of 0 | of 1 |  sort by expert       | of 0 | of 1 |
//       experts 0, 1                          experts 2, 3
//     | of 0 | of 1 | ---- all-to-all ----- | of 0 | of 1 |       the same rows, back
//     y: each token gathers its k rows and adds them in order
//
// The two are conjugate: the backward of a dispatch is a combine of gradients, and the backward of
// a combine is a dispatch. So a layer has four all-to-alls of rows, of T k h elements each, of
// which (n-1)/n leave the rank. (A row's weight travels with it, and its gradient back: one number
// a row.) GShard, Lepikhin et al. 2020.
//
// An expert's rows are ordered by rank and, within a rank, by token. This is the order of all
// tokens in the step's batch, whatever the number of ranks. With sums in a fixed order it gives the
// same bits everywhere. The host has to wait for the counts once a forward, to know how much memory
// the rows need. 7_capacity.h avoids this.
#pragma once

#include "kernels/ops_experts.h"
#include "token_dispatcher.h"

namespace ultrascale::expert_parallel {

// One row for each choice: the code that dispatches with and without a capacity (7_capacity.h)
// share.
class ChoiceDispatcher : public TokenDispatcher {
public:
    // `ep`: the ranks that share E experts, each of which holds E / ep neighbouring experts.
    // `stream`: the stream of communication; with compute_stream() nothing overlaps.
    ChoiceDispatcher(const Communicator& ep, int64_t experts, int64_t chunks, Stream& stream)
        : ep_(ep), experts_(experts), stream_(stream), chunks_(static_cast<size_t>(chunks)) {}

    int64_t chunks() const override { return int64_t(chunks_.size()); }
    void start_dispatch(int64_t c) override {
        if (ep_.size() == 1) return;
        Chunk& chunk = at(c);
        chunk.work = there(chunk.in.rows, rows_, chunk);
        if (weights_) chunk.weights_work = there(chunk.in.weights, weights_, chunk);
    }
    ExpertRows finish_dispatch(int64_t c) override {
        Chunk& chunk = at(c);
        if (ep_.size() == 1)
            return {std::exchange(rows_, {}), chunk.counts, std::exchange(weights_, {})};
        chunk.work.wait(), chunk.weights_work.wait();
        if (chunks() == 1) rows_ = {};  // otherwise each slice receives the rows that come back
        if (c + 1 == chunks()) weights_ = {};
        ExpertRows in{.counts = chunk.counts};
        in.rows = chunk.by_expert->in_order(std::exchange(chunk.in.rows, {}));
        if (chunk.in.weights)
            in.weights = chunk.by_expert->in_order(std::exchange(chunk.in.weights, {}));
        return in;
    }
    void start_combine(int64_t c, ExpertRows rows) override {
        if (ep_.size() == 1) {
            rows_ = std::move(rows.rows), dweights_ = std::move(rows.weights);
            return;
        }
        if (c > 0) at(c - 1).work.wait(), at(c - 1).weights_work.wait();
        Chunk& chunk = at(c);
        if (rows.weights) chunk.weights_work = back(dweights_, std::move(rows.weights), chunk);
        chunk.work = back(rows_, std::move(rows.rows), chunk);
    }
    void finish_combine(Tensor y, const Tensor& residual) override {
        chunks_.back().work.wait();
        for (const Chunk& chunk : chunks_)
            ops::sum_rows(of(y, chunk), of(rows_, chunk.rows), of(row_map_, chunk),
                          residual ? of(residual, chunk) : Tensor());
        rows_ = {};
    }
    void begin_backward(const Tensor& dy) override {
        rows_ = new_rows(dy.cols(), dy.dtype());
        for (const Chunk& chunk : chunks_)
            ops::scatter_rows(of(rows_, chunk.rows), of(dy, chunk), of(row_map_, chunk));
    }
    void end_backward_of_weights(Tensor dweights) override {
        chunks_.back().weights_work.wait();
        for (const Chunk& chunk : chunks_)
            ops::sum_rows(column(of(dweights, chunk)), of(dweights_, chunk.rows),
                          column(of(row_map_, chunk)));
        dweights_ = {};
    }
    void end_backward(Tensor dx) override {
        chunks_.back().work.wait();
        for (const Chunk& chunk : chunks_)
            ops::sum_rows(of(dx, chunk), of(rows_, chunk.rows), of(row_map_, chunk), of(dx, chunk));
    }
    Dispatched dispatched(int64_t layer, bool backward_follows, Tensor experts) const override {
        Dispatched d{
            layer, backward_follows, std::move(experts), may_drop() ? row_map_ : Tensor(), 0, {}};
        for (const Chunk& chunk : chunks_) {
            const std::vector<int64_t> own = {chunk.rows.size()};
            d.exchanges.push_back(
                {&ep_, ep_.size() > 1 ? chunk.split_sizes : SplitSizes{own, own}});
            d.at_experts += d.exchanges.back().sizes.received();
        }
        return d;
    }

protected:
    struct Chunk {
        Range tokens, rows;                             // of x, and of the rows here
        SplitSizes split_sizes;                         // with ep > 1
        Tensor counts;                                  // (G) int32
        std::shared_ptr<const RowsByExpert> by_expert;  // with ep > 1
        ExpertRows in;                                  // on its way
        Work work, weights_work;
    };
    // Cuts N tokens into chunks; each chunk gets as many rows as `rows_of` says.
    void cut(int64_t N, const std::function<int64_t(int64_t tokens)>& rows_of) {
        const int64_t n = std::min(chunks(), N);
        chunks_.clear(), chunks_.resize(size_t(n));
        int64_t row = 0;
        for (int64_t c = 0; c < n; ++c) {
            Chunk& chunk = at(c);
            chunk.tokens = {c * N / n, (c + 1) * N / n};
            chunk.rows = {row, row + rows_of(chunk.tokens.size())};
            row = chunk.rows.end;
        }
    }
    Chunk& at(int64_t c) { return chunks_[size_t(c)]; }
    static Tensor of(const Tensor& t, const Range& range) {
        return t.slice(range.begin, range.end);
    }
    static Tensor of(const Tensor& t, const Chunk& chunk) { return of(t, chunk.tokens); }
    // Writes a chunk's rows and weights, from x and the router, to their places.
    void set_rows(const Chunk& chunk, const Tensor& x, const Routed& routed) {
        ops::scatter_rows(of(rows_, chunk.rows), of(x, chunk), of(row_map_, chunk));
        ops::scatter_rows(of(weights_, chunk.rows), column(of(routed.weights, chunk)),
                          column(of(row_map_, chunk)));
    }
    void allocate_rows(const Tensor& x) {
        rows_ = new_rows(x.cols(), x.dtype());
        weights_ = new_rows(1, DType::fp32);
    }
    virtual bool may_drop() const { return false; }  // some rows are then unused

    const Communicator& ep_;
    int64_t experts_;
    Stream& stream_;
    std::vector<Chunk> chunks_;
    Tensor row_map_;             // (N, k), within the chunk's rows
    Tensor rows_;                // (R, h): first the rows that leave, then the rows that came back
    Tensor weights_, dweights_;  // (R, 1): of the rows that leave; of those that came back

private:
    Tensor new_rows(int64_t columns, DType dtype) const {
        const Tensor rows = activation({chunks_.back().rows.end, columns}, dtype);
        if (may_drop()) ops::fill(rows, 0);
        return rows;
    }
    // Sends a chunk of rows or weights to its experts, where they are written to `all`.
    Work there(Tensor& in, const Tensor& all, const Chunk& chunk) const {
        in = activation({chunk.split_sizes.received(), all.cols()}, all.dtype());
        return exchange_rows(ep_, in, of(all, chunk.rows), chunk.split_sizes.to,
                             chunk.split_sizes.from, stream_);
    }
    Work back(Tensor& all, Tensor rows, const Chunk& chunk) const {
        const Tensor out = chunk.by_expert->as_they_came(rows);
        rows = {};
        if (!all) all = activation({chunks_.back().rows.end, out.cols()}, out.dtype());
        return exchange_rows(ep_, of(all, chunk.rows), out, chunk.split_sizes.from,
                             chunk.split_sizes.to, stream_);
    }
};

class ExpertDispatcher : public ChoiceDispatcher {
public:
    using ChoiceDispatcher::ChoiceDispatcher;

    void permute(const Tensor& x, const Routed& routed) override {
        const int64_t k = routed.experts.cols(), ranks = ep_.size(), here = experts_ / ranks;
        cut(x.rows(), [k](int64_t tokens) { return tokens * k; });
        const Tensor counts =
            Tensor::empty({chunks() * ranks, here}, DType::int32, Memory::workspace);
        const auto chunk_counts = [&](const Tensor& all, int64_t c) {
            return all.slice(c * ranks, (c + 1) * ranks);
        };
        row_map_ = activation(routed.experts.shape(), DType::int32);
        allocate_rows(x);
        for (int64_t c = 0; c < chunks(); ++c) {
            Chunk& chunk = at(c);
            const Tensor order = activation({chunk.rows.size()}, DType::int32);
            chunk.counts = chunk_counts(counts, c).view({experts_});
            ops::sort_by_expert(chunk.counts, order, of(row_map_, chunk),
                                of(routed.experts, chunk));
            set_rows(chunk, x, routed);
        }
        if (ranks > 1) exchange_counts(counts);
    }

private:
    // counts (chunks ranks, G). The host waits once, for the counts of all chunks.
    void exchange_counts(const Tensor& counts) {
        const int64_t ranks = ep_.size(), here = counts.cols();
        const Tensor in = Tensor::empty(counts.shape(), DType::int32, Memory::workspace);
        for (int64_t c = 0; c < chunks(); ++c) {
            const Range rows{c * ranks, (c + 1) * ranks};
            ep_.all_to_all(in.slice(rows.begin, rows.end), counts.slice(rows.begin, rows.end));
        }
        const std::vector<int32_t> mine = read_counts(counts), theirs = read_counts(in);
        for (int64_t c = 0; c < chunks(); ++c) {
            const auto chunk_counts = [&](const std::vector<int32_t>& all) {
                const auto first = all.begin() + c * experts_;
                return std::vector<int32_t>(first, first + experts_);
            };
            Chunk& chunk = at(c);
            chunk.split_sizes = {rows_by_rank(chunk_counts(mine), ranks),
                                 rows_by_rank(chunk_counts(theirs), ranks)};
            chunk.by_expert = std::make_shared<RowsByExpert>(chunk_counts(theirs), ranks, here);
            chunk.counts = chunk.by_expert->counts();
        }
    }
};

}  // namespace ultrascale::expert_parallel
