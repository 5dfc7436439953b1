// Needed by all ways of dispatching: the all-to-all itself, the host's wait for the counts, and the
// order in which a rank's experts need the rows that arrived.
#pragma once

#include <functional>
#include <numeric>

#include "comm/comm.h"
#include "core/ops.h"
#include "core/trace.h"
#include "model/activation.h"
#include "model/parts.h"

namespace ultrascale::expert_parallel {

// The numbers of rows for and from each rank of a group.
struct SplitSizes {
    std::vector<int64_t> to, from;
    int64_t sent() const { return std::reduce(to.begin(), to.end()); }
    int64_t received() const { return std::reduce(from.begin(), from.end()); }
};

// The dispatch of a layer's forward, for observers (lab/expert_run.h).
struct Dispatched {
    int64_t layer;
    bool backward_follows;  // false if the layer's forward runs again before its backward
    Tensor experts;         // (N, k): the choices
    Tensor row_map;         // (N, k): their rows, -1 if dropped; empty if none can be dropped
    int64_t at_experts;     // the rows that this rank's experts get
    // The exchanges of rows: one for each chunk of tokens, or for each stage (8_rank_dispatch.h).
    struct Exchange {
        const Communicator* group;
        SplitSizes sizes;
    };
    std::vector<Exchange> exchanges;
    // With a capacity, for each chunk: the choices of each expert (E), and how many it accepts.
    struct Accepted {
        Tensor counts;
        int64_t capacity;
    };
    std::vector<Accepted> accepted = {};
};
using SeeDispatch = std::function<void(const Dispatched&, const Context&)>;

// An all-to-all of rows over all ranks of `group`; `stream` may be one of communication.
inline Work exchange_rows(const Communicator& group, const Tensor& out, const Tensor& in,
                          const std::vector<int64_t>& to, const std::vector<int64_t>& from,
                          Stream& stream = compute_stream()) {
    std::vector<int64_t> send(to), receive(from);
    for (int64_t& n : send) n *= in.cols();
    for (int64_t& n : receive) n *= out.cols();
    return group.all_to_all(out, in, std::move(send), std::move(receive), stream);
}

// The host waits until the device has computed `counts`; --trace shows this as a span. Work queued
// after the event `counted` may still run.
inline std::vector<int32_t> read_counts(const Tensor& counts,
                                        const Event& counted = compute_stream().record()) {
    const OpSpan span("host waits for counts", 0, 0, "host");
    return counts.to_host<int32_t>(counted);
}

inline std::vector<int64_t> rows_by_rank(const std::vector<int32_t>& counts, int64_t ranks) {
    std::vector<int64_t> rows;
    const auto each = std::ptrdiff_t(counts.size()) / ranks;
    for (auto at = counts.begin(); at != counts.end(); at += each)
        rows.push_back(std::reduce(at, at + each, int64_t(0)));
    return rows;
}

// Puts rows that came from each rank, in the order of its experts, into this rank's order of
// experts, and back.
class RowsByExpert {
public:
    // n (ranks, G): rows from each rank for each of this rank's experts.
    RowsByExpert(const std::vector<int32_t>& n, int64_t ranks, int64_t G) {
        std::vector<int64_t> first(n.size() + 1, 0);
        std::partial_sum(n.begin(), n.end(), first.begin() + 1, std::plus<int64_t>());
        std::vector<int32_t> index, inverse(size_t(first.back())), counts(size_t(G), 0);
        for (int64_t g = 0; g < G; ++g)
            for (int64_t r = 0; r < ranks; ++r) {
                const size_t i = size_t(r * G + g);
                counts[size_t(g)] += n[i];
                for (int64_t row = first[i]; row < first[i] + n[i]; ++row) {
                    inverse[size_t(row)] = int32_t(index.size());
                    index.push_back(int32_t(row));
                }
            }
        const auto on_device = [](const std::vector<int32_t>& v) {
            return Tensor::from_host<int32_t>(v, {int64_t(v.size())}, Memory::workspace);
        };
        counts_ = on_device(counts);
        if (G == 1 || ranks == 1) return;  // they are in order
        index_ = on_device(index), inverse_ = on_device(inverse);
    }
    const Tensor& counts() const { return counts_; }  // (G)
    Tensor in_order(const Tensor& rows) const { return gathered(rows, index_); }
    Tensor as_they_came(const Tensor& rows) const { return gathered(rows, inverse_); }

private:
    static Tensor gathered(const Tensor& rows, const Tensor& index) {
        if (!index) return rows;
        const Tensor out = activation_like(rows);
        ops::gather_rows(out, rows, index);
        return out;
    }
    Tensor counts_, index_, inverse_;
};

inline Tensor column(const Tensor& t) { return t.view({t.numel(), 1}); }

}  // namespace ultrascale::expert_parallel
