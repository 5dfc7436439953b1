// One copy of a row for each destination instead of each expert (--dispatch rank). If a token
// chooses several experts of one rank, its row travels there once, with the numbers of the experts
// and their weights; that rank sums their outputs, and one row travels back. With 64 experts and k
// = 6 two H200s send 1.91 GiB a step instead of 6.00 (MEASURED.md).
//
//     token 5: experts 0, 1, 6      to rank 0: row 5, experts 0 1, their weights
//     (4 experts a rank)            to rank 1: row 5, expert 6, its weight
//
// With k choices and n ranks the expected number of copies is n (1 - C(E - E/n, k) / C(E, k))
// instead of k: with 128 experts and 8 choices over 8 ranks 5.34 instead of 8. The sum of a token's
// outputs is now added in two steps, inside each rank and then over ranks, and so rounds
// differently.
//
// A stage is such a trip over any group of ranks. 9_node_limited.h combines two stages, over nodes
// and inside a node.
#pragma once

#include "kernels/ops_experts.h"
#include "token_dispatcher.h"

namespace ultrascale::expert_parallel {

// Rows on their way. Each carries its token's experts, or -1 for experts that are not where it
// goes.
struct RowsWithExperts {
    Tensor rows, weights, experts;  // (M, h), (M, k) fp32, (M, k) int32
};

// The memory in which rows arrive, one transfer after the other. Between GPUs of one machine it is
// symmetric memory with room for the most rows that can come, N from each rank. So the senders'
// copy engines write into it, which is faster than NCCL's kernels and occupies no multiprocessors.
// If a forward and a backward run beside each other, each needs one of its own.
class ReceiveBuffer {
public:
    // Memory for `count` rows, which are never more than `most`; `most` is the same on all ranks.
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
    // 0 without symmetric memory.
    int64_t bytes() const { return buffer_.bytes(); }

private:
    Tensor buffer_;
};

class DispatchStage {
public:
    // Rank r of the group receives the rows for `each` experts, beginning with expert r * each.
    // The buffers, for forward and for backward, must outlive the stage; without them, rows arrive
    // in memory of their own.
    DispatchStage(const Communicator& group, int64_t each, ReceiveBuffer* forward = nullptr,
                  ReceiveBuffer* backward = nullptr)
        : group_(group), each_(each), receive_buffer_(forward), of_backward_(backward) {}

    // Sends rows. Returns the weights and the experts of those that will arrive; at the
    // destination, experts are counted from the rank's first one.
    RowsWithExperts start_dispatch(const RowsWithExperts& in, Stream& stream) {
        const Tensor counts = find_positions(in.experts);
        const Event counted = compute_stream().record();
        // While the host waits for the counts, the device sorts the rows to be sent, in memory for
        // the largest possible number.
        const int64_t k = in.experts.cols(), most = row_map_.numel();
        const Tensor rows = at_positions(in.rows, most), weights = at_positions(in.weights, most),
                     named = numbers({most, k});
        ops::experts_of_rows(named, row_map_, in.experts, each_);
        set_split_sizes(read_counts(counts, counted));
        const int64_t n = split_sizes_.sent();
        send(rows.slice(0, n), stream);  // first, as they take longest
        const RowsWithExperts out{.weights = activation({split_sizes_.received(), k}, DType::fp32),
                                  .experts = numbers({split_sizes_.received(), k})};
        exchange_rows(group_, out.experts, named.slice(0, n), split_sizes_.to, split_sizes_.from);
        exchange_rows(group_, out.weights, weights.slice(0, n), split_sizes_.to, split_sizes_.from);
        return out;
    }
    // Sends the gradient of what came back: for each row of `from` one, on the same way as before.
    void start_dispatch(const Tensor& from, Stream& stream) {
        receive_buffer_ = of_backward_;
        send(at_positions(from, split_sizes_.sent()), stream);
    }
    Tensor finish_dispatch() {
        in_flight_.work.wait();
        return std::exchange(in_flight_.rows, {});
    }
    int64_t tokens() const { return row_map_.rows(); }
    Dispatched::Exchange exchange() const { return {&group_, split_sizes_}; }

