// The cross-entropy's gradient in one kernel: logits are read once, the gradient is written once, 4
// bytes per element.
//
// A row of 49152 logits is 96 KB: too much for registers, but it fits into shared memory, on Hopper
// even for two blocks per SM. cp.async (__pipeline_memcpy_async) loads it there without passing
// through registers, in four parts that are all in flight at once; a thread works on its packs of
// the first part while the others are still arriving.
//
//     memory   [ part 0 ][ part 1 ][ part 2 ][ part 3 ]
//                  |         |         |         |        cp.async, each part a group that can be
//                  |         |         |         |        waited for
//     shared   [ part 0 ][ part 1 ][ part 2 ][ part 3 ]   a thread reads only packs that it loaded
//                t0 t1 ..  t0 t1 ..                       itself: no barrier for them
//                                |
//                                +-> max and sum, online; barrier; softmax - one-hot, scaled
//                                    -> memory
//
// A part that does not fit is read a second time from memory. In training the gradient may
// overwrite the logits (common/cuda's kernel does that, and returns the losses, too: one logarithm
// per row).
#include <cuda_pipeline_primitives.h>

#include "rows.cuh"

namespace ultrascale::kernels {
namespace {

using rows::Pack;
constexpr int threads = 512, parts = 4;

// The first `kept` of a row's packs wait in shared memory.
template <int n>
__global__ void __launch_bounds__(threads, 2)
    cross_entropy(__nv_bfloat16* gradient, const __nv_bfloat16* logits, const int32_t* targets,
                  int64_t columns, int kept, float scale) {
    DYNAMIC_SHARED(float4, shared);
    Pack<n>* waiting = reinterpret_cast<Pack<n>*>(shared);  // (kept)
    const Pack<n>* from = reinterpret_cast<const Pack<n>*>(logits + blockIdx.x * columns);
    Pack<n>* to = reinterpret_cast<Pack<n>*>(gradient + blockIdx.x * columns);
    const int packs = int(columns / n), target = targets[blockIdx.x], me = int(threadIdx.x);
    const int part = (kept + parts * threads - 1) / (parts * threads) * threads;  // packs of a part

    for (int i = 0; i < parts; ++i) {
        for (int p = i * part + me; p < min((i + 1) * part, kept); p += threads)
            if constexpr (n == 8)
                __pipeline_memcpy_async(&waiting[p], &from[p], sizeof(Pack<n>));
            else
                waiting[p] = from[p];  // cp.async moves 4 bytes or more
        __pipeline_commit();
    }
    rows::MaxSum own;
#pragma unroll
    for (int i = 0; i < parts; ++i) {
        __pipeline_wait_prior(parts - 1 - i);  // for all groups but the last ones
        for (int p = i * part + me; p < min((i + 1) * part, kept); p += threads)
            own.add(waiting[p]);
    }
    for (int p = kept + me; p < packs; p += threads) own.add(from[p]);
    const rows::MaxSum row = rows::block_max_sum(own);

    const float factor = scale / row.sum;
    const auto write = [&](int p, Pack<n> pack) {
#pragma unroll
        for (int j = 0; j < n; ++j) {
            const float softmax =
                __expf(__bfloat162float(pack.x[j]) - row.max) * factor;  // times scale
            pack.x[j] = __float2bfloat16_rn(softmax - (p * n + j == target ? scale : 0.0f));
        }
        to[p] = pack;
    };
    for (int p = me; p < kept; p += threads) write(p, waiting[p]);
    for (int p = kept + me; p < packs; p += threads) write(p, from[p]);
}

void run(const Arguments& args) {
    const int64_t row_count = args.size[0], columns = args.size[1], n = columns % 8 == 0 ? 8 : 1,
                  pack_bytes = 2 * n;
    const int64_t kept = std::min(columns / n, (shared_memory_per_block() - 1024) / pack_bytes);
    LAUNCH(n == 8 ? cross_entropy<8> : cross_entropy<1>, unsigned(row_count), threads,
           size_t(kept * pack_bytes))
    (rows::data(args.out), rows::data(args.in[0]), args.in[1].as<int32_t>(), columns, int(kept),
     1.0f / float(row_count));
}

const Registered here{"cross-entropy", "one kernel, the row in shared memory: 4", run};

}  // namespace
}  // namespace ultrascale::kernels
