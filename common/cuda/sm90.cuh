// Features that GPUs have only since Hopper. For older GPUs they compile to nothing, so check
// hopper() or programmatic_launch() (cuda_common.h) before launching a kernel that needs them.
#pragma once

// An instruction that all GPUs have since Hopper.
#if __CUDA_ARCH__ >= 900
#define SM90(...) asm volatile(__VA_ARGS__)
#else
#define SM90(...)
#endif

// An instruction that only Hopper has (sm_90a): wgmma.cuh, hopper.cuh.
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define SM90A(...) asm volatile(__VA_ARGS__)
#else
#define SM90A(...)
#endif

// __global__ void CLUSTER(2) kernel(...): every two blocks with neighbouring blockIdx.x run at the
// same time, on SMs that can access each other's shared memory. The grid's size must be a multiple
// of the cluster's.
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)  // the host needs it, too
#define CLUSTER(blocks) __cluster_dims__(blocks, 1, 1)
#else
#define CLUSTER(blocks)
#endif