    struct InFlight {
        Tensor rows;
        Work work;
    };
    // A row goes back for each one that arrived: the experts' output, or gradients. The gradients
    // of the rows' weights go back beside them, in memory of their own.
    enum class Payload { rows, weights };
    InFlight start_combine(Payload payload, const Tensor& rows, Stream& stream) const {
        const Tensor home = payload == Payload::rows
                                ? arriving(split_sizes_.sent(), rows)
                                : activation({split_sizes_.sent(), rows.cols()}, rows.dtype());
        return {home, exchange_rows(group_, home, rows, counts_back(), stream)};
    }
    // y (N, any) = residual + the sum of a token's rows over the ranks that it was sent to, in the
    // order of the ranks.
    void add_back(Tensor y, InFlight back, const Tensor& residual = {}) const {
        back.work.wait();
        ops::sum_rows(y, back.rows, row_map_, residual);
    }

private:
    static Tensor numbers(Shape shape) {
        return Tensor::empty(std::move(shape), DType::int32, Memory::workspace);
    }
    // Finds where each token's rows are among those that leave, by rank. Returns each rank's number
    // of rows for each rank (from, to), which shows where in the others' memory this rank's rows
    // will go.
    Tensor find_positions(const Tensor& experts) {
        const int64_t N = experts.rows(), n = group_.size(), me = group_.rank();
        const Tensor ranks_of = numbers({N, n}), order = numbers({N * n}), all = numbers({n, n}),
                     mine = all.slice(me, me + 1);
        row_map_ = numbers({N, n});
        ops::ranks_of_experts(ranks_of, experts, each_);
        ops::sort_by_expert(mine, order, row_map_, ranks_of);  // a rank here, not an expert
        if (n > 1) group_.all_gather(all, mine);
        return all;
    }
    void set_split_sizes(std::vector<int32_t> counts) {
        const size_t n = size_t(group_.size()), me = size_t(group_.rank());
        counts_ = std::move(counts);
        split_sizes_ = {};
        for (size_t r = 0; r < n; ++r) {
            split_sizes_.to.push_back(counts_[me * n + r]);
            split_sizes_.from.push_back(counts_[r * n + me]);
        }
    }
    void send(const Tensor& rows, Stream& stream) {
        in_flight_.rows = arriving(split_sizes_.received(), rows);
        in_flight_.work = exchange_rows(group_, in_flight_.rows, rows, counts_, stream);
    }
    // Memory for `count` rows like these; at most N of them come from each rank, or go to it.
    Tensor arriving(int64_t count, const Tensor& like) const {
        if (!receive_buffer_) return activation({count, like.cols()}, like.dtype());
        return receive_buffer_->rows(group_, count, tokens() * group_.size(), like.cols(),
                                     like.dtype());
    }
    std::vector<int32_t> counts_back() const {
        const size_t n = size_t(group_.size());
        std::vector<int32_t> back(counts_.size());
        for (size_t i = 0; i < counts_.size(); ++i) back[i % n * n + i / n] = counts_[i];
        return back;
    }
    Tensor at_positions(const Tensor& from, int64_t count) const {
        const Tensor rows = activation({count, from.cols()}, from.dtype());
        ops::scatter_rows(rows, from, row_map_);
        return rows;
    }

    const Communicator& group_;
    int64_t each_;
    ReceiveBuffer *receive_buffer_, *of_backward_;
    std::vector<int32_t> counts_;  // rows from rank r to rank s: r * ranks + s
    SplitSizes split_sizes_;       // this rank's
    Tensor row_map_;               // (N, ranks)
    InFlight in_flight_;
};

class RankDispatcher : public TokenDispatcher {
public:
    // `stages`: the way from the token's rank to its experts' rank; each rank has G experts.
    RankDispatcher(std::vector<DispatchStage> stages, int64_t G, Stream& stream)
        : stages_(std::move(stages)), G_(G), stream_(stream) {}

