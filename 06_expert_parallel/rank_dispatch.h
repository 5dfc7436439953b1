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

namespace ultrascale {

// Rows on their way: each has its token's experts, or -1 for those that are not where it goes.
struct RowsWithExperts {
    Tensor rows, weights;          // (M, h), (M, k) fp32
    std::vector<int32_t> experts;  // (M, k), on the host
    int64_t k;
    int64_t count() const { return int64_t(experts.size()) / k; }
};

class Hop {
public:
    // `rank_of`: the rank of the group to which rows for an expert go.
    Hop(const Communicator& group, std::function<int64_t(int64_t expert)> rank_of, Traffic& traffic)
        : group_(group), rank_of_(std::move(rank_of)), traffic_(traffic) {}

    // Rows set out, and arrive.
    void depart(const RowsWithExperts& in, Stream& stream) {
        const int64_t ranks = group_.size(), k = in.k, h = in.rows.cols();
        std::vector<int32_t> index, named, place(size_t(in.count() * ranks), -1),
            of_weight(in.experts.size(), 0);
        travel_.to.assign(size_t(ranks), 0), travel_.from.assign(size_t(ranks), 0);
        for (int64_t r = 0; r < ranks; ++r)
            for (int64_t n = 0; n < in.count(); ++n)
                add_row(in, r, n, index, named, place, of_weight);
        tokens_ = in.count(), k_ = k;
        index_ = on_device(index, {int64_t(index.size())});
        place_ = on_device(place, {tokens_, ranks});
        of_weight_ = on_device(of_weight, {int64_t(of_weight.size())});

        std::vector<int32_t> counts(travel_.to.begin(), travel_.to.end());
        const Tensor to = on_device(counts, {ranks}), from = on_device(counts, {ranks});
        group_.all_to_all(from, to);
        const std::vector<int32_t> came = read_counts(from);
        travel_.from.assign(came.begin(), came.end());
        traffic_.one_way(group_, std::vector<int64_t>(size_t(ranks), 1), sizeof(int32_t));
        traffic_.one_way(group_, travel_.to, k * int64_t(sizeof(int32_t)));  // names of experts
        traffic_.one_way(group_, travel_.to, k * int64_t(sizeof(float)));    // their weights
        traffic_.gradient_back(group_, travel_.from, k * int64_t(sizeof(float)));
        traffic_.there_and_back(group_, travel_, h * dtype_bytes(in.rows.dtype()));

        const int64_t M = travel_.received();
        const Tensor names = Tensor::empty({M, k}, DType::int32, Memory::workspace);
        exchange_rows(group_, names, on_device(named, {travel_.sent(), k}), travel_.to,
                      travel_.from);
        out_ = {.weights = there(gathered(in.weights)), .experts = read_counts(names), .k = k};
        depart(in.rows, stream);
    }
    RowsWithExperts arrive() {
        work_.wait();
        return std::exchange(out_, {});
    }
    const Travel& travel() const { return travel_; }

    // y (M, h) += what came back, or the gradients of rows: added for each row over the ranks that
    // it was sent to, in their order.
    void add_back(Tensor y, Tensor rows, const Tensor& residual) const {
        const Tensor home = back(rows);
        rows = {};
        ops::sum_rows(y, home, place_, residual);
    }
    // The same for the gradients of weights (M, k), of which each has one source.
    void weights_back(Tensor dweights, const Tensor& there) const {
        ops::gather_rows(dweights, back(there), of_weight_);
    }
    // Of each row `from` comes one, and travels as before: also the gradient of what came back.
    void depart(const Tensor& from, Stream& stream) {
        const Tensor rows = gathered(from);
        out_.rows = activation({travel_.received(), from.cols()}, from.dtype());
        work_ = exchange_rows(group_, out_.rows, rows, travel_.to, travel_.from, stream);
    }
    int64_t tokens() const { return tokens_; }

private:
    static Tensor on_device(const std::vector<int32_t>& values, Shape shape) {
        return Tensor::from_host<int32_t>(values, std::move(shape), Memory::workspace);
    }
    // Adds token n's row for rank r, if one of its experts is there.
    void add_row(const RowsWithExperts& in, int64_t r, int64_t n, std::vector<int32_t>& index,
                 std::vector<int32_t>& named, std::vector<int32_t>& place,
                 std::vector<int32_t>& of_weight) {
        const auto row = int32_t(index.size());
        bool goes = false;
        std::vector<int32_t> names(size_t(in.k), -1);
        for (int64_t j = 0; j < in.k; ++j) {
            const size_t i = size_t(n * in.k + j);
            if (in.experts[i] < 0 || rank_of_(in.experts[i]) != r) continue;
            goes = true;
            names[size_t(j)] = in.experts[i];
            of_weight[i] = int32_t(row * in.k + j);
        }
        if (!goes) return;
        index.push_back(int32_t(n));
        named.insert(named.end(), names.begin(), names.end());
        place[size_t(n * group_.size() + r)] = row;
        ++travel_.to[size_t(r)];
    }
    Tensor gathered(const Tensor& from) const {
        const Tensor rows = activation({index_.numel(), from.cols()}, from.dtype());
        ops::gather_rows(rows, from, index_);
        return rows;
    }
    Tensor there(const Tensor& rows) const {
        const Tensor out = activation({travel_.received(), rows.cols()}, rows.dtype());
        exchange_rows(group_, out, rows, travel_.to, travel_.from);
        return out;
    }
    Tensor back(const Tensor& rows) const {
        const Tensor home = activation({travel_.sent(), rows.cols()}, rows.dtype());
        exchange_rows(group_, home, rows, travel_.from, travel_.to);
        return home;
    }

