#include "budget.h"

#include <algorithm>
#include <cmath>
#include <sstream>

#include "core/error.h"
#include "estimate.h"
#include "lab/options/option_list.h"
#include "lab/report/report.h"

namespace ultrascale {

void fit_into_budget(StepShape& shape, double gib,
                     const std::function<MemoryEstimate(const StepShape&)>& predict) {
    struct Choice {
        Recompute recompute;
        double flops;  // recomputed, per token
        int64_t peak;  // of the rank that holds the most, in bytes
    };
    const LlamaConfig& c = shape.config;
    const int64_t L = c.layers, parameters = parameter_count(c);
    std::vector<Choice> choices;
    std::string own;  // this rank's peaks
    for (int64_t full = 0; full <= L; ++full) {
        // Attention in tiles has nothing to drop, unless its heads are made of latents.
        const bool drops = shape.model.attention == AttentionKind::naive || c.latent;
        for (int64_t selective = 0; selective <= (drops ? L - full : 0); ++selective) {
            shape.model.recompute = {full, selective};
            choices.push_back(
                {shape.model.recompute, recomputed_flops_per_token(shape, parameters), 0});
            own += fmt::format("{} ", predict(shape).total());
        }
    }
    for (const std::string& peaks : Communicator::world().gather_strings(own)) {
        std::istringstream in(peaks);
        for (Choice& choice : choices) {
            int64_t peak = 0;
            in >> peak, choice.peak = std::max(choice.peak, peak);
        }
    }
    std::ranges::stable_sort(choices, {}, &Choice::flops);
    const auto fits = std::ranges::find_if(
        choices, [&](const Choice& one) { return double(one.peak) <= gib * double(1 << 30); });
    if (fits == choices.end()) {
        const Choice least = *std::ranges::min_element(choices, {}, &Choice::peak);
        user_error("--memory-budget {}: the least that is predicted is {} GiB, with --recompute {}",
                   gib, std::ceil(double(least.peak) / double(1 << 30) * 1e4) / 1e4,
                   least.recompute.text());
    }
    shape.model.recompute = fits->recompute;
    const double again = fits->flops / model_flops_per_token(c, parameters, shape.seq);
    print(wrapped(fmt::format(
        "--memory-budget {}: --recompute {}; predicted {}, and {:.1f} % of the FLOPs again", gib,
        fits->recompute.text(), format_bytes(double(fits->peak)), 100 * again)));
}

}  // namespace ultrascale
