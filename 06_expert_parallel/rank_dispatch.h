// One copy of a row for each destination instead of each expert (--dispatch rank). Where a token
// chooses several experts of one rank, its row travels there once, with the names of the experts
// and their weights; that rank sums what they make of it, and one row travels back.
//
//     token 5: experts 0, 1, 6      to rank 0: row 5, experts 0 1, their weights
//     (4 experts a rank)            to rank 1: row 5, expert 6, its weight
//
// With k choices and n ranks the expected copies are n (1 - C(E - E/n, k) / C(E, k)) instead of k:
// of 128 experts and 8 choices over 8 ranks 5.34 instead of 8. The sum of a token's outputs is now
// added in two steps, by rank and then over ranks, and so rounds differently.
//
// A hop is such a trip over any group of ranks. Two hops, over nodes and inside a node, make
// node_limited.h.
#pragma once

#include "journey.h"
#include "kernels/ops_experts.h"

namespace ultrascale::expert_parallel {

// Rows on their way: each has its token's experts, or -1 for those that are not where it goes.
struct RowsWithExperts {
    Tensor rows, weights, experts;  // (M, h), (M, k) fp32, (M, k) int32
};

// Where rows arrive, of one transfer after the other. Between GPUs of one machine it is symmetric
// memory, large enough for all that can come, N rows from each rank; so the senders' copy engines
// write into it, faster than NCCL's kernels do, and take no multiprocessors for it.
class Arrivals {
public:
    // For `count` rows, which are never more than `most`; `most` is the same on all ranks.
    Tensor rows(const Communicator& group, int64_t count, int64_t most, int64_t columns,
                DType dtype) {
        const auto memory = group.symmetric_memory();
        if (!memory) return activation({count, columns}, dtype);
        if (!buffer_ || buffer_.dtype() != dtype || buffer_.numel() < most * columns) {
            buffer_ = {};
            buffer_ = Tensor::empty({most * columns}, dtype, Memory::communication, memory);
        }
        return buffer_.slice(0, count * columns).view({count, columns});
    }
    // 0 where there is no symmetric memory
    int64_t bytes() const { return buffer_.bytes(); }

private:
    Tensor buffer_;
};

class Hop {
public:
    // Rank r of the group takes the rows for `each` experts, from r each on. `arrivals` outlives
    // it; without, rows arrive in memory of their own.
    Hop(const Communicator& group, int64_t each, Traffic& traffic, Arrivals* arrivals = nullptr)
        : group_(group), each_(each), traffic_(traffic), arrivals_(arrivals) {}

    // Rows set out. Returns the weights and the experts of those that will arrive; there, experts
    // are counted from the rank's first one.
    RowsWithExperts depart(const RowsWithExperts& in, Stream& stream) {
        const Tensor counts = find_places(in.experts);
        const Event counted = compute_stream().record();
        // While the host waits for the counts, the device brings what travels in order, in memory
        // for the most that could.
        const int64_t k = in.experts.cols(), h = in.rows.cols(), most = place_.numel();
        const Tensor rows = at_places(in.rows, most), weights = at_places(in.weights, most),
                     named = numbers({most, k});
        ops::experts_of_rows(named, place_, in.experts, each_);
        set_travel(read_counts(counts, counted));
        traffic_.counts_of_all(group_);
        traffic_.one_way(group_, travel_.to, k * int64_t(sizeof(int32_t)));  // names of experts
        traffic_.one_way(group_, travel_.to, k * int64_t(sizeof(float)));    // their weights
        traffic_.gradient_back(group_, travel_.from, k * int64_t(sizeof(float)));
        traffic_.there_and_back(group_, travel_, h * dtype_bytes(in.rows.dtype()));

        const int64_t n = travel_.sent();
        send(rows.slice(0, n), stream);  // first, as they take longest
        const RowsWithExperts out{.weights = activation({travel_.received(), k}, DType::fp32),
                                  .experts = numbers({travel_.received(), k})};
        exchange_rows(group_, out.experts, named.slice(0, n), travel_.to, travel_.from);
        exchange_rows(group_, out.weights, weights.slice(0, n), travel_.to, travel_.from);
        return out;
    }
    // Of each row `from` comes one, and travels as before: the gradient of what came back.
    void depart(const Tensor& from, Stream& stream) {
        send(at_places(from, travel_.sent()), stream);
    }
    Tensor arrive() {
        coming_.work.wait();
        return std::exchange(coming_.rows, {});
    }
    int64_t tokens() const { return place_.rows(); }
    // What was allocated for rows that arrived, here and at home.
    Traffic::Rows::OfHop rows() const {
        return {.left = travel_.sent(),
                .arrived = travel_.received(),
                .most = place_.numel(),
                .in_buffer = arrivals_ && arrivals_->bytes() > 0};
    }

