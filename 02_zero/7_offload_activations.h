// With full recomputation a layer keeps only its input. With --offload activations that input is in
// the host's memory from the layer's forward to its backward ("P_a+cpu" of ZeRO-R: Rajbhandari et
// al. 2020, section 6.1). However deep the model is, the device holds at most one input besides
// that of the layer at work.
//
//     compute               forward L0 | forward L1 | forward L2 | backward L2 | backward L1 | ...
//     copies to the host    x0         | x1         |            |             |
//     copies to the device             |            |            | x1          | x0
//
// The last layer's input stays, because its backward comes next. A copy has the time of one layer.
// It moves h e bytes a token, and a layer's forward computes about 24 h^2 FLOP a token, so it is
// hidden if
//     e / (24 h) * FLOP/s / (bytes/s of the link to the host) < 1,
// whatever the batch: at h = 4096 with 400 TFLOP/s and 50 GB/s the ratio is 0.16.
#pragma once

#include <memory>
#include <vector>

#include "core/error.h"
#include "core/stream.h"
#include "core/trace.h"
#include "model/llama.h"

namespace ultrascale::zero {

// The kept inputs of all layers, for one micro-batch at a time.
class ActivationsOnHost {
public:
    explicit ActivationsOnHost(int64_t layers) : inputs_(size_t(layers)) {}

    // The factory of layers' checkpoints that keep the inputs here. It must outlive the model.
    ModuleFactories::Factory<Checkpoint, const ModulePath&> checkpoints() {
        return [this](const ModulePath& path) {
            return std::make_unique<OnHost>(*this, size_t(path.layer));
        };
    }
    int64_t bytes_to_host() const { return to_host_bytes_; }  // since the start
    int64_t bytes_to_device() const { return to_device_bytes_; }

private:
    struct Input {
        Tensor host;    // (B, T, h), allocated once
        Tensor device;  // while it is copied, in either direction
        Event copied = {};
    };
    class OnHost : public Checkpoint {
    public:
        OnHost(ActivationsOnHost& all, size_t layer) : all_(all), layer_(layer) {}
        void keep(const Tensor& x, Saved& saved, Context& context) override {
            if (layer_ > 0) all_.drop(layer_ - 1);
            if (layer_ + 1 == all_.inputs_.size()) return Checkpoint::keep(x, saved, context);
            all_.store(layer_, x);
        }
        Tensor take(Saved& saved, Context& context) override {
            const bool last = layer_ + 1 == all_.inputs_.size();
            Tensor x = last ? Checkpoint::take(saved, context) : all_.fetched(layer_);
            if (layer_ > 0) all_.fetch(layer_ - 1);
            return x;
        }

    private:
        ActivationsOnHost& all_;
        size_t layer_;
    };

    void store(size_t layer, const Tensor& x) {
        Input& input = inputs_[layer];
        check(!input.device, "--offload activations: one micro-batch at a time");
        if (!input.host || input.host.shape() != x.shape())
            input.host = Tensor::empty(x.shape(), x.dtype(), Memory::host);
        input.device = x;
        input.copied = copy(layer, input.host, x, to_host_);
        to_host_bytes_ += x.bytes();
    }
    // The next layer's forward begins: this input's storage is free as soon as it has been copied.
    void drop(size_t layer) {
        compute_stream().wait(inputs_[layer].copied);
        inputs_[layer].device = {};
    }
    void fetch(size_t layer) {
        Input& input = inputs_[layer];
        input.device = Tensor::empty(input.host.shape(), input.host.dtype(), Memory::activation);
        input.copied = copy(layer, input.device, input.host, to_device_);
        to_device_bytes_ += input.host.bytes();
    }
    Tensor fetched(size_t layer) {
        compute_stream().wait(inputs_[layer].copied);
        return std::exchange(inputs_[layer].device, {});
    }
    // After what the compute stream has been given so far: the forward that makes x, or the last
    // use of the storage that is written to.
    static Event copy(size_t layer, Tensor to, const Tensor& from, Stream& stream) {
        stream.wait(compute_stream().record());
        const Timestamp begin = trace_recording() ? Timestamp::in(stream) : Timestamp();
        copy_async(to, from, stream);
        if (trace_recording())
            trace_span({.name = "copy",
                        .of = fmt::format("layers.{} input", layer),
                        .lane = stream.name(),
                        .bytes = double(to.bytes())},
                       begin, Timestamp::in(stream));
        return stream.record();
    }

    std::vector<Input> inputs_;  // of each layer
    int64_t to_host_bytes_ = 0, to_device_bytes_ = 0;
    Stream to_host_{"inputs to host"}, to_device_{"inputs to device"};
};

}  // namespace ultrascale::zero