    void permute(const Tensor& x, const Routed& routed) override {
        at_ = {x, routed.weights, routed.experts};
    }
    void start_dispatch(int64_t) override {
        if (dy_)
            stages_[0].start_dispatch(dy_, stream_);
        else
            start_dispatch_with_experts(0);
    }
    ExpertRows finish_dispatch(int64_t) override {
        if (dy_) return {gradient_of_rows(), {}};
        for (size_t i = 0; i < stages_.size(); ++i) {
            if (i > 0) start_dispatch_with_experts(i);
            at_.rows = stages_[i].finish_dispatch();
        }
        const RowsWithExperts here = std::exchange(at_, {});
        const ExpertRows in{activation({at_experts_, here.rows.cols()}, here.rows.dtype()),
                            std::exchange(counts_, {}), activation({at_experts_, 1}, DType::fp32)};
        ops::scatter_rows(in.rows, here.rows, row_map_);
        ops::scatter_rows(in.weights, column(here.weights), column(row_map_));
        return in;
    }
    // Sums the outputs of a row's experts here, so that one row goes back.
    void start_combine(int64_t, ExpertRows rows) override {
        if (rows.weights) {
            const Tensor weights = activation(row_map_.shape(), DType::fp32);
            ops::sum_rows(column(weights), std::exchange(rows.weights, {}), column(row_map_));
            weights_ =
                stages_.back().start_combine(DispatchStage::Payload::weights, weights, stream_);
        }
        const Tensor sums = activation({row_map_.rows(), rows.rows.cols()}, rows.rows.dtype());
        ops::sum_rows(sums, std::exchange(rows.rows, {}), row_map_);
        rows_ = stages_.back().start_combine(DispatchStage::Payload::rows, sums, stream_);
    }
    void finish_combine(Tensor y, const Tensor& residual) override {
        combine_over_stages(DispatchStage::Payload::rows, y, std::move(rows_), residual);
    }
    void begin_backward(const Tensor& dy) override { dy_ = dy; }
    void end_backward_of_weights(Tensor dweights) override {
        // Only one rank has the weight's gradient of a choice; the others contribute zero.
        combine_over_stages(DispatchStage::Payload::weights, dweights, std::move(weights_), {});
    }
    void end_backward(Tensor dx) override {
        combine_over_stages(DispatchStage::Payload::rows, dx, std::move(rows_), dx);
    }
    Dispatched dispatched(int64_t layer, bool backward_follows, Tensor experts) const override {
        Dispatched d{layer, backward_follows, std::move(experts), {}, at_experts_, {}};
        for (const DispatchStage& stage : stages_) d.exchanges.push_back(stage.exchange());
        return d;
    }

private:
    void start_dispatch_with_experts(size_t i) {
        at_ = stages_[i].start_dispatch(at_, stream_);
        if (i + 1 == stages_.size()) sort(at_.experts);
    }
    // Sorts the rows by expert while they travel. The host waits for their number.
    void sort(const Tensor& experts) {
        row_map_ = activation(experts.shape(), DType::int32);
        counts_ = Tensor::empty({G_}, DType::int32, Memory::workspace);
        const Tensor order = activation({row_map_.numel()}, DType::int32);
        ops::sort_by_expert(counts_, order, row_map_, experts);
        const std::vector<int32_t> counts = read_counts(counts_);
        at_experts_ = std::reduce(counts.begin(), counts.end(), int64_t(0));
    }
    Tensor gradient_of_rows() {
        Tensor at;
        for (size_t i = 0; i < stages_.size(); ++i) {
            if (i > 0) stages_[i].start_dispatch(at, stream_);
            at = stages_[i].finish_dispatch();
        }
        const Tensor drows = activation({at_experts_, at.cols()}, at.dtype());
        ops::scatter_rows(drows, at, row_map_);
        return drows;
    }
    // Rows that have gone back over the last stage go back over the others; then they are added to
    // y.
    void combine_over_stages(DispatchStage::Payload payload, Tensor y, DispatchStage::InFlight back,
                             const Tensor& residual) {
        for (size_t i = stages_.size() - 1; i > 0; --i) {
            const Tensor sums = activation({stages_[i].tokens(), y.cols()}, y.dtype());
            stages_[i].add_back(sums, std::move(back));
            back = stages_[i - 1].start_combine(payload, sums, stream_);
        }
        stages_[0].add_back(y, std::move(back), residual);
    }

    std::vector<DispatchStage> stages_;
    int64_t G_;
    Stream& stream_;
    RowsWithExperts at_;       // on their way, forward
    Tensor dy_;                // in backward
    Tensor row_map_, counts_;  // (M, k) of the rows that arrived; (G) of each expert
    int64_t at_experts_ = 0;
    DispatchStage::InFlight rows_, weights_;  // on their way back
};

}  // namespace ultrascale::expert_parallel
