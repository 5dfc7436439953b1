// A training ends at the first step whose loss or gradient norm is not finite: from there on every
// weight would be NaN, and so would every checkpoint that replaces an earlier one.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "comm/comm.h"
#include "core/ops.h"
#include "core/trace.h"
#include "model/parameter.h"

namespace ultrascale {

// Names the numbers that are not finite: "loss nan, gradient norm inf". Empty if all are finite.
inline std::string not_finite(const std::vector<std::pair<const char*, double>>& numbers) {
    std::string found;
    for (const auto& [name, value] : numbers)
        if (!std::isfinite(value))  // a NaN has a sign, too
            found += fmt::format("{}{} {}", found.empty() ? "" : ", ", name,
                                 std::isnan(value) ? NAN : value);
    return found;
}

// Whether all numbers of all ranks' parts are finite. All ranks call it, and the host waits for the
// device. Nothing is counted or recorded.
inline bool all_finite(const std::vector<TensorPart>& parts) {
    const Untraced unrecorded;
    const UncountedMemory uncounted;
    const Tensor found = Tensor::zeros({1}, DType::int32, Memory::workspace);
    for (const TensorPart& part : parts) ops::find_not_finite(found, {part.tensor});
    const bool here = found.to_host<int32_t>()[0] == 0;
    const std::vector<std::string> everywhere =
        Communicator::world().gather_strings(here ? "" : "not finite");
    return std::ranges::all_of(everywhere, &std::string::empty);
}

}  // namespace ultrascale
