// Who computes what of a product C (M, N) = A (M, K) B (K, N): not told by the kernel but seen,
// while the CPU executes it (common/emulator/observer.h), and drawn by tiles_picture.cpp (--svg).
#pragma once

#include "check.h"

namespace ultrascale::kernels {

struct Tiling {
    struct Owner {
        int block = -1, thread = -1;  // block 0 is the one in the upper left corner
    };
    int64_t M, N, K;
    std::vector<Owner> owners;  // (M, N): who stored each element of C
    int threads = 0;            // of a block
    // Before block 0 comes to its first barrier behind a load it has brought so many columns of A
    // (rows of B).
    int64_t k_step = 0;

    const Owner& owner(int64_t row, int64_t column) const {
        return owners[size_t(row * N + column)];
    }
};
// Runs a kernel of the problem "product". Without a GPU.
Tiling observe_tiling(const Kernel& kernel, const Arguments& arguments);

// Writes tiles.svg: C's blocks, a block's warps, a warp's lanes and what is left to a thread.
void draw_tiles(const std::string& directory, const Kernel& kernel, const Tiling& tiling);

}  // namespace ultrascale::kernels
