// Expert parallelism with nothing else. A layer's feed-forward is replaced by E small ones, the
// experts, of which each token uses k. n ranks share them: rank r holds the r-th E/n (5_experts.h).
// Every rank brings tokens of its own, and its router (3_router.h) chooses k experts for each. So a
// token's row, h numbers, travels to the ranks of its experts, and what they make of it travels
// back. Two ranks with four tokens each, four experts, k = 1:
//
//                        rank 0, experts 0 and 1        rank 1, experts 2 and 3
//     rows, and their    a  b  c  d                     e  f  g  h
//     experts            2  0  3  0                     1  3  0  2
//
//     1 sort by expert   to 0: b d    to 1: a c         to 0: g e    to 1: h f
//     2 trade counts     to 0: 2 0    to 1: 1 1         to 0: 1 1    to 1: 1 1     of each expert
//     3 trade rows       of 0: b d    of 1: g e         of 0: a c    of 1: h f     all-to-all
//     4 by expert        e0: b d g    e1: e             e2: a h      e3: c f
//     5 compute          a SwiGLU for each expert's rows
//     6 back             of 0: b d    of 1: a c         of 0: g e    of 1: h f     all-to-all
//     7 sum              each token adds up its k results, and its residual
//
// An all-to-all (MPI_Alltoallv; with NCCL ncclSend and ncclRecv in a group) sends slice s of rank
// r's tensor to rank s, for all r and s at once. A rank does not know how many rows the others have
// for it, since routers choose. So counts travel first, and the host (the CPU) waits for them, once
// in each layer's forward, because it must know how much memory to allocate.
//
// The sum in step 7 is weighted: y = sum over j of weight_j expert_j(x). The weights travel beside
// the rows, and the expert applies them (5_experts.h). Then the weight's gradient is computed where
// the expert is, and what comes back need not be kept for it.
//
// BACKWARD. A token's gradient dy goes the way of its row: the gradient of a sum is a copy for each
// term, and that of copies is their sum. So steps 1, 3 and 4 bring dy to the experts, and 6 and 7
// bring dx back, with the order and the counts of forward. A layer trades rows four times, each
// time T k h numbers of T tokens, of which about (n-1)/n leave the rank.
//
// An expert sees the rows of all n ranks, so its gradient is already their sum. No other rank of
// the group has this expert; its gradient is summed only with those of other groups
// (expert_parallel.h).
//
// In the code `std::exchange(x, {})` hands over a tensor that is not needed any more, so that its
// memory is freed as soon as it has been used.
#pragma once

#include "3_router.h"
#include "5_experts.h"
#include "row_exchange.h"

namespace ultrascale::expert_parallel {

class PlainDispatch : public FeedForward {
public:
    // `ep` are the ranks that share `experts` experts, `experts_here` this rank's. `observer` only
    // looks on, and may be empty.
    PlainDispatch(std::unique_ptr<Router> router, GroupedSwiGLU experts_here,
                  const Communicator& ep, int64_t experts, const SeeDispatch& observer,
                  int64_t layer)
        : router_(std::move(router)),
          experts_(std::move(experts_here)),
          ep_(ep),
          count_(experts),
          observer_(observer),
          layer_(layer) {}

    // The model calls it in each layer. x is (T, h), a row for each token; the result is added to
    // `residual`. `saved` keeps what backward needs, under a name for each part.
    Tensor forward(const Tensor& x, const Tensor& residual, Saved& saved,
                   Context& context) override {
        const Tensor tokens = x.view({x.rows(), x.cols()});
        // `routed` has the k experts of each token and their weights, both (T, k).
        const Routed routed = router_->forward(tokens, saved["router"], context);
        const Trip trip = plan(routed.experts);  // the order of step 1, and step 2
        if (observer_) observer_(dispatched(trip, routed.experts, saved.enabled()), context);
        ExpertRows rows{.counts = trip.by_expert->counts()};
        // 1, 3, 4; the weights travel as rows of one number, which column() makes of them
        rows.rows = there(copies(tokens, trip.row_map), trip);
        rows.weights = there(copies(column(routed.weights), column(trip.row_map)), trip);
        // 5, 6
        const Tensor results = back(experts_.forward(std::move(rows), saved["experts"]), trip);
        const Tensor y = activation_like(tokens);
        // 7: y(t) = residual(t) + the sum over j of results(row_map(t, j))
        ops::sum_rows(y, results, trip.row_map, residual ? residual.view(y.shape()) : Tensor());
        saved.keep_object(trip);
        return y.view(x.shape());
    }