    struct OnTheWay {
        Tensor rows;
        Work work;
    };
    // A row for each that arrived goes back: what was made of it, or gradients. Beside the rows
    // their weights' gradients go back, which get memory of their own.
    enum class What { rows, weights };
    OnTheWay go_back(What what, const Tensor& rows, Stream& stream) const {
        const Tensor home = what == What::rows
                                ? arriving(travel_.sent(), rows)
                                : activation({travel_.sent(), rows.cols()}, rows.dtype());
        return {home, exchange_rows(group_, home, rows, counts_back(), stream)};
    }
    // y (N, any) = residual + the sum of a token's rows, over the ranks that it was sent to, in
    // their order.
    void add_back(Tensor y, OnTheWay back, const Tensor& residual = {}) const {
        back.work.wait();
        ops::sum_rows(y, back.rows, place_, residual);
    }

private:
    static Tensor numbers(Shape shape) {
        return Tensor::empty(std::move(shape), DType::int32, Memory::workspace);
    }
    // Finds where each token's rows are among those that leave, by rank. Returns how many each rank
    // has for each (from, to): they show where in the others' memory this rank's rows will go.
    Tensor find_places(const Tensor& experts) {
        const int64_t N = experts.rows(), n = group_.size(), me = group_.rank();
        const Tensor ranks_of = numbers({N, n}), order = numbers({N * n}), all = numbers({n, n}),
                     mine = all.slice(me, me + 1);
        place_ = numbers({N, n});
        ops::ranks_of_experts(ranks_of, experts, each_);
        ops::sort_by_expert(mine, order, place_, ranks_of);  // a rank here, not an expert
        group_.all_gather(all, mine);
        return all;
    }
    void set_travel(std::vector<int32_t> counts) {
        const size_t n = size_t(group_.size()), me = size_t(group_.rank());
        counts_ = std::move(counts);
        travel_ = {};
        for (size_t r = 0; r < n; ++r) {
            travel_.to.push_back(counts_[me * n + r]);
            travel_.from.push_back(counts_[r * n + me]);
        }
    }
    void send(const Tensor& rows, Stream& stream) {
        coming_.rows = arriving(travel_.received(), rows);
        coming_.work = exchange_rows(group_, coming_.rows, rows, counts_, stream);
    }
    // Memory for `count` rows like these, of which at most N come from each rank, or go to it.
    Tensor arriving(int64_t count, const Tensor& like) const {
        if (!arrivals_) return activation({count, like.cols()}, like.dtype());
        return arrivals_->rows(group_, count, tokens() * group_.size(), like.cols(), like.dtype());
    }
    std::vector<int32_t> counts_back() const {
        const size_t n = size_t(group_.size());
        std::vector<int32_t> back(counts_.size());
        for (size_t i = 0; i < counts_.size(); ++i) back[i % n * n + i / n] = counts_[i];
        return back;
    }
    Tensor at_places(const Tensor& from, int64_t count) const {
        const Tensor rows = activation({count, from.cols()}, from.dtype());
        ops::scatter_rows(rows, from, place_);
        return rows;
    }

    const Communicator& group_;
    int64_t each_;
    Traffic& traffic_;
    Arrivals* arrivals_;
    std::vector<int32_t> counts_;  // rows from rank r to rank s: r * ranks + s
    Travel travel_;                // this rank's
    Tensor place_;                 // (N, ranks)
    OnTheWay coming_;
};

class RankJourney : public Journey {
public:
    // `hops`: from the token's rank to its experts', of which each rank has G.
    RankJourney(std::vector<Hop> hops, int64_t G, Traffic& traffic, Stream& stream)
        : hops_(std::move(hops)), G_(G), traffic_(traffic), stream_(stream) {}

