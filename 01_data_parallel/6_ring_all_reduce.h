// The ring all-reduce adds to the plain ring: all links work at the same time. Every rank ends with
// the sum over all ranks, and talks to its two neighbours only.
//
// The tensor is cut into n chunks; chunk r's home is rank r, where its sum is completed. In each
// step every rank sends one chunk to the right and receives another from the left. Two phases of
// n-1 steps:
//
//   reduce-scatter   A chunk starts at the right neighbour of its home and collects every rank's
//                    part on its way. Chunk 0 of 4:
//                        rank 1 --[1]--> rank 2 --[1+2]--> rank 3 --[1+2+3]--> rank 0,
//                    which adds its own: the sum
//   all-gather       The complete chunk goes round once more; each rank stores it and passes it
//                    on:
//                        rank 0 --[sum]--> rank 1 --[sum]--> rank 2 --[sum]--> rank 3
//
// The n chunks travel at the same time, one rank apart, so every rank sends and receives in every
// step:
//
//     +--> rank 0 --c3--> rank 1 --c0--> rank 2 --c1--> rank 3 --c2--+      (the first step)
//     +--------------------------------------------------------------+
//
// A rank sends 2(n-1) chunks of S/n bytes:   t = 2(n-1)/n * S/bw + 2(n-1) * latency.
// These are less than 2 S bytes however many ranks there are, and no all-reduce can send fewer
// (Patarasuk & Yuan 2009, "Bandwidth optimal all-reduce algorithms for clusters of workstations").
// Only the latency grows with n, so small tensors go faster along trees. The playbook: appendix A0,
// "Ring AllReduce".
//
// RingDirections::both cuts the tensor in two halves, one for each direction. If links carry both
// directions at full speed, and each neighbour has its own link, that takes half the time.
#pragma once

#include <algorithm>
#include <functional>
#include <vector>

#include "1_naive.h"
#include "comm/comm.h"
#include "core/ops.h"

namespace ultrascale::data_parallel {

enum class RingDirections { one, both };

// One step of this rank in one direction. An observer is called when the received chunk is in
// place.
struct RingStep {
    enum Phase { reduce_scatter, all_gather } phase;
    int step;            // 0 .. n-2 in each phase
    int sent, to;        // this chunk was sent to this neighbour
    int received, from;  // this chunk was received from this one
};
using RingObserver = std::function<void(const RingStep&)>;

// The index at which part p begins if `count` elements are cut into `parts` parts, which are equal
// but for a remainder. A large tensor is cut at multiples of 64 elements, because a GPU reads 16
// bytes at once if the address allows it.
inline int64_t part_begin(int64_t count, int64_t p, int64_t parts) {
    const int64_t grain = count >= 4096 * parts ? 64 : 1;
    return p == parts ? count : count / grain * p / parts * grain;
}

inline int64_t longest_part(int64_t count, int64_t parts) {
    int64_t longest = 0;
    for (int64_t p = 0; p < parts; ++p)
        longest = std::max(longest, part_begin(count, p + 1, parts) - part_begin(count, p, parts));
    return longest;
}

// How many of `count` elements travel in each direction.
inline std::vector<int64_t> ring_shares(int64_t count, RingDirections directions) {
    if (directions == RingDirections::one) return {count};
    const int64_t half = part_begin(count, 1, 2);
    return {half, count - half};
}

// One direction of the ring: its share of the tensor, and the ranks' positions.
struct Ring {
    Tensor x;  // (count)
    int rank, n, direction /* 1: to the right, -1: to the left */;
    Tensor inbox = {};  // room for the longest chunk

