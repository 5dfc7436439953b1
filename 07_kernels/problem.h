// A Problem describes the computation that a kernel must perform: its sizes, its inputs, the answer
// in float64, and the least FLOPs and bytes that it takes.
//
// Kernels of one problem are compared with each other, so a problem is defined once, in its
// family's problems.cpp, and a kernel's file holds nothing but the kernel.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/tensor.h"

namespace ultrascale::kernels {

using Sizes = std::vector<int64_t>;  // the values of Problem::dimensions, in their order

// A kernel's arguments. The output is full of NaN, which shows the elements that a kernel does not
// write.
struct Arguments {
    Sizes size;
    std::vector<Tensor> in;
    Tensor out;
};

// An input: standard normal numbers x, |x| (positive), or 2^(octaves x). int32: uniform in [0,
// below), or how many of `spread` things fell on each element. e4m3: a matrix (rows, K) of fp8
// numbers, which the kernels see as a tensor of int32, four numbers in each; every row is padded
// with zeros to a multiple of 16 bytes.
struct Input {
    Shape shape;
    DType dtype = DType::fp32;
    int64_t below = 0, spread = 0;
    bool positive = false;
    double octaves = 0;
    bool e4m3 = false;
};
using HostInputs = std::vector<std::vector<
    float>>;  // as the kernels see them: rounded to bf16 or fp8 if they are of that type

struct Problem {
    std::string name;
    std::vector<std::string> dimensions;  // names of the sizes
    std::vector<Sizes> timed;             // on a GPU
    std::vector<Sizes> observed;          // on the CPU; also checked on a GPU
    std::vector<Sizes> awkward;  // checked everywhere: tiny, odd, not a multiple of any tile

    // For --size: "" if the sizes are valid, otherwise the sizes that would be.
    std::function<std::string(const Sizes&)> refuses = [](const Sizes&) { return ""; };
    std::function<std::vector<Input>(const Sizes&)> inputs;
    std::function<Input(const Sizes&)> output;
    // Row `row` of the output (its last dimension, in float64).
    std::function<void(const Sizes&, const HostInputs&, int64_t row, double* out)> reference;
    double tolerance = 1e-6;  // relative L2 error of a row

    std::function<double(const Sizes&)> flops;
    std::function<double(const Sizes&)> bytes;  // each input read once, the output written once
    bool tensor_cores = false;  // compares its rate with the peak of bf16, else of fp32,
    double peaks = 1;           // times this (fp8: 2)
    // cuBLAS's function for the same problem, if there is one. It is measured beside the kernels on
    // a GPU, and returns false if cuBLAS has no kernel for these sizes.
    std::function<bool(const Arguments&)> library = nullptr;
    // cublasGemmEx, which chooses a kernel by itself, while `library` is the fastest of several. It
    // is measured beside the last kernel and `library`.
    std::function<void(const Arguments&)> library_default = nullptr;
};

// cuBLAS's product of fp8 matrices with one scale per matrix, or one per block
// (3_product/library_fp8.cpp); nullptr without CUDA.
std::function<bool(const Arguments&)> fp8_library();
// cublasGemmEx's product of bf16 matrices (3_product/library_gemm_ex.cpp); nullptr without CUDA.
std::function<void(const Arguments&)> gemm_ex_library();

std::vector<Problem> first_steps(), memory(), product(), fusion(),
    attention();  // each in its family's problems.cpp

}  // namespace ultrascale::kernels
