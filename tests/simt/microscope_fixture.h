// Shared by the microscope's tests: arrays, and the microscope's observation of a launch.
#pragma once

#include <gtest/gtest.h>

#include "emulator/microscope.h"
#include "microscope_kernels.h"
#include "race_kernels.h"

namespace ultrascale::test {

using simt::Access, simt::Counts, simt::KernelCounts, simt::Observation;
using enum simt::Access;

inline Tensor floats(int64_t count) {
    return Tensor::zeros({count}, DType::fp32, Memory::workspace);
}

// Arrays of 4096 floats to read and to write, and the microscope that observes a launch.
class Microscope : public testing::Test {
protected:
    Tensor from_tensor = floats(4096), to_tensor = floats(4096);
    float *from = from_tensor.as<float>(), *to = to_tensor.as<float>();
    Tensor from_narrow = Tensor::zeros({4096}, DType::bf16, Memory::workspace),
           to_narrow = Tensor::zeros({4096}, DType::bf16, Memory::workspace);
    bf16 *from_bf16 = from_narrow.as<bf16>(), *to_bf16 = to_narrow.as<bf16>();
    simt::Microscope microscope;

    // Returns the counts of the only kernel that was launched.
    KernelCounts only_kernel() {
        Observation all = microscope.take();
        EXPECT_EQ(all.kernels.size(), 1u);
        return all.kernels.empty() ? KernelCounts{} : all.kernels[0];
    }
    Counts loads() { return only_kernel().total(global_load); }
};

}  // namespace ultrascale::test
