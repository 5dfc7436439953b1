// --verify and the choices of routers. A choice is a comparison: where two experts' scores differ
// by less than rounding, two correct programs may choose differently, and their results then differ
// by more than rounding. So the first step's choices are compared with the plain training's, and
// each that differs must have been as close as that.
#pragma once

#include "expert_parallel.h"
#include "plain_experts.h"
#include "report/report.h"
#include "train/whole_values.h"

namespace ultrascale {

// A tie within this share of a score is rounding: some units of fp32, or of bf16, in the router's
// input.
inline double rounding_of_scores(DType dtype) { return dtype == DType::fp32 ? 2e-5 : 3e-2; }

class ChoiceLog {
public:
    ChoiceLog(const LlamaConfig& config, DType dtype)
        : k_(config.experts.router.top_k), rounding_(rounding_of_scores(dtype)) {}
    PlainChoices* plain() { return &plain_; }

    // Remembers what the first step chose; call it until done().
    void add(int64_t layer, const Tensor& experts, const Context& context) {
        if (done_ || !context.training || context.recomputing) return;
        const std::vector<int32_t> chosen = experts.to_host<int32_t>();
        const size_t T = size_t(context.batch.length() * k_);
        for (int64_t b = 0; b < context.batch.sequences(); ++b)
            mine_[{layer, context.batch.first_sample + b}].assign(
                chosen.begin() + long(size_t(b) * T), chosen.begin() + long(size_t(b + 1) * T));
    }
    void done() { done_ = true; }

    // Prints how many choices of the first step differ from the plain training's, which rank 0 has.
    // Returns false if one of them was no tie. All ranks call it.
    bool compare(Report& report) {
        std::string bytes;
        for (const auto& [key, chosen] : mine_) {
            const std::vector<int64_t> head{key.first, key.second, int64_t(chosen.size())};
            bytes += bytes_of(head) + bytes_of(chosen);
        }
        bool ok = true;
        int64_t tokens = 0, flipped = 0;
        double widest = 0;
        for (const std::string& rank : Communicator::world().gather_strings(bytes))
            for (size_t at = 0; Communicator::world().rank() == 0 && at < rank.size();) {
                int64_t head[3];
                std::memcpy(head, &rank[at], sizeof head);
                at += sizeof head;
                std::vector<int32_t> chosen(static_cast<size_t>(head[2]));
                std::memcpy(chosen.data(), &rank[at], chosen.size() * sizeof(int32_t));
                at += chosen.size() * sizeof(int32_t);
                const auto found = plain_.tokens.find({head[0], head[1]});
                if (found == plain_.tokens.end()) continue;
                for (size_t t = 0; t < found->second.size(); ++t, ++tokens) {
                    const auto first = chosen.begin() + long(t * size_t(k_));
                    if (std::set<int>(first, first + k_) == found->second[t].experts) continue;
                    ++flipped;
                    widest = std::max(widest, found->second[t].margin);
                }
            }
        if (tokens > 0) {
            ok = widest <= rounding_;
            std::string why;
            if (flipped > 0 && ok)
                why = fmt::format("; all are ties: within {:.1e} of a score, rounding is {:.0e}",
                                  widest, rounding_);
            else if (flipped > 0)
                why = fmt::format("; one by {:.1e} of a score: MISSED", widest);
            print(
                fmt::format("  routing   step 1, {} of {} choices differ{}", flipped, tokens, why));
            report.value("verify", "choices", double(tokens));
            report.value("verify", "choices_that_differ", double(flipped));
        }
        // Between hosts, so that the report's counts of communication stay the run's.
        return Communicator::world().broadcast_string(ok ? "ok" : "", 0) == "ok";
    }

private:
    int64_t k_;
    double rounding_;
    bool done_ = false;
    PlainChoices plain_;  // on rank 0
    std::map<std::pair<int64_t, int64_t>, std::vector<int32_t>> mine_;
};

}  // namespace ultrascale
