// CUDA kernels on the CPU: the same source, compiled by g++, with blocks, warps and threads that
// behave like a GPU's.
//
// A kernel is a function that every thread runs. Here each CUDA thread is a fiber with its own
// stack (Boost.Context), and a core runs all fibers of a block in turn: a fiber runs until it must
// wait for others, at __syncthreads() or at a warp's shuffle, vote or __syncwarp(); then the core
// switches to the next one. Blocks are distributed over the cores. include/ has stand-ins for
// CUDA's headers, so that the kernel's source needs no change; only dynamic shared memory is
// declared by a macro (DYNAMIC_SHARED in cuda_common.h).
//
// Undefined behaviour on a GPU is an error here, reported with its place in the source:
//   - threads that wait at a barrier or a shuffle which others never reach
//   - an access outside of every allocation (access.cpp: the compiler calls us at each load and
//     store)
//   - an access outside of every fixed-size __shared__ array that the kernel declares (an access
//     that overruns one of its arrays into another one is not detected; nor, without a symbol
//     table, an access to another kernel's array)
//   - a load or store of 2, 4, 8 or 16 bytes at an address that is no multiple of its size
//   - a grid, a block or dynamic shared memory larger than devices allow
// Shared memory that a block reads before it writes holds NaN, in integers -1.
// It cannot execute PTX (cp.async, mma, ...). The order of threads is fixed, so results do not
// reveal races: microscope.h looks for them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>

struct uint3 {
    unsigned x, y, z;
};
struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

// The indices of the thread that runs now.
extern thread_local constinit uint3 threadIdx, blockIdx;
extern thread_local constinit dim3 blockDim, gridDim;

namespace simt {

inline constexpr int warp_size = 32;

// A kernel's mistake; what() names the kernel, the block, the threads and the line.
struct KernelError : std::logic_error {
    using std::logic_error::logic_error;
};

// A kernel's arguments and the code that calls it with them, on the launching thread's stack.
struct Call {
    void (*run)(const void* arguments);
    const void* arguments;
    size_t bytes;
    const void* kernel;  // its address, for messages
};
// Runs a grid; returns when all of its threads have ended. Throws KernelError.
void launch(const Call& call, dim3 grid, dim3 block, size_t dynamic_shared_bytes);

// ---- functions that a running thread calls ------------------------------------------------------
void* dynamic_shared();  // of its block, 128-byte aligned

void sync_block();  // __syncthreads()

// Contributes `value`, waits for the lanes in `mask`, and returns what they contributed. `what`
// names the operation.
struct Lanes {
    uint64_t values[warp_size];
};
Lanes exchange(uint32_t mask, uint64_t value, const char* what, const void* code = nullptr);
uint64_t shuffle(uint32_t mask, uint64_t value, int source,
                 const char* what);  // lane `source`'s value
int lane();

// Returns *address and adds x to it, atomically across blocks, too.
float atomic_add(float* address, float x);
double atomic_add(double* address, double x);
int atomic_add(int* address, int x);
unsigned atomic_add(unsigned* address, unsigned x);
unsigned atomic_max(unsigned* address, unsigned x);

// ---- for access.cpp -----------------------------------------------------------------------------
struct CoreObserver;  // observer.h
struct SharedArrays;  // shared_arrays.h

// The thread that runs now, as its block's scheduler sees it.
struct Running {
    const void *stack, *stack_end;          // its own
    const void *shared, *shared_end;        // dynamic shared memory
    const void *arguments, *arguments_end;  // of the kernel
    uint32_t thread = 0;                    // in the block
    const SharedArrays* arrays = nullptr;   // of the kernel
    CoreObserver* observer = nullptr;       // null if nobody observes
};
extern thread_local constinit Running* running;  // nullptr: host code

[[noreturn]] void fail(
    const char* what);  // ends the grid: launch() throws, naming kernel, block and thread
void let_others_run(Running& self);  // all other threads of its block run before it continues

// Defined in access.cpp: an atomic operation is an access like any other.
void atomic_access(const void* first, size_t bytes, const void* code);

}  // namespace simt
