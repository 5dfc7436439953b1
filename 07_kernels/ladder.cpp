#include "ladder.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "measure.h"

namespace ultrascale::kernels {
namespace {

// Checks at every size that is not timed, and drops a kernel at the first size at which it is
// wrong.
void check_all(const Problem& problem, const LadderOptions& options,
               std::vector<KernelResult>& results) {
    std::vector<Sizes> sizes = problem.awkward;
    sizes.insert(sizes.end(), problem.observed.begin(), problem.observed.end());
    if (!options.size.empty()) sizes = {options.size};
    for (const Sizes& size : sizes) {
        const Trial trial = make_trial(problem, size, options.seed);
        const Answer answer = answer_of(problem, trial, options.size.empty());
        for (KernelResult& result : results) {
            if (!result.wrong.empty()) continue;
            try {
                const double error = error_of(result.kernel->run, trial, answer);
                ++result.checked;
                result.wrong = verdict(problem, size, error);
                if (!result.wrong.empty()) result.wrong += races_of(*result.kernel, trial);
                result.error = std::isnan(error) ? error : std::max(result.error, error);
            } catch (const std::logic_error& error) {  // an error that common/emulator finds
                result.wrong = fmt::format("{}: {}", text(problem, size), error.what());
            } catch (const std::runtime_error&
                         error) {  // from CUDA: after an illegal access nothing runs on the device
                user_error("{}, {}: {}", result.kernel->name, text(problem, size), error.what());
            }
        }
    }
}

}  // namespace

std::string label(const Problem& problem, const KernelResult& result,
                  const std::vector<Sizes>& sizes, const std::vector<KernelResult>& right) {
    if (sizes.size() == 1) return result.kernel->name;
    return right.size() == 1
               ? text(problem, result.size)
               : fmt::format("{} {}", result.kernel->name, fmt::join(result.size, ","));
}

void print_ideas(const std::vector<KernelResult>& right) {
    for (const KernelResult& result : right)
        fmt::print("  {:<28} {}\n", result.kernel->name, result.kernel->idea);
}

std::vector<KernelResult> measure_kernels(const Problem& problem,
                                          const std::vector<Kernel>& kernels,
                                          const LadderOptions& options) {
    std::vector<KernelResult> results;
    for (const Kernel& kernel : kernels)
        if (why_skipped(kernel).empty()) results.push_back({.kernel = &kernel});
    if (!results.empty()) check_all(problem, options, results);
    const auto print_checked = [&](const KernelResult& result) {
        fmt::print("  {:<28} {:8.1e} of {} sizes  {}\n", result.kernel->name, result.error,
                   result.checked, result.wrong.empty() ? "ok" : "WRONG");
        if (!result.wrong.empty()) fmt::print("      WRONG at {}\n", result.wrong);
    };
    if (options.check_only) {
        fmt::print("\n{}, against float64 (<= {:.0e})\n", problem.name, problem.tolerance);
        for (const KernelResult& result : results) print_checked(result);
    } else {
        std::vector<KernelResult> right, wrong;
        for (const KernelResult& result : results)
            (result.wrong.empty() ? right : wrong).push_back(result);
        const std::vector<Sizes>& own = on_gpu ? problem.timed : problem.observed;
        results = measure(problem, options,
                          options.size.empty() ? own : std::vector<Sizes>{options.size}, right);
        for (const KernelResult& result : wrong) print_checked(result), results.push_back(result);
    }
    for (const Kernel& kernel : kernels)
        if (const std::string why = why_skipped(kernel); !why.empty())
            fmt::print("  {:<28} skipped: {}\n", kernel.name, why);
    return results;
}

}  // namespace ultrascale::kernels
