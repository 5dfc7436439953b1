#include "slow_links.h"

#include <algorithm>
#include <chrono>
#include <mutex>
#include <thread>

#include "comm/comm_transport.h"

namespace ultrascale {

SlowLinks& slow_links() {
    static SlowLinks links;
    return links;
}

std::atomic<int64_t>& bytes_between_nodes() {
    static std::atomic<int64_t> bytes = 0;
    return bytes;
}

void pretend_nodes(int ranks_per_node, double gbit_per_second, double hop_seconds) {
    check(ranks_per_node > 0 && gbit_per_second > 0, "simulated nodes need ranks and a rate");
    slow_links() = {{.ranks = ranks_per_node}, gbit_per_second * 1e9 / 8, hop_seconds};
}

Nodes current_nodes() {
    const Communicator& world = Communicator::world();
    world.symmetric_memory();  // opens it: only then it is known how calls go
    const bool exchange = transport::over_mpi();
    if (slow_links().on()) {
        Nodes nodes = slow_links().nodes;
        nodes.crossing = exchange ? Crossing::exchange : Crossing::ring;
        return nodes;
    }
    Nodes nodes = machines();
    nodes.crossing = exchange ? Crossing::exchange : Crossing::rings;
    return nodes;
}

// ---- the cards' clocks --------------------------------------------------------------------------

using Clock = std::chrono::steady_clock;

double machine_seconds() {
    return std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
}

void sleep_until(double machine_time) {
    const std::chrono::duration<double> left(machine_time - machine_seconds());
    if (left.count() > 0) std::this_thread::sleep_for(left);
}

static std::mutex card_mutex;                          // several streams use one card
static double sending_until = 0, receiving_until = 0;  // under the mutex

SlowTrip send_over_slow_link(int64_t bytes, double& since) {
    std::lock_guard lock(card_mutex);
    if (since == 0) since = std::max(machine_seconds(), sending_until);
    sending_until = std::max(since, sending_until) + double(bytes) / slow_links().bytes_per_second;
    return {since, sending_until};
}

double receive_over_slow_link(int64_t bytes, const SlowTrip& sent) {
    std::lock_guard lock(card_mutex);
    receiving_until =
        std::max(sent.begin, receiving_until) + double(bytes) / slow_links().bytes_per_second;
    return std::max(sent.end, receiving_until) + slow_links().hop_seconds;
}

// ---- NCCL ---------------------------------------------------------------------------------------

double slow_link_bytes(const Operation& x, const Communicator::Impl& group) {
    const auto far = [&](int peer) {
        return slow_links().between(group.world_ranks[peer], group.world_ranks[group.rank]);
    };
    const double n = group.size();
    int64_t far_ranks = 0, out = 0, in = 0;
    for (int r = 0; r < group.size(); ++r) far_ranks += far(r);
    const auto ring = [&](int64_t bytes) {
        return bytes_over_card(x.kind, double(bytes), {n, n - double(far_ranks), 1},
                               Crossing::ring);
    };
    const bool root = group.rank == x.root, far_from_root = x.root >= 0 && far(x.root);
    switch (x.kind) {
        case Collective::all_reduce:
        case Collective::reduce_scatter: return ring(x.in_bytes);
        case Collective::all_gather: return ring(x.out_bytes);
        case Collective::broadcast:
        case Collective::reduce: return far_ranks > 0 ? double(x.in_bytes) : 0;
        case Collective::gather: out = (root ? far_ranks : far_from_root) * x.in_bytes; break;
        case Collective::scatter: out = (root ? far_ranks : far_from_root) * x.out_bytes; break;
        case Collective::all_to_all:
            for (int r = 0; r < group.size(); ++r) {
                out += far(r) * (x.send_begin[r + 1] - x.send_begin[r]);
                in += far(r) * (x.recv_begin[r + 1] - x.recv_begin[r]);
            }
            break;
        case Collective::send_recv:
            for (const Operation::Message& m : x.messages)
                (m.send ? out : in) += far(m.peer) * m.bytes;
            break;
        case Collective::barrier: break;
    }
    return double(std::max(out, in));
}

}  // namespace ultrascale
