// Stages 2 and 3 can send fewer bits: of the weights with --gather-dtype fp8, of the gradients with
// --reduce-dtype fp8 or bf16. In fp8 a quarter of fp32's bytes travel, and the loss changes in its
// third digit (TRADES.md). What a rank keeps stays as it is: the update adds to exact shards.
//
//     gather   rank r rounds its shard to e4m3, with one scale for the shard's largest magnitude;
//              an all-gather of the numbers and one of the scales give everybody all of them. All
//              ranks multiply out all shards, their own too, so they compute with the same weights
//     reduce   every rank rounds each of the n slices of its gradient, with a scale for each; slice
//              r goes to rank r (all-to-all), which multiplies out what came and adds it up in
//              fp32, in rank order. So each number is rounded once, and not at every hop; and an
//              all-to-all sends (n-1)/n of the tensor, as the reduce-scatter does that it replaces
//
// A scale is a power of two: numbers of at most four significant bits stay exact, and the scale's
// own product, too. A number keeps four bits (a relative error of at most 1/16) if it is at least
// 2^-13 of the largest; below 2^-19 it vanishes.
//
// Source: ZeRO++ (Wang et al. 2023, arXiv 2306.10209), qwZ and qgZ, there in blocks of integers.
#pragma once

#include <functional>
#include <memory>
#include <numeric>

#include "6_zero3.h"
#include "comm/comm.h"
#include "core/ops.h"
#include "core/ops_fp8.h"

namespace ultrascale::zero {

// n parts of a flat tensor, one after the other, in fewer bits.
class QuantisedTransfer {
public:
    QuantisedTransfer() = default;
    // For `elements` in n parts. sent: fp8 or bf16.
    QuantisedTransfer(Sent sent, int64_t elements, int n,
                      const std::shared_ptr<Allocator>& memory = {})
        : n_(n),
          values_(Tensor::empty({elements}, sent == Sent::fp8 ? DType::e4m3 : DType::bf16,
                                Memory::communication, memory)) {
        if (sent == Sent::fp8)
            scales_ = Tensor::empty({n}, DType::fp32, Memory::communication, memory);
    }
    static int64_t bytes(Sent sent, int64_t elements, int64_t n) {
        return sent == Sent::fp8 ? elements + 4 * n : 2 * elements;
    }
    static int64_t calls(Sent sent) { return sent == Sent::fp8 ? 2 : 1; }
    explicit operator bool() const { return bool(values_); }

    // The first rounds x, of elements / n, to part p; the second does the opposite.
    void put(int p, const Tensor& x) const {
        if (!scales_) return ops::copy(part(values_, p), x);
        ops::quantise({as_matrix(part(values_, p)), part(scales_, p)}, {}, as_matrix(x),
                      {.powers_of_two = true});
    }
    void get(const Tensor& x, int p) const {
        if (!scales_) return ops::copy(x, part(values_, p));
        ops::dequantise(as_matrix(x), {as_matrix(part(values_, p)), part(scales_, p)},
                        ops::ScaleGroup::tensor);
    }
    // Gathers all ranks' parts, where this rank has put its own.
    void gather(const Communicator& ranks, Stream& stream) {
        values_arrive_ = ranks.all_gather(values_, part(values_, ranks.rank()), stream);
        if (scales_)
            scales_arrive_ = ranks.all_gather(scales_, part(scales_, ranks.rank()), stream);
    }
    // Brings the part that each rank has for this one.
    void exchange(const QuantisedTransfer& sent, const Communicator& ranks, Stream& stream) {
        values_arrive_ = ranks.all_to_all(values_, sent.values_, stream);
        if (scales_) scales_arrive_ = ranks.all_to_all(scales_, sent.scales_, stream);
    }
    void wait() { values_arrive_.wait(), scales_arrive_.wait(); }
    int parts() const { return n_; }

private:
    Tensor part(const Tensor& all, int p) const {
        const int64_t size = all.numel() / n_;
        return all.slice(p * size, (p + 1) * size);
    }
    // With long rows, which kernels read in packs.
    static Tensor as_matrix(const Tensor& x) {
        const int64_t columns = std::gcd(x.numel(), int64_t(1024));
        return x.view({x.numel() / columns, columns});
    }

