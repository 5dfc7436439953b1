// A problem's kernels beside each other: are they right, and how near do they come to what is possible?
#pragma once

#include "check.h"

namespace ultrascale::kernels {

struct LadderOptions {
    uint64_t seed = 1;
    Sizes size;               // empty: the problem's own
    bool check_only = false;  // no timing, no observation
    bool by_line = false;     // the microscope: every line that loads or stores
};

// What came of one kernel at one size.
struct Rung {
    const Kernel* kernel = nullptr;
    Sizes size;
    double error = 0;                                                // the largest of all sizes that were checked
    int checked = 0;                                                 // sizes
    std::string wrong;                                               // "": nothing
    double seconds = 0;                                              // GPU: the median of a launch
    double traffic = 0;                                              // CPU: bytes that global memory moves, over the least possible
    std::vector<std::pair<std::string, double>> seen = {};           // CPU: the microscope's sums, named as in --json
    double rank() const { return seconds > 0 ? seconds : traffic; }  // lower is better; 0: not measured
};

// Checks each kernel at the problem's awkward and observed sizes, then measures it (on a GPU: time; on the CPU: traffic), and prints a
// line for each. Kernels that need PTX are skipped on the CPU, with a line that says so.
std::vector<Rung> climb(const Problem& problem, const std::vector<Kernel>& kernels, const LadderOptions& options);

// How a row of the table is called: by its kernel, or, where one kernel is measured at several sizes, by the size.
std::string label(const Problem& problem, const Rung& rung, const std::vector<Sizes>& sizes, const std::vector<Rung>& right);

}  // namespace ultrascale::kernels
