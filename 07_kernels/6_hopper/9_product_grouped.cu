// Products in groups, as a mixture of experts needs them: the kernel with which this project trains
// on Hopper, 06_expert_parallel/kernels/grouped_wgmma.cu. It adds to 6_product_async_store:
//
//   - Which matrix B a tile needs depends on its group, and how many rows each group has is known
//     on the device only. So a thread of each cluster walks through the groups' counts, and the
//     host waits for nothing: it starts as many blocks as there are multiprocessors, whatever the
//     counts are.
//   - Tiles at the end of a group take less time than others. So a cluster receives its next pair
//     of tiles when it is about to finish one; the pairs are not assigned in advance.
//   - A group ends at any row, in the middle of a tile. A tile reads on into the next group, but
//     the sums of those rows are thrown away:
//
//         rows of A      [ group 0 ........ ][ group 1 .. ][ group 2 ......
//         tiles          [128 ][128 ][128  ]
//         of group 0       store  store  ^^ only the rows of group 0
//
//     A warp whose 16 rows all belong to the group stores them through TMA; only the last one
//     stores element by element. A warpgroup without any row of the group multiplies nothing: a
//     group costs its rows rounded up to 64, not to 128.
//
// A cluster's two tiles lie below each other, so that they share B, except where a column or a
// group ends between them: then each block asks for its own.
//
// It needs Hopper's PTX, which neither the CPU nor other GPUs execute.
#include "../kernel.h"
#include "06_expert_parallel/kernels/ops_experts.h"
#include "core/ops.h"

namespace ultrascale::kernels {
namespace {

#ifdef ULTRASCALE_CUDA
void run(const Arguments& args) {
    ops::grouped_matmul(args.out, args.in[0], args.in[1], args.in[2]);
}
#else
constexpr void (*run)(const Arguments&) = nullptr;
#endif

const Registered here{"product grouped", "groups of rows, each with its own B", run, Needs::hopper};

}  // namespace
}  // namespace ultrascale::kernels
