// Expert parallelism with nothing else. n ranks share the E experts of a layer: rank r holds the
// r-th E/n of them (5_experts.h). Every rank brings tokens of its own, and its router (3_router.h)
// chooses k experts for each. So a token's row, h numbers, travels to the ranks of its experts, and
// what they make of it travels back. Eight rows, four experts, k = 1:
//
//     rank 0                               rank 1
//     rows  a b c d   to experts 2 0 3 0   rows  e f g h   to experts 1 3 0 2
//     1 sort by expert     | b d | a c |                | g e | h f |
//     2 trade counts       e0 2  e2 1                   e0 1  e2 1        how many will come?
//                          e1 0  e3 1                   e1 1  e3 1
//     3 trade rows         | b d | g e |   all-to-all   | a c | h f |     from rank 0 | from rank 1
//     4 by expert          e0: b d g  e1: e             e2: a h  e3: c f
//     5 compute            a SwiGLU for each expert's rows
//     6 back               | b d | a c |   all-to-all   | g e | h f |     each where it was after 1
//     7 sum                each token adds up its k results to the residual stream
//
// A rank does not know how many rows the others have for it: that depends on what the routers
// chose. So counts travel first, and the host (CPU) waits for them, once in each layer's forward,
// because it must know how much memory to allocate.
//
// The sum in step 7 is weighted: y = sum over j of weight_j expert_j(x). But the weight is a number
// for each row, so it travels along, and the expert applies it (5_experts.h): then what comes back
// need not be kept for the weight's gradient, which is computed where the expert is.
//
// BACKWARD. dy, a token's gradient, goes the way of its row: the gradient of a sum is a copy for
// each term, and that of copies is their sum. So steps 1, 3 and 4 bring dy to the experts, and 6
// and 7 bring dx back, with the order and the counts of forward. A layer trades rows four times,
// each time T k h numbers of T tokens, of which about (n-1)/n leave the rank.
//
// An expert sees the rows of all n ranks, so its gradient is already their sum. It belongs to no
// other rank of the group, and is summed only with those of other groups (expert_parallel.h).
#pragma once

#include "3_router.h"
#include "5_experts.h"
#include "row_exchange.h"

namespace ultrascale::expert_parallel {

class PlainDispatch : public FeedForward {
public:
    // `ep`: the ranks that share `experts` experts. `statistics` and `log` only look on, for the
    // report and for --verify.
    PlainDispatch(std::unique_ptr<Router> router, GroupedSwiGLU experts_here,
                  const Communicator& ep, int64_t experts, DispatchStatistics& statistics,
                  const SeeChoices& log, int64_t layer)
        : router_(std::move(router)),
          experts_(std::move(experts_here)),
          ep_(ep),
          count_(experts),
          statistics_(statistics),
          log_(log),
          layer_(layer) {}

    // x (T, h): one row for each token
    Tensor forward(const Tensor& x, const Tensor& residual, Saved& saved,
                   Context& context) override {
        const Tensor tokens = x.view({x.rows(), x.cols()});
        statistics_.begin(context.drops(), saved.enabled(), layer_, context.micro_batch);
        const Routed routed = router_->forward(tokens, saved["router"], context);
        if (log_) log_(layer_, routed.experts, {}, context);
        const Trip trip = plan(routed.experts, tokens);
        ExpertRows rows{.counts = trip.by_expert->counts()};
        rows.rows = there(copies(tokens, trip.row_map), trip);
        rows.weights = there(copies(column(routed.weights), column(trip.row_map)), trip);
        const Tensor results = back(experts_.forward(std::move(rows), saved["experts"]), trip);
        const Tensor y = activation_like(tokens);
        ops::sum_rows(y, results, trip.row_map, residual ? residual.view(y.shape()) : Tensor());
        saved.keep_object(trip);
        return y.view(x.shape());
    }

    Tensor backward(const Tensor& dy, Saved& saved, Context& context,
                    WeightGradient when) override {
        const auto trip = saved.take_object<Trip>();
        Tensor drows = there(copies(dy.view({dy.rows(), dy.cols()}), trip.row_map), trip);
        ExpertRows gradients = experts_.backward(std::move(drows), saved["experts"], context, when);
        Tensor dweights_back = back(std::move(gradients.weights), trip),
               drows_back = back(std::move(gradients.rows), trip);
        if (when == WeightGradient::now)
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
    // How the rows of a micro-batch travel; backward uses it again.
    struct Trip {
        Tensor row_map;    // (T, k): where each choice's row is among those that leave
        SplitSizes sizes;  // rows to each rank, and from each
        std::shared_ptr<const RowsByExpert> by_expert;
    };

    // Sorts the choices by expert, trades counts, and waits for them.
    Trip plan(const Tensor& chosen, const Tensor& tokens) const {
        const int64_t n = ep_.size(), here = count_ / n;
        const Tensor to = Tensor::empty({count_}, DType::int32, Memory::workspace),
                     order = activation({chosen.numel()}, DType::int32);
        Trip trip{.row_map = activation(chosen.shape(), DType::int32)};
        ops::sort_by_expert(to, order, trip.row_map, chosen);  // rows for each expert, of any rank
        // exercise 06.5 begin: trade counts; how many rows go to and come from each rank
        const Tensor from = Tensor::empty(to.shape(), DType::int32, Memory::workspace);
        ep_.all_to_all(from, to);  // rows from each rank, for each of this rank's experts
        const std::vector<int32_t> mine = read_counts(to), theirs = read_counts(from);
        trip.sizes = {rows_by_rank(mine, n), rows_by_rank(theirs, n)};
        trip.by_expert = std::make_shared<RowsByExpert>(theirs, n, here);
        // exercise 06.5 end
        statistics_.one_way(ep_, std::vector<int64_t>(size_t(n), here), sizeof(int32_t));
        statistics_.choices(ep_, trip.sizes, tokens.cols() * dtype_bytes(tokens.dtype()));
        statistics_.rows({trip.sizes.received(),
                          {{trip.sizes.sent(), trip.sizes.received()}},
                          {trip.sizes.received()}});
        return trip;
    }
    // Each token's row at the rows of its choices.
    static Tensor copies(const Tensor& x, const Tensor& row_map) {
        const Tensor rows = activation({row_map.numel(), x.cols()}, x.dtype());
        ops::scatter_rows(rows, x, row_map);
        return rows;
    }
    // Rows in the order of `row_map` travel to their experts, and are put in the experts' order.
    virtual Tensor there(Tensor rows, const Trip& trip) const {
        Tensor in = activation({trip.sizes.received(), rows.cols()}, rows.dtype());
        exchange_rows(ep_, in, std::exchange(rows, {}), trip.sizes.to, trip.sizes.from).wait();
        return trip.by_expert->in_order(std::exchange(in, {}));
    }
    // The same way back.
    virtual Tensor back(Tensor rows, const Trip& trip) const {
        Tensor out = trip.by_expert->as_they_came(std::exchange(rows, {}));
        const Tensor home = activation({trip.sizes.sent(), out.cols()}, out.dtype());
        exchange_rows(ep_, home, std::exchange(out, {}), trip.sizes.from, trip.sizes.to).wait();
        return home;
    }

private:
    std::unique_ptr<Router> router_;
    GroupedSwiGLU experts_;  // this rank's
    const Communicator& ep_;
    int64_t count_;
    DispatchStatistics& statistics_;
    const SeeChoices& log_;
    int64_t layer_;
};

}  // namespace ultrascale::expert_parallel