    void begin(const Tensor& x, const Routed& routed) override {
        at_ = {x, routed.weights, routed.experts};
    }
    void depart(int64_t) override {
        if (dy_)
            hops_[0].depart(dy_, stream_);
        else
            depart_with_experts(0);
    }
    ExpertRows arrive(int64_t) override {
        if (dy_) return {gradient_of_rows(), {}};
        Traffic::Rows rows;
        for (size_t i = 0; i < hops_.size(); ++i) {
            if (i > 0) depart_with_experts(i);
            at_.rows = hops_[i].arrive();
            rows.hops.push_back(hops_[i].rows());
        }
        rows.at_experts = at_experts_;
        traffic_.rows(rows);
        const RowsWithExperts here = std::exchange(at_, {});
        const ExpertRows in{activation({at_experts_, here.rows.cols()}, here.rows.dtype()),
                            std::exchange(counts_, {}), activation({at_experts_, 1}, DType::fp32)};
        ops::scatter_rows(in.rows, here.rows, place_);
        ops::scatter_rows(in.weights, column(here.weights), column(place_));
        return in;
    }
    // What the experts made of a row is added here, so that one row goes back.
    void go_back(int64_t, ExpertRows rows) override {
        if (rows.weights) {
            const Tensor weights = activation(place_.shape(), DType::fp32);
            ops::sum_rows(column(weights), std::exchange(rows.weights, {}), column(place_));
            weights_ = hops_.back().go_back(Hop::What::weights, weights, stream_);
        }
        const Tensor sums = activation({place_.rows(), rows.rows.cols()}, rows.rows.dtype());
        ops::sum_rows(sums, std::exchange(rows.rows, {}), place_);
        rows_ = hops_.back().go_back(Hop::What::rows, sums, stream_);
    }
    void combine(Tensor y, const Tensor& residual) override {
        go_home(Hop::What::rows, y, std::move(rows_), residual);
    }
    void begin_backward(const Tensor& dy) override { dy_ = dy; }
    void end_backward_of_weights(Tensor dweights) override {
        // Of each choice one rank's, the others' are zero.
        go_home(Hop::What::weights, dweights, std::move(weights_), {});
    }
    void end_backward(Tensor dx) override { go_home(Hop::What::rows, dx, std::move(rows_), dx); }

private:
    void depart_with_experts(size_t i) {
        at_ = hops_[i].depart(at_, stream_);
        if (i + 1 == hops_.size()) sort(at_.experts);
    }
    // While the rows travel, their order at the experts is found. The host waits for their number.
    void sort(const Tensor& experts) {
        place_ = activation(experts.shape(), DType::int32);
        counts_ = Tensor::empty({G_}, DType::int32, Memory::workspace);
        const Tensor order = activation({place_.numel()}, DType::int32);
        ops::sort_by_expert(counts_, order, place_, experts);
        const std::vector<int32_t> counts = read_counts(counts_);
        at_experts_ = std::reduce(counts.begin(), counts.end(), int64_t(0));
    }
    Tensor gradient_of_rows() {
        Tensor at;
        for (size_t i = 0; i < hops_.size(); ++i) {
            if (i > 0) hops_[i].depart(at, stream_);
            at = hops_[i].arrive();
        }
        const Tensor drows = activation({at_experts_, at.cols()}, at.dtype());
        ops::scatter_rows(drows, at, place_);
        return drows;
    }
    // Rows that went back over the last hop take the others; what they bring is added to y.
    void go_home(Hop::What what, Tensor y, Hop::OnTheWay back, const Tensor& residual) {
        for (size_t i = hops_.size() - 1; i > 0; --i) {
            const Tensor sums = activation({hops_[i].tokens(), y.cols()}, y.dtype());
            hops_[i].add_back(sums, std::move(back));
            back = hops_[i - 1].go_back(what, sums, stream_);
        }
        hops_[0].add_back(y, std::move(back), residual);
    }

    std::vector<Hop> hops_;
    int64_t G_;
    Traffic& traffic_;
    Stream& stream_;
    RowsWithExperts at_;     // on their way, forward
    Tensor dy_;              // in backward
    Tensor place_, counts_;  // (M, k) of the rows that arrived; (G) of each expert
    int64_t at_experts_ = 0;
    Hop::OnTheWay rows_, weights_;  // on their way back
};

}  // namespace ultrascale::expert_parallel
