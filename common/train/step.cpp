#include "step.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "core/error.h"
#include "core/ops.h"
#include "finite.h"
#include "stop.h"

namespace ultrascale {

// The number of targets over which the loss of `count` samples from `first` on is averaged.
static int64_t counted_targets(const DataLoader& loader, int64_t first, int64_t count) {
    const int64_t counted = loader.counted_targets(first, count);
    if (counted == 0)
        user_error("samples {} to {}: every target is ignored, so there is no loss", first,
                   first + count - 1);
    return counted;
}

Step::Step(const DataLoader& loader, const DataSlice& slice, int64_t number, int64_t first_sample,
           int64_t sequences)
    : number(number),
      sequences(sequences),
      accumulated(sequences / slice.count / slice.micro_batch),
      sums(Tensor::zeros({2}, DType::fp64, Memory::workspace)),
      loss(sums.slice(0, 1)),
      loader_(loader),
      slice_(slice),
      first_sample_(first_sample) {
    if (slice.mean == MeanOver::own_samples)
        for (int64_t m = 0; m < accumulated; ++m)
            counted_ += counted_targets(loader, first_sample_of(m), slice.micro_batch);
    else
        counted_ = counted_targets(loader, first_sample, sequences);
}

void Step::call_hooks(std::initializer_list<Hooks*> hooks) {
    hooks_ = {};
    if (explain_enabled()) hooks_.add(&explain_);
    for (Hooks* one : watch_first) hooks_.add(one);
    for (Hooks* one : hooks) hooks_.add(one);
    for (Hooks* one : watch) hooks_.add(one);
}

Step::MicroBatches Step::micro_batches(std::initializer_list<Hooks*> hooks) {
    call_hooks(hooks);
    return {this};
}

Context Step::micro_batch(int64_t m) {
    const int64_t first = first_sample_of(m);
    const HostBatch whole =
        phase("read data", [&] { return loader_.batch(first, slice_.micro_batch); });
    if (on_batch) on_batch(m, first, whole);
    const int64_t own = std::max<int64_t>(whole.counted_targets, 1) * accumulated;
    const int64_t mean_over = slice_.mean == MeanOver::micro_batch ? own : counted_;
    return {.batch = to_device(slice_.part ? slice_.part(whole) : whole),
            .token_weight = float(1 / double(mean_over)),
            .loss = loss,
            .micro_batch = int(m),
            .hooks = hooks_.empty() ? nullptr : &hooks_};
}

MicroBatch::MicroBatch(Step& step, int64_t m) : span_("micro-batch", m) {
    static_cast<Context&>(*this) =
        step.read_ ? *std::exchange(step.read_, std::nullopt) : step.micro_batch(m);
    // Operations that are traced are timed one by one.
    if (step.recordings)
        step.recordings->begin(*this, m == step.accumulated - 1, !step.first && !trace_recording());
}

int64_t Step::after_replays(int64_t m) {
    if (!recordings) return m;
    for (; m < accumulated; ++m) {
        read_.emplace(micro_batch(m));
        if (trace_recording() || !recordings->replay(*read_, m == accumulated - 1)) return m;
    }
    read_.reset();
    return m;
}

void Step::vote() {
    const Tensor votes = sums.slice(1, 2);
    if (norm_votes && *norm_votes)
        ops::copy(votes, *norm_votes);
    else
        add_vote(votes);
}

void Step::sum_loss(const Communicator& ranks) {
    vote();
    if (ranks.size() > 1) phase("loss", [&] { ranks.all_reduce(sums); });
}

double Step::finish(const Tensor& squared_norm, double scale) {
    const std::vector<double> on_host = sums.to_host<double>();
    const double squared = scalar(squared_norm);
    finish(on_host[0] / scale, squared, on_host[1]);
    return squared;
}

void Step::finish(double loss, double squared_norm, double votes) {
    const bool alone = Communicator::world().size() == 1;  // then nothing was summed
    stops_ = votes > 0 || (alone && stop_signal() != 0);
    for (double* value : {&loss, &squared_norm})
        if (std::isnan(*value)) *value = std::numeric_limits<double>::quiet_NaN();  // never "-nan"
    if (!skipped)
        not_finite_ =
            ultrascale::not_finite({{"loss", loss}, {"gradient norm", std::sqrt(squared_norm)}});
    if (on_finish) on_finish(loss, squared_norm);
}

}  // namespace ultrascale
