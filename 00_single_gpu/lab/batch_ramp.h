// --batch-ramp 8:100,16:200,32: a batch that grows during training.
//
// Small batches make quick progress while the gradient is large; big ones average the noise away
// later. DeepSeek-V3's report raises the batch from 3,072 to 15,360 sequences over the first 469 B
// tokens.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "ramp.h"

namespace ultrascale::single_gpu {

// "8:100,16:200,32": 8 sequences a step for 100 steps, then 16 for 200 steps, then 32. Sizes and
// spans may also be in tokens: "16M:69B,32M:721B,64M" means about 16 million tokens a step for 69
// billion tokens, and so on, in whole micro-batches.
class BatchRamp {
public:
    // With an empty `text` every step has `batch` sequences. Sizes must be multiples of the
    // micro-batch, because a step consists of whole micro-batches. Sizes in tokens are rounded to
    // such multiples, with sequences of `seq` tokens.
    BatchRamp(const std::string& text, int64_t batch, int64_t micro_batch, int64_t seq) {
        const auto valid = [](const RampStage& stage) {
            const bool tokens = tokens_in(stage.size) > 0;
            return (tokens || count_in(stage.size) > 0) &&
                   (stage.span.empty() ||
                    (tokens ? tokens_in(stage.span) : double(count_in(stage.span))) > 0);
        };
        int64_t until = 0;
        for (const auto& [size, span] :
             stages_of_ramp("--batch-ramp", text,
                            "SIZE:STEPS,SIZE:STEPS,...,SIZE, e.g. 8:100,16:200,32, or both in "
                            "tokens, e.g. 16M:69B,32M",
                            valid)) {
            int64_t sequences = count_in(size);
            if (const double tokens = tokens_in(size); tokens > 0) {
                const double micro_batches = tokens / double(micro_batch) / double(seq);
                sequences = micro_batch * std::llround(std::clamp(micro_batches, 1.0, 1e9));
            }
            if (sequences % micro_batch != 0)
                user_error("--batch-ramp: {} is not a multiple of --micro-batch {}", sequences,
                           micro_batch);
            if (span.empty())
                until = INT64_MAX;
            else if (const double tokens = tokens_in(span); tokens > 0)
                until += std::llround(
                    std::min(std::ceil(tokens / double(sequences) / double(seq)), 1e12));
            else
                until += count_in(span);
            stages_.push_back({until, sequences});
        }
        if (stages_.empty()) stages_.push_back({INT64_MAX, batch});
    }

    struct Stage {
        int64_t until_step, sequences;
    };
    const std::vector<Stage>& stages() const { return stages_; }
    int64_t sequences(int64_t step) const {
        for (const Stage& stage : stages_)
            if (step < stage.until_step) return stage.sequences;
        return stages_.back().sequences;
    }
    int64_t sequences_before(int64_t step) const {  // in all steps before `step`
        double sum = 0;
        int64_t begin = 0;
        for (const Stage& stage : stages_) {
            sum += double(stage.sequences) * double(std::min(step, stage.until_step) - begin);
            if (step <= stage.until_step) break;
            begin = stage.until_step;
        }
        return int64_t(std::min(sum, 9e18));
    }
    int64_t largest() const {
        int64_t most = 0;
        for (const Stage& stage : stages_) most = std::max(most, stage.sequences);
        return most;
    }

private:
    std::vector<Stage> stages_;
};

}  // namespace ultrascale::single_gpu
