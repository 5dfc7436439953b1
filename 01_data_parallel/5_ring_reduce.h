// The plain ring, the simplest way to sum over ranks: one rank sends its tensor to the next, which
// adds its own and passes the sum on, until it is back where it began.
//
//     rank 0 --a--> rank 1 --a+b--> rank 2 --a+b+c--> rank 3 --a+b+c+d--> rank 0
//
// n hops, each with the whole tensor, one after the other, take t = n (S/bw + latency), and only
// one link is busy at a time. The ring all-reduce (6_ring_all_reduce.h) keeps all links busy with n
// chunks that travel at the same time; it takes 2(n-1)/n S/bw and gives every rank the sum. The
// playbook: appendix A0, "Reduce & AllReduce".
#pragma once

#include <functional>

#include "comm/comm.h"
#include "core/ops.h"

namespace ultrascale::data_parallel {

// On rank 0 of `group`, x (fp32 or bf16) becomes the sum over all ranks; on each other rank it
// becomes the sum of the ranks up to this one. All ranks call it, with equal sizes. It holds one
// tensor besides x. `after_hop(hop)` is called on every rank after hop 1 to n.
inline void ring_reduce(const Communicator& group, const Tensor& x,
                        const std::function<void(int hop)>& after_hop = {}) {
    const int n = group.size(), me = group.rank();
    if (n == 1) return;
    const Tensor arrived = Tensor::empty(x.shape(), x.dtype(), Memory::communication);
    for (int hop = 1; hop <= n; ++hop) {
        const int from = hop - 1, to = hop % n;
        if (me == from) group.send(x, to);
        if (me == to) {
            group.recv(arrived, from);
            // Rank 0's own part has travelled all the way round: the received sum contains it.
            to == 0 ? ops::copy(x, arrived) : ops::add(x, arrived);
        }
        if (after_hop) after_hop(hop);
    }
}

}  // namespace ultrascale::data_parallel
