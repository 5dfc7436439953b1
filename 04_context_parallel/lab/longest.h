// How long a sequence may be. Parameters, gradients and optimizer states do not depend on its
// length s, but activations grow with it. Even full recomputation keeps the input of each of the L
// layers: (b, s, h) elements of e bytes. Context parallelism divides by cp everything that grows:
//
//     bytes(s) = parameters, gradients, optimizer states
//              + b L s h e / cp         the layers' inputs
//              + other(b, s) / cp       what else is held at the peak: one layer's activations,
//                                       the logits, keys on their way (gathered ones: undivided)
//
// So twice as many ranks take sequences of about twice the length. The playbook, "Context
// Parallelism"; Korthikanti et al. 2022, "Reducing activation recomputation in large transformer
// models".
//
// predict.h says how much memory a length needs. That grows with the length, so the longest one
// that fits is found by bisection.
#pragma once

#include <fmt/ranges.h>

#include <limits>

#include "predict.h"
#include "shared_options.h"

namespace ultrascale::context_parallel {

// Returns the largest multiple of `multiple` that fits, at most `most`; 0 if none does. Everything
// smaller than one that fits must fit, too.
template <class Fits>
int64_t largest_that_fits(int64_t multiple, int64_t most, const Fits& fits) {
    int64_t good = 0, bad = most / multiple + 1;
    while (bad - good > 1) {
        const int64_t middle = good + (bad - good) / 2;
        (fits(middle * multiple) ? good : bad) = middle;
    }
    return good * multiple;
}

// Returns the largest memory of any rank. They differ in a bidirectional ring, and with a window.
inline MemoryEstimate largest_memory(const StepShape& shape, const ContextOptions& o) {
    MemoryEstimate most;
    const bool differ = o.bidirectional || shape.config.window > 0;
    for (int rank = 0; rank < (differ ? o.ring_degree() : 1); ++rank) {
        const MemoryEstimate memory =
            predict_memory(shape, o, parameter_count(shape.config), rank).memory;
        if (memory.total() > most.total()) most = memory;
    }
    return most;
}
inline bool fits(const StepShape& shape, const ContextOptions& o, int64_t limit) {
    return largest_memory(shape, o).total() <= limit;
}

// Returns the same options for `cp` ranks, or nullopt if so many ranks cannot share a sequence in
// this way. Options for one rank name no variant; then the default is used.
inline std::optional<ContextOptions> with_ranks(const StepShape& shape, const ContextOptions& o,
                                                int cp) {
    if (cp == 1) return ContextOptions{.cp = 1, .layout = Layout::contiguous};
    ContextOptions changed = o.cp == 1 ? ContextOptions{} : o;
    changed.cp = cp;
    if (cp % changed.ulysses_degree() != 0 || shape.model.attention == AttentionKind::naive)
        return {};
    try {
        check_shares(shape.config, changed, sequence_multiple(changed));
    } catch (const UserError&) {  // the model has too few heads
        return {};
    }
    return changed;
}

// Positions in a sequence are 32-bit numbers.
inline constexpr int64_t most_positions = std::numeric_limits<int32_t>::max();

// Returns the longest sequence that fits into every rank's `limit` bytes and that the layout can
// cut; 0 if there is none.
inline int64_t longest_sequence(StepShape shape, const ContextOptions& o, int64_t limit) {
    return largest_that_fits(sequence_multiple(o), most_positions, [&](int64_t seq) {
        shape.seq = seq;
        return fits(shape, o, limit);
    });
}

inline constexpr int most_ranks = 64;  // in the table, and in the advice

// Returns the end of an error: which changes would make the model fit. Changes of the options that
// keep the length come first: each alone, or if none is enough, all together; then the longest
// sequence, then more ranks that share it.
inline std::string what_needs_less(const StepShape& shape, const ContextOptions& o, int64_t limit) {
    std::vector<std::string> enough, all;
    StepShape frugal = shape;  // with all changes
    const auto consider = [&](const std::string& option, const auto& change) {
        StepShape changed = shape;
        change(changed), change(frugal);
        all.push_back(option);
        if (fits(changed, o, limit)) enough.push_back(option);
    };
    constexpr int64_t chunk = 1024;
    const double tokens = double(shape.micro_batch) * double(shape.seq) / o.cp;
    if (shape.model.recompute != Recompute::full)
        consider("--recompute full", [](StepShape& s) { s.model.recompute = Recompute::full; });
    if (tokens > chunk && (shape.model.loss_chunk == 0 || shape.model.loss_chunk > chunk))
        consider(fmt::format("--loss-chunk {}", chunk),
                 [](StepShape& s) { s.model.loss_chunk = chunk; });
    if (shape.micro_batch > 1) {
        StepShape changed = shape;
        const int64_t largest = largest_that_fits(1, shape.micro_batch - 1, [&](int64_t micro) {
            changed.micro_batch = micro;
            return fits(changed, o, limit);
        });
        consider(fmt::format("--micro-batch {}", std::max<int64_t>(largest, 1)),
                 [&](StepShape& s) { s.micro_batch = std::max<int64_t>(largest, 1); });
    }
    const std::string together = fmt::format("{}", fmt::join(all, " "));
    if (enough.empty() && fits(frugal, o, limit)) enough.push_back(together);

    // How many ranks would suffice: twice as many, or 4 times, ... 0: not even most_ranks.
    const auto more_ranks = [&](const StepShape& changed) -> int {
        for (int cp = 2 * o.cp; cp <= most_ranks; cp *= 2)
            if (const auto with_more = with_ranks(shape, o, cp);
                with_more && shape.seq % sequence_multiple(*with_more) == 0 &&
                fits(changed, *with_more, limit))
                return cp;
        return 0;
    };
    std::string ranks;
    if (const int alone = more_ranks(shape); alone > 0)
        ranks = fmt::format("--cp {}", alone);
    else if (const int with_all = more_ranks(frugal); enough.empty() && with_all > 0)
        ranks = fmt::format("--cp {} {}", with_all, together);

    if (const int64_t seq = longest_sequence(shape, o, limit); seq > 0)
        enough.push_back(fmt::format("--seq {}", seq));
    else if (const int64_t least = longest_sequence(frugal, o, limit); enough.empty() && least > 0)
        enough.push_back(fmt::format("{} --seq {}", together, least));
    if (!ranks.empty()) ranks = fmt::format("more ranks that share a sequence would: {}", ranks);
    if (enough.empty() && ranks.empty())
        return "parameters, gradients and optimizer alone do not fit, and context parallelism "
               "splits none of them; a smaller --model or fewer --layers would";
    if (enough.empty()) return ranks;
    const std::string last = enough.back();
    enough.pop_back();
    return fmt::format("these options would: {}{}{}{}{}", fmt::join(enough, ", "),
                       enough.empty() ? "" : " or ", last, ranks.empty() ? "" : "; ", ranks);
}

// All ranks call it, each with its place in the ring. Throws UserError on all of them if one does
// not fit into its `limit` bytes.
inline void check_fits(const StepShape& shape, const ContextOptions& o, int rank, int64_t limit) {
    const MemoryEstimate own = predict_memory(shape, o, parameter_count(shape.config), rank).memory;
    check_fits_everywhere(own, limit, [&] { return what_needs_less(shape, o, limit); });
}

}  // namespace ultrascale::context_parallel
