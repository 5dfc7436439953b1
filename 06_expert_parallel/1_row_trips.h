// Expert parallelism with nothing else, in two files: how rows travel, and then the layer
// (1_plain_dispatch.h). A layer's feed-forward is replaced by E small ones, the experts, of which
// each token uses k. n ranks share them: rank r holds the r-th E/n (5_experts.h). Every rank brings
// tokens of its own, and its router (3_router.h) chooses k experts for each. So a token's row, h
// numbers, travels to the ranks of its experts, and what they make of it travels back. Two ranks
// with four tokens each, four experts, k = 1:
//
//                        rank 0, experts 0 and 1        rank 1, experts 2 and 3
//     rows, and their    a  b  c  d                     u  v  w  z
//     experts            2  0  3  0                     1  3  0  2
//
//     1 sort by expert   to 0: b d    to 1: a c         to 0: w u    to 1: z v
//     2 trade counts     to 0: 2 0    to 1: 1 1         to 0: 1 1    to 1: 1 1     of each expert
//     3 trade rows       from 0: b d  from 1: w u       from 0: a c  from 1: z v   all-to-all
//     4 by expert        e0: b d w    e1: u             e2: a z      e3: c v
//     5 compute          a SwiGLU for each expert's rows
//     6 back             from 0: b d  from 1: a c       from 0: w u  from 1: z v   all-to-all
//     7 sum              each token adds up its k results, and its residual
//
// An all-to-all (MPI_Alltoallv; with NCCL ncclSend and ncclRecv in a group) sends slice s of rank
// r's tensor to rank s, for all r and s at once. A rank does not know how many rows the others have
// for it, since routers choose. So counts travel first, and the host (the CPU) waits for them, once
// in each layer's forward, because it must know how much memory to allocate.
//
// In the code `std::exchange(x, {})` hands over a tensor that is not needed any more, so that its
// memory is freed as soon as it has been used.
#pragma once

#include "kernels/ops_experts.h"
#include "row_exchange.h"

namespace ultrascale::expert_parallel {

// How the rows of a micro-batch travel there and back; backward uses it again.
struct Trip {
    Tensor row_map;    // (T, k): the row of token t's choice j, after step 1, is row_map(t, j)
    SplitSizes sizes;  // `to`, `from`: how many rows go to each rank, and come from each
    std::shared_ptr<const RowsByExpert> by_expert;  // the order of step 4
};

// Step 1: x (T, h) -> (T k, h), a copy of each token's row for each of its choices, by expert.
inline Tensor copies(const Tensor& x, const Tensor& row_map) {
    const Tensor rows = activation({row_map.numel(), x.cols()}, x.dtype());
    ops::scatter_rows(rows, x, row_map);
    return rows;
}

// Steps 1 to 4, and 6. `there` and `back` are virtual for a test that makes mistakes in them
// (tests/ranks/plain_dispatch_break_test.cpp).
class RowTrips {
public:
    // `ep` are the ranks that share `experts` experts.
    RowTrips(const Communicator& ep, int64_t experts) : ep_(ep), count_(experts) {}
    virtual ~RowTrips() = default;
    const Communicator& ep() const { return ep_; }

    // Steps 1 and 2: sorts the choices (T, k) by expert, trades counts, and waits for them.
    Trip plan(const Tensor& chosen) const {
        const int64_t n = ep_.size(), here = count_ / n;  // experts of a rank
        const Tensor to = Tensor::empty({count_}, DType::int32, Memory::workspace),
                     order = activation({chosen.numel()}, DType::int32);
        Trip trip{.row_map = activation(chosen.shape(), DType::int32)};
        ops::sort_by_expert(to, order, trip.row_map, chosen);  // to: rows for each of all experts
        // exercise 06.5 begin: trade counts; how many rows go to and come from each rank
        const Tensor from = Tensor::empty(to.shape(), DType::int32, Memory::workspace);
        ep_.all_to_all(from, to);  // waits; rows from each rank, for each of this rank's experts
        const std::vector<int32_t> mine = read_counts(to), theirs = read_counts(from);
        trip.sizes = {rows_by_rank(mine, n), rows_by_rank(theirs, n)};
        trip.by_expert = std::make_shared<RowsByExpert>(theirs, n, here);
        // exercise 06.5 end
        return trip;
    }
    // Steps 3 and 4: (T k, h) -> (R, h). Rows that are sorted by expert travel, and the R rows that
    // come are put in order by expert again, because only each rank's came sorted.
    virtual Tensor there(Tensor rows, const Trip& trip) const {
        Tensor in = activation({trip.sizes.received(), rows.cols()}, rows.dtype());
        exchange_rows(ep_, in, std::exchange(rows, {}), trip.sizes.to, trip.sizes.from).wait();
        return trip.by_expert->in_order(std::exchange(in, {}));
    }
    // Step 6: (R, h) -> (T k, h). The same way back, to the order after step 1.
    virtual Tensor back(Tensor rows, const Trip& trip) const {
        Tensor out = trip.by_expert->as_they_came(std::exchange(rows, {}));
        const Tensor home = activation({trip.sizes.sent(), out.cols()}, out.dtype());
        exchange_rows(ep_, home, std::exchange(out, {}), trip.sizes.from, trip.sizes.to).wait();
        return home;
    }

private:
    const Communicator& ep_;
    int64_t count_;  // of all experts
};

}  // namespace ultrascale::expert_parallel
