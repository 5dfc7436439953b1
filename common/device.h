// The device this rank computes on, in words and numbers. Each backend answers.
#pragma once

#include <string>

#include "tensor.h"

namespace ultrascale {

std::string device_description();  // "CPU, 2 threads (AMD EPYC)"

struct DevicePeak {
    double flops;        // dense FLOP/s for this dtype
    std::string source;  // "measured sgemm", "datasheet"
};
DevicePeak device_peak(DType dtype);

}  // namespace ultrascale
