// --seq-ramp 2048:90%,8192: sequences of 2,048 tokens for 90 % of the training, then of 8,192.
//
// Attention makes a token of a long sequence cost more, and what long sequences teach (to look far
// back) is learned last, so large models see them only at the end. A step's number of tokens stays
// the same: in the first stages every long sample is cut into shorter sequences.
//
//     --micro-batch 2        first    [ 2048 | 2048 | 2048 | 2048 ] [ 2048 | 2048 | 2048 | 2048 ]
//                            then     [ 8192                      ] [ 8192                      ]
//
// So neither the order of the tokens nor the place where a run continues depends on the ramp, and
// the activations take the same memory, unless attention keeps its T x T matrix.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "lab/predict/estimate.h"
#include "ramp.h"
#include "train/data.h"

namespace ultrascale::single_gpu {

class SeqRamp {
public:
    SeqRamp() = default;  // no ramp
    // Reads LENGTH:SPAN,...,LENGTH. The lengths grow and divide the last one. A span is a number of
    // steps, or a share of all steps up to `last_step` ("90%").
    SeqRamp(const std::string& text, int64_t last_step) {
        const auto valid = [](const RampStage& stage) {
            const bool share = stage.span.ends_with('%');
            return count_in(stage.size) > 0 &&
                   (stage.span.empty() || (share ? number_before(stage.span, 1, 1e-9, 100) > 0
                                                 : count_in(stage.span) > 0));
        };
        int64_t until = 0;
        for (const auto& [size, span] :
             stages_of_ramp("--seq-ramp", text,
                            "LENGTH:SPAN,...,LENGTH with spans in steps or in % of the training, "
                            "e.g. 2048:90%,8192",
                            valid)) {
            if (span.empty())
                until = INT64_MAX;
            else if (span.ends_with('%'))
                until += std::llround(number_before(span, 1, 0, 100) / 100 * double(last_step));
            else
                until += count_in(span);
            if (!stages_.empty() && count_in(size) <= stages_.back().length)
                user_error("--seq-ramp {}: each length must be greater than the one before", text);
            stages_.push_back({until, count_in(size)});
        }
        for (const Stage& stage : stages_)
            if (last() % stage.length != 0)
                user_error("--seq-ramp {}: {} does not divide the last length, {}", text,
                           stage.length, last());
    }

    explicit operator bool() const { return !stages_.empty(); }
    int64_t last() const { return stages_.back().length; }  // the samples' length
    int64_t length(int64_t step) const {                    // step 0, 1, ...
        for (const Stage& stage : stages_)
            if (step < stage.until_step) return stage.length;
        return last();
    }
    // How the loader cuts samples. samples_before(step) is the number of samples in all steps
    // before it.
    std::vector<SamplesCut> cuts(const std::function<int64_t(int64_t step)>& samples_before) const {
        std::vector<SamplesCut> cuts;
        for (const Stage& stage : stages_)
            if (stage.until_step < INT64_MAX)
                cuts.push_back({samples_before(stage.until_step), stage.length});
        return cuts;
    }
    // The shape of a step: all tokens of `whole`, in shorter sequences.
    StepShape shape(StepShape whole, int64_t step) const {
        if (stages_.empty()) return whole;
        whole.micro_batch *= whole.seq / length(step);
        whole.seq = length(step);
        return whole;
    }
    std::string note(int64_t step) const {  // for a step's line of progress
        return stages_.empty() ? "" : fmt::format("seq {}", length(step));
    }
    std::string description() const {  // "2048 tokens to step 36, then 8192"
        std::string words;
        for (const Stage& stage : stages_)
            words += stage.until_step < INT64_MAX ? fmt::format("{} tokens to step {}, then ",
                                                                stage.length, stage.until_step)
                                                  : fmt::format("{}", stage.length);
        return words;
    }

private:
    struct Stage {
        int64_t until_step, length;
    };
    std::vector<Stage> stages_;
};

}  // namespace ultrascale::single_gpu
