// What GPUs have since Hopper. For others it compiles to nothing: whoever launches a kernel that
// needs it asks before (cuda_common.h: hopper(), programmatic_launch()).
#pragma once

// An instruction that all GPUs have since Hopper.
#if __CUDA_ARCH__ >= 900
#define SM90(...) asm volatile(__VA_ARGS__)
#else
#define SM90(...)
#endif

// An instruction of Hopper's alone (sm_90a): wgmma.cuh, hopper.cuh.
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define SM90A(...) asm volatile(__VA_ARGS__)
#else
#define SM90A(...)
#endif

// __global__ void CLUSTER(2) kernel(...): every two blocks, of neighbouring blockIdx.x, run at the
// same time on SMs that reach each other's shared memory. The grid is a multiple of it.
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)  // the host has to know it, too
#define CLUSTER(blocks) __cluster_dims__(blocks, 1, 1)
#else
#define CLUSTER(blocks)
#endif
