// Gradients that ranks sum in 8 bits: a quarter of fp32's bytes on the wire.
//
//     1. all ranks agree on each tensor's largest magnitude     one all-reduce (max) of all
//     2. round:  q = gradient * f / scale, scale = amax / 448
//     3. sum:    each rank gets a slice of all ranks' q         all-to-all,  (n-1)/n bytes
//                adds them up in fp32, in rank order, rounds the sum to e4m3
//                and gives the sum to all                       all-gather,  (n-1)/n bytes
//     4. sum of gradients = scale / f * sum of q
//
// Step 3 is an all-reduce whose sums are rounded only once. (A ring, which passes partial sums on,
// would round them at every hop: with 64 ranks most of the signal is lost, see --demo all-reduce.)
// The sums are numbers of e4m3 again, so the factor f decides what they lose:
//
//     post        f = 1       n equal numbers near the largest: the sum is n times as large, and
//                             saturates
//     pre         f = 1/n     nothing can saturate, but small numbers vanish, the more the larger n
//                             is
//     automatic   f = mu      begins at 1/n, doubles over 1,000 steps, and halves when more than 1
//                             of 100,000 sums is at the largest number
//
// FP8-LM: Peng et al. 2023 (arXiv 2310.18313), section 2.1.
#pragma once

#include <algorithm>
#include <cmath>

#include "8_storage.h"
#include "comm/mesh.h"
#include "kernels/ops_quantised.h"
#include "kernels/ops_ranges.h"

namespace ultrascale::mixed_precision {

class Fp8AllReduce {
public:
    // The factor mu is a part of the training's state; in a new run it is 1 / ranks.
    Fp8AllReduce(SumScaling scaling, bool used, ParameterList& parameters, int ranks)
        : scaling_(scaling), mu_(1.0 / ranks) {
        if (!used) return;
        state_ = parameters.add_buffer("fp8_sum_factor", 1);
        ops::fill(state_, float(mu_));
    }

    // The factor for n ranks.
    double factor(int n) const {
        return scaling_ == SumScaling::pre ? 1.0 / n : scaling_ == SumScaling::post ? 1.0 : mu_;
    }
    // The share of the last step's sums that are at the format's largest number.
    double saturated() const { return elements_ > 0 ? double(counted_) / double(elements_) : 0; }

    // Sets gradients[i] (e4m3) with scales[i] (1) to the sum over `ranks` of sums[i], in fp32 or 16
    // bits. All ranks call it, with the same shapes.
    void operator()(const std::vector<Tensor>& gradients, const std::vector<Tensor>& scales,
                    const std::vector<Tensor>& sums, const Communicator& ranks) {
        const size_t tensors = sums.size();
        const int n = ranks.size();
        const Tensor amax = Tensor::zeros({int64_t(tensors)}, DType::fp32, Memory::workspace);
        for (size_t i = 0; i < tensors; ++i) {
            const ops::Quantised rough{gradients[i], scales[i]};  // written only to find its amax
            ops::quantise(rough, {}, as_matrix(sums[i]), {}, one(amax, i));
        }
        if (n == 1) return;
        ranks.all_reduce(amax, Reduce::max);
        const Tensor none = Tensor::zeros({1}, DType::fp32, Memory::workspace);
        saturated_ = Tensor::zeros({1}, DType::int32, Memory::workspace);
        elements_ = 0;
        for (size_t i = 0; i < tensors; ++i) {
            // scale = amax / 448 / f, or 1 / f for a tensor of zeros: a history of one step.
            ops::delayed_scale(scales[i], none, one(amax, i), 0, DType::e4m3);
            ops::scale(scales[i], float(1 / factor(n)));
            ops::quantise({gradients[i], scales[i]}, {}, as_matrix(sums[i]), {.given = true});
            sum_over_ranks(gradients[i], ranks);
            ops::count_saturated(saturated_, gradients[i]);
            elements_ += gradients[i].numel();
        }
    }

    // Called after the step, when the host waits anyway: adapts mu.
    void end_step() {
        if (!saturated_) return;
        counted_ = saturated_.to_host<int32_t>()[0];
        if (scaling_ != SumScaling::automatic) return;
        if (saturated() > 1e-5)
            mu_ = std::max(mu_ / 2, std::ldexp(1.0, -20));
        else
            mu_ = std::min(mu_ * std::exp2(1.0 / 1000), 1.0);
        ops::fill(state_, float(mu_));
    }
    // The number of elements, of so many, that each of n ranks sums.
    static int64_t slice(int64_t elements, int n) { return (elements + n - 1) / n; }
    void resume() {
        if (state_) mu_ = double(state_.to_host<float>()[0]);
    }

private:
    static Tensor one(const Tensor& all, size_t i) { return all.slice(int64_t(i), int64_t(i) + 1); }
    static Tensor as_matrix(const Tensor& t) { return t.view({t.rows(), t.cols()}); }

    static void sum_over_ranks(Tensor x, const Communicator& ranks) {
        const int n = ranks.size();
        const int64_t elements = x.numel(), part = slice(elements, n);
        const auto buffer = [](int64_t size, DType dtype) {
            return Tensor::zeros({size}, dtype, Memory::communication);
        };
        const Tensor padded = buffer(part * n, DType::e4m3), came = buffer(part * n, DType::e4m3);
        ops::copy(padded.slice(0, elements), x.view({elements}));
        ranks.all_to_all(came, padded);
        const Tensor sum = buffer(part, DType::fp32), next = buffer(part, DType::fp32);
        for (int r = 0; r < n; ++r) {
            ops::copy(next, came.slice(r * part, (r + 1) * part));
            ops::add(sum, next);
        }
        ops::copy(came.slice(0, part), sum);
        ranks.all_gather(padded, came.slice(0, part));
        ops::copy(x.view({elements}), padded.slice(0, elements));
    }

    SumScaling scaling_;
    double mu_;
    int64_t counted_ = 0, elements_ = 0;  // the last step's saturated sums; all its sums
    Tensor state_, saturated_;            // (1) mu; (1) counted so far
};

}  // namespace ultrascale::mixed_precision
