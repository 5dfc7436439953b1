// Ranks a student's kernel among the kernels of its problem, and says why it is not the first.
#include <fmt/format.h>

#include <algorithm>

#include "ladder.h"

namespace ultrascale::kernels {
namespace {

constexpr double rounding = 1.005;  // smaller differences do not show in print

// Why `mine` takes longer than `best`, as far as the estimate of cost.h tells.
std::string loses_by(const KernelResult& mine, const KernelResult& best) {
    const Cost& cost = mine.cost;
    std::string also;  // causes beyond the moved bytes
    if (cost.total > rounding * mine.traffic) {
        if (cost.memory > cost.shared)
            also = fmt::format("its {} atomic operations wait for each other", cost.atomics);
        else if (cost.turns > rounding * cost.at_best)
            also = fmt::format("its shared {} take {:.1f} turns instead of {:.1f}", cost.conflicts,
                               cost.turns, cost.at_best);
        else
            also = fmt::format("its shared memory takes longer than memory: {:.2f}", cost.shared);
    }
    if (mine.traffic <= rounding * best.traffic && !also.empty())
        return "it moves no more, but " + also;
    return fmt::format("it moves {:.2f} times the least instead of {:.2f}{}", mine.traffic,
                       best.traffic, also.empty() ? "" : ",\n        and " + also);
}

}  // namespace

std::string ranking(const KernelResult& mine, const std::vector<KernelResult>& results) {
    if (!mine.wrong.empty() || mine.rank() == 0) return "";
    const bool by_time = mine.seconds > 0;
    const double tie = by_time ? 1 : rounding;
    int of = 0, better = 0;
    const KernelResult *best = nullptr, *level = nullptr;
    for (const KernelResult& result : results) {
        if (result.size != mine.size || !result.wrong.empty()) continue;
        ++of;
        if (result.kernel == mine.kernel) continue;
        if (result.rank() * tie < mine.rank()) {
            ++better;
            if (!best || result.rank() < best->rank()) best = &result;
        } else if (!level && result.rank() <= tie * mine.rank()) {
            level = &result;
        }
    }
    std::string text = fmt::format("  {}: number {} of {} by {}", mine.kernel->name, better + 1, of,
                                   by_time ? "time" : "cost");
    if (level) text += ", level with " + level->kernel->name;
    if (best) text += ", behind " + best->kernel->name;
    if (best && !by_time) text += ":\n        " + loses_by(mine, *best);
    return text + "\n";
}

}  // namespace ultrascale::kernels
