// Compares a problem's kernels: whether they are right, and how close they come to the possible
// optimum.
#pragma once

#include "check.h"
#include "cost.h"

namespace ultrascale::kernels {

struct LadderOptions {
    uint64_t seed = 1;
    Sizes size;               // empty: the problem's own
    bool check_only = false;  // no timing, no observation
    bool by_line = false;     // the microscope: every line that loads or stores
};

struct KernelResult {
    const Kernel* kernel = nullptr;
    Sizes size;
    double error = 0;    // the largest over all sizes that were checked
    int checked = 0;     // how many sizes
    std::string wrong;   // "": nothing
    double seconds = 0;  // GPU: the median of a launch
    double traffic = 0;  // CPU: bytes that global memory moves, over the least possible
    Cost cost = {};      // CPU
    std::vector<std::pair<std::string, double>> seen = {};  // CPU: counts, named as in --json
    // Lower is better; 0: not measured.
    double rank() const { return seconds > 0 ? seconds : cost.total; }
};

// Checks each kernel at the problem's awkward and observed sizes, then measures it (on a GPU: time;
// on the CPU: memory accesses), and prints a line for each. Kernels that need PTX are skipped on
// the CPU, with a line that says so.
std::vector<KernelResult> measure_kernels(const Problem& problem,
                                          const std::vector<Kernel>& kernels,
                                          const LadderOptions& options);

// The label of a table's row: the kernel's name, with the size if there are several; the size alone
// if there is only one kernel.
std::string label(const Problem& problem, const KernelResult& result,
                  const std::vector<Sizes>& sizes, const std::vector<KernelResult>& right);

// The rank of `mine` among the kernels at its size, and why it is not the first, e.g.
//   mine: number 4 of 5 by cost, behind transpose_padded:
//         it moves no more, but its shared loads take 32.0 turns instead of 1.0
// "" if it was not measured, or is wrong.
std::string ranking(const KernelResult& mine, const std::vector<KernelResult>& results);

}  // namespace ultrascale::kernels
