// The layer around the trips of 1_row_trips.h, with the numbers that its picture gives the steps. A
// router chooses, rows travel there, experts compute (step 5), rows travel back, and each token
// adds up what has come (step 7).
//
// This sum is weighted: y = sum over j of weight_j expert_j(x). The weights travel beside the rows,
// and the expert applies them (5_experts.h). Then such a weight's gradient is computed where the
// expert is, and what comes back need not be kept for it.
//
// BACKWARD. A token's gradient dy goes the way of its row: the gradient of a sum is a copy for each
// term, and that of copies is their sum. So steps 1, 3 and 4 bring dy to the experts, and 6 and 7
// bring dx back, with the order and the counts of forward. A layer trades rows four times, each
// time T k h numbers of T tokens, of which about (n-1)/n leave the rank.
//
// An expert sees the rows of all n ranks, so its gradient is already their sum. No other rank of
// the group has this expert; its gradient is summed only with those of other groups
// (expert_parallel.h).
#pragma once

#include "1_row_trips.h"
#include "3_router.h"
#include "5_experts.h"

namespace ultrascale::expert_parallel {

class PlainDispatch : public FeedForward {
public:
    // `experts_here` are this rank's. Keeps a reference to `observer`, which only looks on, and may
    // be empty.
    PlainDispatch(std::unique_ptr<Router> router, GroupedSwiGLU experts_here,
                  std::unique_ptr<RowTrips> trips, const SeeDispatch& observer, int64_t layer)
        : router_(std::move(router)),
          experts_(std::move(experts_here)),
          trips_(std::move(trips)),
          observer_(observer),
          layer_(layer) {}

    // The model calls it in each layer. x is (T, h), a row for each token; the result is added to
    // `residual`. `saved` keeps what backward needs, under a name for each part.
    Tensor forward(const Tensor& x, const Tensor& residual, Saved& saved,
                   Context& context) override {
        const Tensor tokens = x.view({x.rows(), x.cols()});
        // `routed` has the k experts of each token and their weights, both (T, k).
        const Routed routed = router_->forward(tokens, saved["router"], context);
        const Trip trip = trips_->plan(routed.experts);  // the order of step 1, and step 2
        if (observer_) observer_(dispatched(trip, routed.experts, saved.enabled()), context);
        ExpertRows rows{.counts = trip.by_expert->counts()};
        // 1, 3, 4; the weights travel as rows of one number, which column() makes of them
        rows.rows = trips_->there(copies(tokens, trip.row_map), trip);
        rows.weights = trips_->there(copies(column(routed.weights), column(trip.row_map)), trip);
        // 5, 6
        const Tensor results =
            trips_->back(experts_.forward(std::move(rows), saved["experts"]), trip);
        const Tensor y = activation_like(tokens);
        // 7: y(t) = residual(t) + the sum over j of results(row_map(t, j))
        ops::sum_rows(y, results, trip.row_map, residual ? residual.view(y.shape()) : Tensor());
        saved.keep_object(trip);
        return y.view(x.shape());
    }

    // From dy (T, h) to dx. `when` says whether the gradients of the parameters (the experts' and
    // the router's) are computed here, or later by backward_weight (a pipeline may ask for that).
    Tensor backward(const Tensor& dy, Saved& saved, Context& context,
                    WeightGradient when) override {
        const auto trip = saved.take_object<Trip>();
        Tensor drows = trips_->there(copies(dy.view({dy.rows(), dy.cols()}), trip.row_map), trip);
        ExpertRows gradients = experts_.backward(std::move(drows), saved["experts"], context, when);
        Tensor dweights_back = trips_->back(std::move(gradients.weights), trip),
               drows_back = trips_->back(std::move(gradients.rows), trip);
        if (when == WeightGradient::now)  // down's, the last product's, are there already
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

private:
    Dispatched dispatched(const Trip& trip, const Tensor& experts, bool backward_follows) const {
        Dispatched d{layer_, backward_follows, experts, {}, trip.sizes.received(), {}};
        d.exchanges.push_back({&trips_->ep(), trip.sizes});
        return d;
    }

    std::unique_ptr<Router> router_;
    GroupedSwiGLU experts_;  // this rank's
    std::unique_ptr<RowTrips> trips_;
    const SeeDispatch& observer_;
    int64_t layer_;
};

}  // namespace ultrascale::expert_parallel
