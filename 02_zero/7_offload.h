// With --offload optimizer the optimizer's states live in the host's memory, and the host makes the
// update (ZeRO-Offload: Ren et al. 2021, https://arxiv.org/abs/2101.06840). A rank's device then
// holds no states at all. The host holds, for each parameter that the rank owns, Adam's two
// moments, the master weight and a copy of the device's weight; besides, it has two buffers for one
// unit's gradients each.
//
// Each unit is first copied, then updated, then copied back, on two streams and the host's threads.
// Different units are in different phases at the same time:
//
//     copies to the host     gradients L1 | gradients L2 | gradients L3 | ...
//     host                                | AdamW L1     | AdamW L2     | AdamW L3     | ...
//     copies to the device                               | weights L1   | weights L2   | weights L3
//
// So the update takes about as long as the slowest of the three. The gradient's norm must be known
// before the first unit's update, so the device idles meanwhile: that is the price of offloading.
// (1.7 B parameters on four H200s: 4.8 GiB less on a device, and a step of 662 ms after 352.)
#pragma once

#include <algorithm>
#include <deque>
#include <functional>
#include <optional>

#include "3_zero.h"
#include "core/stream.h"
#include "train/step.h"

namespace ultrascale::zero {

class OffloadedUpdate {
public:
    // Bytes that were copied in one direction, or that the host's update read and wrote, and the
    // time it took.
    struct Part {
        double bytes = 0, seconds = 0;
        struct Span {
            Timestamp begin, end;
        };
        std::deque<Span> spans;  // of copies that may not have finished
        void add_up() {
            for (const Span& span : spans) seconds += span.end.seconds() - span.begin.seconds();
            spans.clear();
        }
    };

    // `values`, `grads`: this rank's shard of each unit. The values are copied to the host now.
    OffloadedUpdate(const FlatLayout& layout, const std::vector<Tensor>& values,
                    const std::vector<Tensor>& grads)
        : layout_(layout), values_(values), grads_(grads) {
        int64_t largest = 0;
        for (const Tensor& shard : values) {
            host_values_.push_back(Tensor::empty(shard.shape(), shard.dtype(), Memory::host));
            shard.copy_to_host(host_values_.back().data());
            largest = std::max(largest, shard.numel());
        }
        for (Tensor& buffer : host_grads_)
            buffer = Tensor::empty({largest}, grads.front().dtype(), Memory::host);
        host_norm_ = Tensor::zeros({1}, DType::fp64, Memory::host);
    }
    // Returns where the optimizer of a unit finds its weights and gradients.
    const Tensor& values(size_t unit) const { return host_values_[unit]; }
    Tensor grads(size_t unit) const { return host_grads_[unit % 2].slice(0, grads_[unit].numel()); }

    // Makes one update. It calls ready(unit) as soon as work that is queued next on the compute
    // stream may read the unit's new weights.
    void run(std::vector<AdamW>& optimizers, double lr, const Tensor& squared_norm,
             const std::function<void(size_t)>& ready) {
        // Waits for the device: then all gradients are complete and all earlier copies done.
        *host_norm_.as<double>() = scalar(squared_norm);
        if (steps_ == 1)  // leave out the first update, which also allocates
            fetched_ = {}, updated_ = {}, sent_ = {}, seconds_ = 0;
        fetched_.add_up(), sent_.add_up();
        const double begin = now_seconds();
        Event arrived = copy(0, grads(0), grads_[0], to_host_, fetched_);
        const bool fp32 = values_.front().dtype() == DType::fp32;
        for (size_t u = 0; u < optimizers.size(); ++u) {
            arrived.synchronize();
            // The other buffer is free, because the previous unit has been updated.
            if (u + 1 < optimizers.size())
                arrived = copy(u + 1, grads(u + 1), grads_[u + 1], to_host_, fetched_);
            const double update_begin = now_seconds();
            optimizers[u].step(lr, host_norm_);
            const double update_end = now_seconds();
            const double bytes = 24.0 * double(values_[u].numel()) + double(grads_[u].bytes()) +
                                 (fp32 ? 0 : double(values_[u].bytes()));
            if (trace_recording())
                trace_span({.name = "AdamW on the host",
                            .of = layout_[u].name,
                            .lane = "host",
                            .bytes = bytes},
                           update_begin, update_end);
            updated_.seconds += update_end - update_begin, updated_.bytes += bytes;
            compute_stream().wait(copy(u, values_[u], host_values_[u], to_device_, sent_));
            ready(u);
        }
        to_device_.synchronize();
        seconds_ += now_seconds() - begin;
        ++steps_;
    }

    // Returns how long the parts of the updates took, without the first step if there are more.
    struct Times {
        Part fetched, updated, sent;  // gradients to the host, AdamW, weights to the device
        double seconds, steps;        // of whole updates, in which the three overlap
    };
    Times times() {
        fetched_.add_up(), sent_.add_up();
        return {fetched_, updated_, sent_, seconds_, double(std::max<int64_t>(steps_ - 1, 1))};
    }

private:
    Event copy(size_t unit, Tensor to, const Tensor& from, Stream& stream, Part& part) const {
        part.spans.push_back({Timestamp::in(stream)});
        copy_async(to, from, stream);
        part.spans.back().end = Timestamp::in(stream);
        if (trace_recording())
            trace_span({.name = "copy",
                        .of = layout_[unit].name,
                        .lane = stream.name(),
                        .bytes = double(to.bytes())},
                       part.spans.back().begin, part.spans.back().end);
        part.bytes += double(to.bytes());
        return stream.record();
    }

    const FlatLayout& layout_;
    std::vector<Tensor> values_, grads_;  // on the device: (shard) of each unit
    std::vector<Tensor> host_values_;     // likewise on the host
    Tensor host_grads_[2], host_norm_;    // (the largest shard), (1) fp64
    Stream to_host_{"copies to host"}, to_device_{"copies to device"};
    Part fetched_, updated_, sent_;
    double seconds_ = 0;  // of whole updates
    int64_t steps_ = 0;   // since the start
};

// The stages whose update is on the host.
struct OnHost {
    std::optional<OffloadedUpdate> update;
};
// Stage: Zero1, Zero2 or Zero3, which updates its shards in this way.
template <class Stage>
class Offloaded : public Stage, public OnHost {
public:
    using Stage::Stage;

protected:
    void make_optimizers() override {
        update.emplace(this->layout_, this->value_shards_, this->grad_shards_);
        for (size_t u = 0; u < this->layout_.size(); ++u)
            this->make_optimizer(u, update->values(u), update->grads(u));
    }
    void update_shards(double lr, const Tensor& squared_norm,
                       const std::function<void(size_t)>& ready) override {
        update->run(this->optimizers_, lr, squared_norm, ready);
    }
};

}  // namespace ultrascale::zero
