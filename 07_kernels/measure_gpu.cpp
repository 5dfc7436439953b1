// On a GPU: times the kernels, and compares them with the roofline (Williams et al. 2009).
#ifdef ULTRASCALE_CUDA
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "core/device.h"
#include "core/ops.h"
#include "lab/report/median_seconds.h"
#include "measure.h"

namespace ultrascale::kernels {
namespace {

// The bytes/s that a plain copy reads and writes, added up.
double copy_rate() {
    static const double rate = [] {
        const Tensor from = Tensor::zeros({1 << 28}, DType::fp32, Memory::workspace),
                     to = Tensor::zeros({1 << 28}, DType::fp32, Memory::workspace);
        return double(from.bytes() + to.bytes()) /
               median_seconds({[&] { ops::copy(to, from); }})[0];
    }();
    return rate;
}

// Several copies of the same problem, as a model has several layers, so that a call does not find
// its data in L2, where the previous call would have left them.
std::vector<Arguments> copies_of(const Arguments& arguments) {
    constexpr int count = 4;
    const auto copy_of = [](const Tensor& from) {
        Tensor to = Tensor::empty(from.shape(), from.dtype(), Memory::workspace);
        ops::copy(to, from);
        return to;
    };
    std::vector<Arguments> copies(count, arguments);
    for (int i = 1; i < count; ++i) {
        for (Tensor& input : copies[size_t(i)].in) input = copy_of(input);
        copies[size_t(i)].out = copy_of(arguments.out);
    }
    return copies;
}

}  // namespace

std::string races_of(const Kernel&, const Trial&) {
    return "";
}  // compute-sanitizer --tool racecheck looks for them

std::vector<KernelResult> measure(const Problem& problem, const LadderOptions& options,
                                  const std::vector<Sizes>& sizes,
                                  const std::vector<KernelResult>& right) {
    if (right.empty()) return {};
    const double peak =
        device_peak(problem.tensor_cores ? DType::bf16 : DType::fp32).flops * problem.peaks;
    const auto least = [&](const Sizes& size) {
        return std::max(problem.flops(size) / peak, problem.bytes(size) / copy_rate());
    };
    for (const Sizes& size : sizes) {
        const double flops = problem.flops(size), bytes = problem.bytes(size);
        fmt::print("{}{}: {}. {:.4g} GFLOP, at least {:.4g} MB\n", size == sizes[0] ? "\n" : "",
                   problem.name, text(problem, size), flops / 1e9, bytes / 1e6);
        fmt::print("  {:.3g} FLOP/byte, so {} is the limit: {:.4f} ms, {:.4g} TFLOP/s\n",
                   flops / bytes, flops / peak > bytes / copy_rate() ? "arithmetic" : "memory",
                   least(size) * 1e3, flops / least(size) / 1e12);
    }
    print_ideas(right);
    fmt::print("  {:<36} {:>8} {:>10} {:>8} {:>8} {:>9} {:>10}\n", "", "error", "ms", "GB/s",
               "TFLOP/s", "of limit", "of cuBLAS");
    std::vector<KernelResult> results;
    for (const Sizes& size : sizes) {
        const Trial trial = make_trial(problem, size, options.seed);
        const Answer answer = answer_of(problem, trial, false);
        const std::vector<Arguments> copies = copies_of(trial.arguments);
        const auto in_turn = [&copies](auto run) {
            return
                [&copies, run, next = size_t(0)]() mutable { run(copies[next++ % copies.size()]); };
        };
        std::vector<std::function<void()>> compared(1);
        if (problem.library && problem.library(trial.arguments))
            compared.push_back(in_turn(problem.library));
        double library = 0,
               library_default = 0;  // their seconds, measured beside the last rung
        const auto line = [&](const std::string& name, double error, double seconds) {
            fmt::print("  {:<36} {:>8.1e} {:>10.4f} {:>8.1f} {:>8.3f} {:>7.1f} % {:>10}\n", name,
                       error, seconds * 1e3, problem.bytes(size) / seconds / 1e9,
                       problem.flops(size) / seconds / 1e12, 100 * least(size) / seconds,
                       library > 0 ? fmt::format("{:.1f} %", 100 * library / seconds) : "-");
            std::fflush(stdout);
        };
        for (KernelResult result : right) {
            result.size = size;
            const double error = error_of(result.kernel->run, trial, answer);
            result.wrong = verdict(problem, size, error);
            result.error = std::isnan(error) ? error : std::max(result.error, error);
            compared[0] = in_turn(result.kernel->run);
            if (compared.size() > 1 && problem.library_default &&
                result.kernel == right.back().kernel)
                compared.push_back(in_turn(problem.library_default));
            const std::vector<double> seconds = median_seconds(compared);
            result.seconds = seconds[0];
            if (compared.size() > 1) library = seconds[1];
            if (compared.size() > 2) library_default = seconds[2];
            line(label(problem, result, sizes, right), result.error, result.seconds);
            if (!result.wrong.empty()) fmt::print("      WRONG at {}\n", result.wrong);
            results.push_back(result);
        }
        if (library > 0)
            line("(cuBLAS, beside the last one)", error_of(problem.library, trial, answer),
                 library);
        if (library_default > 0)
            line("(cublasGemmEx, beside it)", error_of(problem.library_default, trial, answer),
                 library_default);
    }
    return results;
}

}  // namespace ultrascale::kernels
#endif