    // The rank k places behind this one (k < 0: ahead), which is also the number of the chunk whose
    // home it is.
    int behind(int k) const { return ((rank - k * direction) % n + n) % n; }
    Tensor chunk(int c) const {
        return x.slice(part_begin(x.numel(), c, n), part_begin(x.numel(), c + 1, n));
    }
    Tensor inbox_for(int c) const { return inbox.slice(0, chunk(c).numel()); }
};

inline std::vector<Ring> make_rings(const Tensor& x, int rank, int n, RingDirections directions) {
    const Tensor all = x.view({x.numel()});
    const int64_t first = ring_shares(all.numel(), directions).front();
    std::vector<Ring> rings = {{all.slice(0, first), rank, n, 1}};
    if (directions == RingDirections::both)
        rings.push_back({all.slice(first, all.numel()), rank, n, -1});
    return rings;
}

// x, of any shape, becomes the sum over all ranks of `group`. It is fp32 or bf16 (which is rounded
// at every addition). Runs on the compute stream; all ranks call it with equal sizes. Holds one
// chunk besides x.
inline void ring_all_reduce(const Communicator& group, Tensor x,
                            RingDirections directions = RingDirections::one,
                            const RingObserver& observe = {}) {
    const int n = group.size();
    if (n == 1) return;
    std::vector<Ring> rings = make_rings(x, group.rank(), n, directions);
    for (Ring& ring : rings)
        ring.inbox =
            Tensor::empty({longest_part(ring.x.numel(), n)}, x.dtype(), Memory::communication);
    const auto report = [&](RingStep::Phase phase, int step, int sent_home, int received_home) {
        if (!observe) return;
        for (const Ring& ring : rings)
            observe({phase, step, ring.behind(sent_home), ring.behind(-1),
                     ring.behind(received_home), ring.behind(1)});
    };

    // Reduce-scatter: pass on the chunk that was added to last, starting with the chunk whose home
    // is one place behind.
    for (int step = 0; step < n - 1; ++step) {
        const int sent = step + 1, received = step + 2;  // homes, in places behind this rank
        std::vector<Transfer> transfers;
        for (const Ring& ring : rings) {
            transfers.push_back({Transfer::send, ring.chunk(ring.behind(sent)), ring.behind(-1)});
            transfers.push_back(
                {Transfer::recv, ring.inbox_for(ring.behind(received)), ring.behind(1)});
        }
        group.send_recv(std::move(transfers));
        for (const Ring& ring : rings)
            ops::add(ring.chunk(ring.behind(received)), ring.inbox_for(ring.behind(received)));
        report(RingStep::reduce_scatter, step, sent, received);
    }
    // All-gather: the chunk whose home is this rank now holds the sum. Pass on the chunk that
    // arrived last, starting with this one.
    // exercise 01.1 begin: n-1 times, send the chunk that arrived last to the right
    for (int step = 0; step < n - 1; ++step) {
        const int sent = step, received = step + 1;
        std::vector<Transfer> transfers;
        for (const Ring& ring : rings) {
            transfers.push_back({Transfer::send, ring.chunk(ring.behind(sent)), ring.behind(-1)});
            transfers.push_back(
                {Transfer::recv, ring.chunk(ring.behind(received)), ring.behind(1)});
        }
        group.send_recv(std::move(transfers));
        report(RingStep::all_gather, step, sent, received);
    }
    // exercise 01.1 end
}

// Sums the whole gradient at once after the backward, by sends and receives of our own.
class WholeGradientSync : public GradientSync {
public:
    WholeGradientSync(ParameterList& parameters, const Mesh& mesh)
        : GradientSync(parameters, mesh) {
        for (const auto& parameter : parameters)
            check(&data_group(mesh, *parameter) == &ranks_,
                  "all gradients must be summed over the same ranks");
    }
    void finish() override {
        parameters_.check_complete();
        const TraceName name(TraceName::whole, "gradients");
        sum(parameters_.flat_grads());
        sum_over_replica_groups(parameters_, mesh_);
    }

private:
    virtual void sum(const Tensor& gradients) const = 0;  // over ranks_, in place
};

// --sync ring: sums the whole gradient in this way after the backward. On four H200s this waits for
// 37 ms, where naive's calls wait for 44 (README.md). Nothing overlaps, since the ring's additions
// run on the compute stream, as the backward does. (NCCL adds inside its communication kernels.)
class RingSync : public WholeGradientSync {
public:
    RingSync(ParameterList& parameters, const Mesh& mesh, RingDirections directions)
        : WholeGradientSync(parameters, mesh), directions_(directions) {}
    RingDirections directions() const { return directions_; }

private:
    void sum(const Tensor& gradients) const override {
        ring_all_reduce(ranks_, gradients, directions_);
    }
    RingDirections directions_;
};

}  // namespace ultrascale::data_parallel