    // From dy (T, h) to dx. `when` says whether the weights' gradients are computed here, or later
    // by backward_weight (a pipeline may ask for that).
    Tensor backward(const Tensor& dy, Saved& saved, Context& context,
                    WeightGradient when) override {
        const auto trip = saved.take_object<Trip>();
        Tensor drows = there(copies(dy.view({dy.rows(), dy.cols()}), trip.row_map), trip);
        ExpertRows gradients = experts_.backward(std::move(drows), saved["experts"], context, when);
        Tensor dweights_back = back(std::move(gradients.weights), trip),
               drows_back = back(std::move(gradients.rows), trip);
        if (when == WeightGradient::now)  // those of the last product, down, are there already
            experts_.backward_weight_of_gate_up(saved["experts"], context);
        const Tensor dweights = activation(trip.row_map.shape(), DType::fp32);
        ops::sum_rows(column(dweights), std::exchange(dweights_back, {}), column(trip.row_map));
        const Tensor dx = router_->backward_input(dweights, saved["router"], context);
        if (when == WeightGradient::now) router_->backward_weight(saved["router"], context);
        ops::sum_rows(dx, drows_back, trip.row_map, dx);  // a token's k gradients, and the router's
        return dx.view(dy.shape());
    }

    void backward_weight(Saved& saved, Context& context) override {
        experts_.backward_weight(saved["experts"], context);
        router_->backward_weight(saved["router"], context);
    }

protected:
    // How the rows of a micro-batch travel there and back; backward uses it again.
    struct Trip {
        Tensor row_map;    // (T, k): the row of token t's choice j, after step 1, is row_map(t, j)
        SplitSizes sizes;  // `to`, `from`: how many rows go to each rank, and come from each
        std::shared_ptr<const RowsByExpert> by_expert;  // the order of step 4
    };

    // Steps 1 and 2: sorts the choices by expert, trades counts, and waits for them.
    Trip plan(const Tensor& chosen) const {
        const int64_t n = ep_.size(), here = count_ / n;  // experts of a rank
        const Tensor to = Tensor::empty({count_}, DType::int32, Memory::workspace),
                     order = activation({chosen.numel()}, DType::int32);
        Trip trip{.row_map = activation(chosen.shape(), DType::int32)};
        ops::sort_by_expert(to, order, trip.row_map, chosen);  // to: rows for each of all experts
        // exercise 06.5 begin: trade counts; how many rows go to and come from each rank
        const Tensor from = Tensor::empty(to.shape(), DType::int32, Memory::workspace);
        ep_.all_to_all(from, to);  // rows from each rank, for each of this rank's experts
        const std::vector<int32_t> mine = read_counts(to), theirs = read_counts(from);
        trip.sizes = {rows_by_rank(mine, n), rows_by_rank(theirs, n)};
        trip.by_expert = std::make_shared<RowsByExpert>(theirs, n, here);
        // exercise 06.5 end
        return trip;
    }
    // Step 1: a copy of each token's row for each of its choices, sorted by expert.
    static Tensor copies(const Tensor& x, const Tensor& row_map) {
        const Tensor rows = activation({row_map.numel(), x.cols()}, x.dtype());
        ops::scatter_rows(rows, x, row_map);
        return rows;
    }
    // Steps 3 and 4: rows that are sorted by expert travel, and are put in order by expert again,
    // as they came sorted from each rank.
    virtual Tensor there(Tensor rows, const Trip& trip) const {
        Tensor in = activation({trip.sizes.received(), rows.cols()}, rows.dtype());
        exchange_rows(ep_, in, std::exchange(rows, {}), trip.sizes.to, trip.sizes.from).wait();
        return trip.by_expert->in_order(std::exchange(in, {}));
    }
    // Step 6: the same way back, to the order after step 1.
    virtual Tensor back(Tensor rows, const Trip& trip) const {
        Tensor out = trip.by_expert->as_they_came(std::exchange(rows, {}));
        const Tensor home = activation({trip.sizes.sent(), out.cols()}, out.dtype());
        exchange_rows(ep_, home, std::exchange(out, {}), trip.sizes.from, trip.sizes.to).wait();
        return home;
    }

private:
    Dispatched dispatched(const Trip& trip, const Tensor& experts, bool backward_follows) const {
        Dispatched d{layer_, backward_follows, experts, {}, trip.sizes.received(), {}};
        d.exchanges.push_back({&ep_, trip.sizes});
        return d;
    }

    std::unique_ptr<Router> router_;
    GroupedSwiGLU experts_;  // this rank's
    const Communicator& ep_;
    int64_t count_;  // of all experts
    const SeeDispatch& observer_;
    int64_t layer_;
};

}  // namespace ultrascale::expert_parallel