    const Communicator& group_;
    std::function<int64_t(int64_t)> rank_of_;
    Traffic& traffic_;
    Travel travel_;
    int64_t tokens_ = 0, k_ = 0;
    Tensor index_, place_, of_weight_;  // (S) token of each row; (M, ranks); (M k)
    RowsWithExperts out_;               // on their way
    Work work_;
};

class RankJourney : public Journey {
public:
    // `hops`: from the token's rank to its experts'. `first`: of this rank's G experts.
    RankJourney(std::vector<Hop> hops, int64_t first, int64_t G, Traffic& traffic, Stream& stream)
        : hops_(std::move(hops)), first_(first), G_(G), traffic_(traffic), stream_(stream) {}

    void begin(const Tensor& x, const Routed& routed) override {
        at_ = {x, routed.weights, read_counts(routed.experts), routed.experts.cols()};
    }
    void depart(int64_t) override {
        if (dy_)
            hops_[0].depart(dy_, stream_);
        else
            hops_[0].depart(at_, stream_);
    }
    ExpertRows arrive(int64_t) override {
        if (dy_) return {gradient_of_rows(), {}};
        Traffic::Rows rows;
        for (size_t i = 0; i < hops_.size(); ++i) {
            if (i > 0) hops_[i].depart(at_, stream_);
            at_ = hops_[i].arrive();
            rows.hops.push_back({hops_[i].travel().sent(), hops_[i].travel().received()});
        }
        for (int32_t& e : at_.experts) {
            rows.at_experts += e >= 0;
            e = e < 0 ? -1 : e - int32_t(first_);
        }
        traffic_.rows(rows);
        at_experts_ = rows.at_experts;
        const RowsWithExperts here = std::exchange(at_, {});
        place_ = activation(here.weights.shape(), DType::int32);
        const Tensor counts = Tensor::empty({G_}, DType::int32, Memory::workspace),
                     order = activation({place_.numel()}, DType::int32),
                     named = Tensor::from_host<int32_t>(here.experts, place_.shape(),
                                                        Memory::workspace);
        ops::sort_by_expert(counts, order, place_, named);
        const ExpertRows in{activation({rows.at_experts, here.rows.cols()}, here.rows.dtype()),
                            counts, activation({rows.at_experts, 1}, DType::fp32)};
        ops::scatter_rows(in.rows, here.rows, place_);
        ops::scatter_rows(in.weights, column(here.weights), column(place_));
        return in;
    }
    void go_back(int64_t, ExpertRows rows) override { rows_ = std::move(rows); }
    void combine(Tensor y, const Tensor& residual) override { home(y, residual); }
    void begin_backward(const Tensor& dy) override { dy_ = dy; }
    void end_backward_of_weights(Tensor dweights) override {
        Tensor there = activation(place_.shape(), DType::fp32);
        ops::sum_rows(column(there), rows_.weights, column(place_));
        for (size_t i = hops_.size(); i-- > 0;) {
            const Tensor here =
                i == 0 ? dweights : activation({hops_[i].tokens(), there.cols()}, DType::fp32);
            hops_[i].weights_back(here, there);
            there = here;
        }
    }
    void end_backward(Tensor dx) override { home(dx, dx); }

private:
    Tensor gradient_of_rows() {
        Tensor at;
        for (size_t i = 0; i < hops_.size(); ++i) {
            if (i > 0) hops_[i].depart(at, stream_);
            at = hops_[i].arrive().rows;
        }
        const Tensor drows = activation({at_experts_, at.cols()}, at.dtype());
        ops::scatter_rows(drows, at, place_);
        return drows;
    }
    // Adds a token's rows here and takes them back through all hops; the last one adds to y.
    void home(Tensor y, const Tensor& residual) {
        Tensor rows = activation({place_.rows(), rows_.rows.cols()}, rows_.rows.dtype());
        ops::sum_rows(rows, rows_.rows, place_);
        rows_ = {};
        for (size_t i = hops_.size(); i-- > 0;) {
            const Tensor to =
                i == 0 ? y : activation({hops_[i].tokens(), rows.cols()}, rows.dtype());
            hops_[i].add_back(to, std::move(rows), i == 0 ? residual : Tensor());
            rows = to;
        }
    }

    std::vector<Hop> hops_;
    int64_t first_, G_;
    Traffic& traffic_;
    Stream& stream_;
    RowsWithExperts at_;  // on their way, forward
    Tensor dy_;           // in backward
    Tensor place_;        // (M, k) of the rows that arrived
    int64_t at_experts_ = 0;
    ExpertRows rows_;  // on their way back
};

}  // namespace ultrascale
