// Computes what stages 2 and 3 hold besides their shards, and how often they communicate. It walks
// through a rank's passes as 5_zero2.h and 6_zero3.h do, with bytes instead of tensors, and works
// for any order of passes: several micro-batches may be in flight, a backward may be split (05).
//
//     before a pass    stage 3: + the whole parameters that it and the next passes read
//                      + a buffer for the unit's gradients, if the pass adds to them
//                      (--gather-dtype fp8: first in 8 bits, then for its own pass whole)
//     after it         complete gradients go to a reduce-scatter; the reduction before it has then
//                      ended:  - its buffer, - its sum
//                      stage 3: - the parameters that the next passes do not read
#pragma once

#include <algorithm>

#include "../8_narrow.h"

namespace ultrascale::zero {

// The bytes of communication buffers that a layer's passes hold for another technique inside the
// layers (in this chapter none).
struct InLayer {
    int64_t forward = 0, backward = 0;
};

class ZeroWalk {
public:
    ZeroWalk(const FlatLayout& layout, const std::vector<const Unit*>& units,
             const ZeroOptions& zero, DType values, DType grads, InLayer in_layer = {})
        : layout_(layout),
          units_(units),
          zero_(zero),
          in_layer_(in_layer),
          value_bytes_(dtype_bytes(values)),
          grad_bytes_(dtype_bytes(grads)),
          gathers_(layout.size()),
          reductions_(layout.size()),
          whole_(layout.size()),
          narrow_(layout.size()),
          buffer_(layout.size()),
          complete_(layout.size()) {
        for (const Unit* unit : units)
            for (const Parameter* parameter : unit->parameters) ++users_[parameter];
    }

    // `times`: how many micro-batches of the step this one represents. last: it is the step's last.
    // Several that are in flight at once count as one.
    void begin_micro_batch(bool last, int64_t times = 1) { last_ = last, times_ = times; }
    // Sets the buffers for the next passes, if they differ.
    void set_in_layer(InLayer bytes) { in_layer_ = bytes; }
    void pass(const Unit& unit, Pass pass) {
        const auto index = size_t(std::ranges::find(units_, &unit) - units_.begin());
        const size_t now = pass == Pass::forward ? index : 2 * units_.size() - 1 - index,
                     ahead = size_t(zero_.prefetch);
        const bool reads = zero_.stage == 3 && pass != Pass::backward_weight;
        if (reads)
            for (size_t u : flats_needed(layout_, units_, now, now + ahead, true)) gather(u);
        if (reads)
            for (size_t u : flats_needed(layout_, units_, now, now, true)) arrive(u);
        if (pass != Pass::forward || unit.gradients_in_forward)
            for (size_t u : layout_.flats_of(unit)) make_room(u);
        if (pass != Pass::backward_weight && unit.name.starts_with("layers.")) {
            const int64_t bytes = pass == Pass::forward ? in_layer_.forward : in_layer_.backward;
            hold(bytes), held_ -= bytes;
        }
        for (const Parameter* parameter : unit.parameters)
            if (contributes(*parameter, pass)) contribute(*parameter);
        for (size_t u : layout_.flats_of(unit))
            if (const size_t all = layout_[u].segments.size(); complete_[u] >= all)
                complete_[u] -= all, reduce(u);
        if (!reads || (zero_.keep_gathered && !last_)) return;
        const std::vector<size_t> kept = flats_needed(
            layout_, units_, now + 1, now + passes_kept_ahead(zero_, units_.size()), true);
        for (size_t u = 0; u < layout_.size(); ++u)
            if (std::ranges::find(kept, u) == kept.end()) release(u);
    }
    void end_micro_batch() {
        for (size_t u = 0; u < layout_.size(); ++u)
            if (buffer_[u]) complete_[u] = 0, reduce(u);
        wait(0);
        for (size_t u = 0; last_ && u < layout_.size(); ++u) release(u);
    }

    int64_t peak() const { return peak_; }  // bytes
    // The numbers of all-gathers and reduce-scatters of a flat tensor so far.
    int64_t gathers(size_t u) const { return gathers_[u]; }
    int64_t reductions(size_t u) const { return reductions_[u]; }

private:
    void hold(int64_t bytes) { peak_ = std::max(peak_, held_ += bytes); }
    int64_t whole_bytes(size_t u) const { return layout_[u].padded * value_bytes_; }
    // The bytes of a flat tensor in fewer bits.
    int64_t narrow_bytes(size_t u, Sent sent) const {
        return QuantisedTransfer::bytes(sent, layout_[u].padded, layout_[u].group->size());
    }
    Sent sent(size_t u, Sent chosen) const { return sent_among(chosen, layout_[u].group->size()); }
    void gather(size_t u) {
        if (whole_[u] || narrow_[u]) return;
        gathers_[u] += times_;
        const bool plain = sent(u, zero_.gathers) == Sent::plain;
        (plain ? whole_ : narrow_)[u] = true;
        hold(plain ? whole_bytes(u) : narrow_bytes(u, zero_.gathers));
    }
    void arrive(size_t u) {
        if (!narrow_[u]) return;
        hold(whole_bytes(u));
        held_ -= narrow_bytes(u, zero_.gathers);
        narrow_[u] = false, whole_[u] = true;
    }
    void release(size_t u) {
        if (narrow_[u]) held_ -= narrow_bytes(u, zero_.gathers);
        if (whole_[u]) held_ -= whole_bytes(u);
        narrow_[u] = whole_[u] = false;
    }
    void make_room(size_t u) {
        if (buffer_[u]) return;
        buffer_[u] = true;
        hold(layout_[u].padded * grad_bytes_);
    }
    // Whether the pass reports a contribution.
    static bool contributes(const Parameter& parameter, Pass pass) {
        if (pass == Pass::forward || pass == Pass::backward) return pass == Pass::backward;
        return parameter.of_norm() == (pass == Pass::backward_input);
    }
    void contribute(const Parameter& parameter) {
        // A tied weight is used by two units.
        if (++contributions_[&parameter] % users_[&parameter] == 0)
            ++complete_[layout_.flat_of(parameter)];
    }
    void reduce(size_t u) {
        const bool adds = reductions_[u] > 0;  // to a sum that exists already
        const Sent how = sent(u, zero_.sums);  // what is sent and what is received, besides the sum
        const int64_t sum = (adds ? layout_[u].shard * grad_bytes_ : 0) +
                            (how == Sent::plain ? 0 : 2 * narrow_bytes(u, how));
        reductions_[u] += times_;
        hold(sum);
        buffer_[u] = false;
        under_way_.push_back(layout_[u].padded * grad_bytes_ + sum);
        wait(1);
    }
    void wait(size_t left) {
        while (under_way_.size() > left) {
            held_ -= under_way_.front();
            under_way_.erase(under_way_.begin());
        }
    }

    const FlatLayout& layout_;
    const std::vector<const Unit*>& units_;
    ZeroOptions zero_;
    InLayer in_layer_;
    int64_t value_bytes_, grad_bytes_;
    bool last_ = true;
    int64_t times_ = 1;
    int64_t held_ = 0, peak_ = 0;
    std::vector<int64_t> gathers_, reductions_;
    std::vector<bool> whole_, narrow_, buffer_;
    std::vector<size_t> complete_;
    std::vector<int64_t> under_way_;  // bytes of reductions
    std::map<const Parameter*, size_t> users_, contributions_;
};

}  // namespace ultrascale::zero