    int n_ = 1;
    Tensor values_, scales_;  // (elements) e4m3 or bf16; (n) fp32
    Work values_arrive_, scales_arrive_;
};

// How a flat tensor travels among so many ranks: as it is where there is no other one.
inline Sent sent_among(Sent chosen, int64_t ranks) { return ranks == 1 ? Sent::plain : chosen; }

// Starts a reduction of `r.whole` to `r.sum`.
inline void start_reduction(GradientBuffers::Reduction& r, const Communicator& ranks, Sent chosen) {
    const Sent sent = sent_among(chosen, ranks.size());
    if (sent == Sent::plain) {
        r.work = ranks.reduce_scatter(r.sum, r.whole, Reduce::sum, communication_stream());
        return;
    }
    const int n = ranks.size();
    const int64_t size = r.sum.numel();
    const auto slice = [size, whole = r.whole](int p) {
        return whole.slice(p * size, (p + 1) * size);
    };
    const QuantisedTransfer mine(sent, r.whole.numel(), n);
    for (int p = 0; p < n; ++p) mine.put(p, slice(p));
    const auto came = std::make_shared<QuantisedTransfer>(sent, r.whole.numel(), n);
    came->exchange(mine, ranks, communication_stream());
    r.arrived = [came, slice, sum = r.sum] {
        came->wait();
        for (int p = 0; p < came->parts(); ++p) came->get(slice(p), p);  // the input is not needed
        const bool fp32 = sum.dtype() == DType::fp32;
        const Tensor all = fp32 ? sum : Tensor::empty(sum.shape(), DType::fp32, Memory::workspace);
        ops::copy(all, slice(0));
        for (int p = 1; p < came->parts(); ++p) ops::add(all, slice(p));
        if (!fp32) ops::copy(sum, all);
    };
}

// --reduce-dtype. Stage: Zero2 or Zero3.
template <class Stage>
class NarrowSums : public Stage {
public:
    using Stage::Stage;

protected:
    void start_sum(GradientBuffers::Reduction& r) override {
        start_reduction(r, this->ranks_of(r.unit), this->zero_.sums);
    }
};

// --gather-dtype, and --reduce-dtype with it.
class NarrowGathers : public NarrowSums<Zero3> {
public:
    using NarrowSums<Zero3>::NarrowSums;

    TrainingState start() override {
        transfers_.resize(layout_.size());
        return Zero3::start();
    }

protected:
    void gather(size_t u) override {
        const Communicator& ranks = ranks_of(u);
        if (sent_among(zero_.gathers, ranks.size()) == Sent::plain) return Zero3::gather(u);
        if (whole_[u] || transfers_[u]) return;
        const TraceName name = name_of(u);
        transfers_[u] = QuantisedTransfer(zero_.gathers, layout_[u].padded, ranks.size(),
                                          ranks.symmetric_memory());
        transfers_[u].put(ranks.rank(), value_shards_[u]);
        transfers_[u].gather(ranks, communication_stream());
    }
    // What has come becomes the parameters.
    void arrive(size_t u) override {
        Zero3::arrive(u);
        if (!transfers_[u]) return;
        const TraceName name = name_of(u);
        transfers_[u].wait();
        allocate(u);
        for (int r = 0; r < ranks_of(u).size(); ++r) {
            const Range shard = layout_.shard_of(u, r);
            transfers_[u].get(whole_[u].slice(shard.begin, shard.end), r);
        }
        transfers_[u] = {};
    }
    void release(size_t u) override {
        if (transfers_[u]) transfers_[u].wait(), transfers_[u] = {};
        Zero3::release(u);
    }

private:
    std::vector<QuantisedTransfer> transfers_;  // of each unit on its way
};

}  // namespace ultrascale::zero
