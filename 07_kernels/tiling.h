// Which thread computes which part of a product C (M, N) = A (M, K) B (K, N). The kernel does not
// tell; it is observed while the CPU executes it (common/emulator/observer.h), and drawn by
// tiles_picture.cpp (--svg).
#pragma once

#include "check.h"

namespace ultrascale::kernels {

struct Tiling {
    struct Owner {
        int block = -1, thread = -1;  // block 0 is the one in the upper left corner
    };
    int64_t M, N, K;
    std::vector<Owner> owners;  // (M, N): the thread that stored each element of C
    int threads = 0;            // threads of a block
    // How many columns of A (rows of B) block 0 loads before its first barrier behind a load.
    int64_t k_step = 0;

    const Owner& owner(int64_t row, int64_t column) const {
        return owners[size_t(row * N + column)];
    }
};
// Runs a kernel of the problem "product", without a GPU.
Tiling observe_tiling(const Kernel& kernel, const Arguments& arguments);

// Writes tiles.svg: C's blocks, a block's warps, a warp's lanes, and a thread's elements.
void draw_tiles(const std::string& directory, const Kernel& kernel, const Tiling& tiling);

}  // namespace ultrascale::kernels
