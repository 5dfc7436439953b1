// Products in groups on Hopper: one persistent kernel for all groups, with the pipeline of
// 07_kernels/6_hopper/6_product_async_store.cu. A producer thread asks TMA for tiles, two consumer
// warpgroups multiply 64 x 256 sums each, and results leave through TMA, those in bf16 while the
// next tile is multiplied. Two blocks form a cluster: if their tiles need the same columns of B,
// each asks for half of them, on behalf of both.
//
//     forward  y_g = x_g W_g^T     A: rows of x,  k = in     B: rows of W_g
//     input    dx_g = dy_g W_g     A: rows of dy, k = out    B: columns of W_g
//     weight   dw_g = dy_g^T x_g   A: columns of dy, k = the group's rows    B: columns of x
//
// One thread of each cluster reads the counts on the device, works out which tile belongs to which
// group, and distributes tiles to its cluster, so the host does not wait. A group's tiles have
// neighbouring numbers, so at any time blocks share its W, or its rows, in L2.
//
// A group may begin and end at any row:
//   - forward, input: a tile reads past the group's end, but the sums of those rows are not stored.
//     A warp whose 16 rows all belong to the group stores them through TMA, the last one element by
//     element. A warpgroup without any row multiplies nothing, so a group takes as much time as its
//     rows rounded up to 64, and N columns take as much as N rounded up to 128.
//   - weight: k ends with the group. In the last step, rows of other groups are overwritten with
//     zeros in shared memory, since even a NaN there must not count. For sums in fp32 the copy
//     engine adds in the L2 cache; a thread that loads, adds and stores would wait for each load.
#include "cuda/product_tiles.cuh"
#include "grouped_tiles.cuh"

namespace ultrascale::ops {

namespace {

constexpr int stages = 4;     // 48 KiB each
constexpr int under_way = 1;  // steps whose products a consumer leaves in flight
// How many steps before the end of a tile a producer wants its next one: not much earlier, since a
// cluster must not take a tile that another could begin sooner.
constexpr int want_before = 4;
constexpr int consumers = tile_rows / 64, threads = 128 * (consumers + 1);
constexpr int consumer_registers = 232, producer_registers = 40;
constexpr int piece = 64;  // columns of a tile whose k runs down its rows: 64 x 64, 8 KiB
constexpr int half_columns = tile_columns / cluster;  // the columns of B for which a block asks

struct Stage {
    Element a[tile_rows * k_step], b[tile_columns * k_step];
};
constexpr int boxes = 2;  // of the result, for each warp
struct Shared {
    Stage stage[stages];
    Element box[4 * consumers][boxes][box_rows * box_columns];
    Barrier full[stages], empty[stages];
    NextWork next;
};

__device__ int steps_of(const Work& work) { return (work.k_end - work.k + k_step - 1) / k_step; }

// Asks for one of B's halves, on behalf of both blocks or of this one.
template <GroupForm form>
__device__ void request_b(Stage& stage, Barrier* full, const CUtensorMap* B, const Work& work,
                          int k, int half, bool both) {
    constexpr uint16_t all = (1 << cluster) - 1;
    constexpr int columns = form == GroupForm::forward ? half_columns : piece;  // of a box
#pragma unroll
    for (int i = 0; i < half_columns; i += columns) {
        Element* const to = stage.b + (half * half_columns + i) * k_step;
        const int column = work.column + half * half_columns + i;
        if constexpr (form == GroupForm::weight)
            both ? tma_load_multicast(to, B, full, all, column, k)
                 : tma_load(to, B, full, column, k);
        else {
            const int x = form == GroupForm::forward ? k : column,
                      y = form == GroupForm::forward ? column : k;
            both ? tma_load_multicast(to, B, full, all, x, y, work.group, 0)
                 : tma_load(to, B, full, x, y, work.group, 0);
        }
    }
}

// Asks for a stage: rows of 64 k of A and B, or pieces of 64 columns by 64 k.
template <GroupForm form>
__device__ void request(Stage& stage, Barrier* full, const CUtensorMap* A, const CUtensorMap* B,
                        const Work& work, int k, int rank) {
    barrier_arrive_expect(full, sizeof(Stage));
    if constexpr (form == GroupForm::weight)
        for (int i = 0; i < tile_rows / piece; ++i)
            tma_load(stage.a + i * piece * k_step, A, full, work.row + i * piece, k);
    else
        tma_load(stage.a, A, full, k, work.row);
    if (work.shares)
        request_b<form>(stage, full, B, work, k, rank, true);
    else
        for (int half = 0; half < cluster; ++half)
            request_b<form>(stage, full, B, work, k, half, false);
}

// Overwrites k from `valid` on with zeros in all pieces of a stage. All consumers call it.
__device__ void clear_after(Stage& stage, int valid) {
    constexpr int pieces = (tile_rows + tile_columns) / piece, chunks = k_step * piece / 8;
    uint4* const all = reinterpret_cast<uint4*>(&stage);  // b follows a
    for (int i = int(threadIdx.x); i < pieces * chunks; i += 128 * consumers)
        if (i % chunks >= valid * piece / 8) all[i] = make_uint4(0, 0, 0, 0);
    fence_async_proxy();
    sync_some<128 * consumers>(1);
}

// sum (64, 256) of this warpgroup += A B of a stage, but only its first 8 `used` columns.
template <GroupForm form, int used>
__device__ void multiply(float (&sum)[tile_columns / 8][4], const Stage& stage, int warpgroup,
                         bool add) {
    constexpr Major a_major = form == GroupForm::weight ? Major::mn : Major::k,
                    b_major = form == GroupForm::forward ? Major::k : Major::mn;
    const Element* const a = stage.a + warpgroup * 64 * k_step;
#pragma unroll
    for (int k16 = 0; k16 < k_step / 16; ++k16) {
        const uint64_t a16 = a_major == Major::k ? k_major(a, k16) : mn_major(a, k16, k_step),
                       b16 = b_major == Major::k ? k_major(stage.b, k16)
                                                 : mn_major(stage.b, k16, k_step);
        wgmma<a_major, b_major, used>(sum, a16, b16, add || k16 > 0);
    }
}

template <GroupForm form, class D>
__global__ void CLUSTER(cluster) __launch_bounds__(threads, 1)
    product(D* out, const D* addend, int* taken, const GroupProduct p,
            const __grid_constant__ CUtensorMap A, const __grid_constant__ CUtensorMap B,
            const __grid_constant__ CUtensorMap C) {
    extern __shared__ __align__(1024) unsigned char bytes[];
    Shared& shared = *reinterpret_cast<Shared*>(bytes);
    const int warp = same_in_warp(int(threadIdx.x) / 32), warpgroup = warp / 4;
    if (threadIdx.x == 0) {
        tma_prefetch(&A);
        tma_prefetch(&B);
        for (int s = 0; s < stages; ++s) {
            barrier_init(&shared.full[s], 1);
            barrier_init(&shared.empty[s], consumers * cluster);
        }
        shared.next.init(4 * consumers + 1);
        barrier_init_fence();
    }
    cluster_sync();

    const int rank = int(cluster_rank());
    Work work;
    uint32_t parity = 0;  // of shared.next
    PipelineState<stages> state;
    if (warpgroup == consumers) {
        registers_fewer<producer_registers>();
        if (threadIdx.x % 128 == 0) {
            while (shared.next.read(work, parity)) {
                const int steps = steps_of(work),
                          want_at = steps > want_before ? steps - want_before : 0;
                for (int step = 0; step < steps; ++step, state.advance()) {
                    if (step == want_at) shared.next.want();
                    barrier_wait(&shared.empty[state.stage], state.parity ^ 1);
                    request<form>(shared.stage[state.stage], &shared.full[state.stage], &A, &B,
                                  work, work.k + step * k_step, rank);
                }
                if (steps == 0) shared.next.want();
            }
        } else if (threadIdx.x % 128 == 32 && rank == 0) {
            deal<form>(shared.next, p, taken);
        }
    } else {
        registers_more<consumer_registers>();
        PipelineState<stages> to_free;
        const auto free_stage = [&] {
            if (threadIdx.x % 128 < cluster)  // one thread per block
                barrier_arrive_at(&shared.empty[to_free.stage], threadIdx.x % 128);
            to_free.advance();
        };
        LaterStore<tile_columns / 8> later;  // of results in bf16
        const auto store_later = [&](int step) {
            if constexpr (std::is_same_v<D, Element>) later.at_step(step, &C, shared.box[warp]);
        };
        const auto finish_store = [&](int steps) {
            if constexpr (std::is_same_v<D, Element>) later.finish(steps, &C, shared.box[warp]);
        };
        while (shared.next.read_by_warp(work, parity)) {
            const int steps = steps_of(work), row = work.row + warpgroup * 64 + warp % 4 * box_rows;
            const bool idle = work.row + warpgroup * 64 >= work.row_end,
                       narrow = p.N - work.column <= tile_columns / 2;
            float sum[tile_columns / 8][4];
            if (form == GroupForm::weight && steps == 0)  // a group without rows
#pragma unroll
                for (int j = 0; j < tile_columns / 8; ++j)
#pragma unroll
                    for (int i = 0; i < 4; ++i) sum[j][i] = 0;
            // Runs all steps, with this many of the sums' tiles.
            const auto all_steps = [&](auto used) {
                for (int step = 0; step < steps; ++step, state.advance()) {
                    Stage& stage = shared.stage[state.stage];
                    barrier_wait(&shared.full[state.stage], state.parity);
                    if (form == GroupForm::weight && work.k_end - work.k - step * k_step < k_step)
                        clear_after(stage, work.k_end - work.k - step * k_step);
                    if (!idle) {
                        wgmma_fence();
                        multiply<form, used()>(sum, stage, warpgroup, step > 0);
                        wgmma_commit();
                    }
                    store_later(step);
                    if (!idle) wgmma_wait<under_way>(sum);
                    if (step >= under_way) free_stage();
                }
                wgmma_wait<0>(sum);
            };
            narrow ? all_steps(std::integral_constant<int, tile_columns / 16>())
                   : all_steps(std::integral_constant<int, tile_columns / 8>());
            for (int step = steps < under_way ? steps : under_way; step > 0; --step) free_stage();
            finish_store(steps);
            if (idle || row >= work.row_end) continue;
            const int64_t first_row = form == GroupForm::weight ? int64_t(work.group) * p.M : 0;
            if constexpr (std::is_same_v<D, Element>) {
                if (!addend && row + box_rows <= work.row_end) {
                    later.keep(sum, int(first_row) + row, work.column);
                    continue;
                }
            }
            if constexpr (std::is_same_v<D, float>) {
                if (!addend || addend == out) {
                    store_through_boxes(&C, addend != nullptr, work.group, row, work.column,
                                        shared.box[warp], sum);
                    continue;
                }
            }
            store_sums(out + first_row * p.N, addend ? addend + first_row * p.N : nullptr, p.N, row,
                       work.row_end, work.column, sum);
        }
        finish_store(0);
        if (threadIdx.x % 32 == 0)
            tma_store_wait_read<0>();  // TMA must have read the boxes before the block ends
    }
    // The other block arrives at this one's barriers until it has multiplied the tiles that this
    // one sent.
    cluster_sync();
}

constexpr int64_t size = sizeof(Element);

// A map of rows of 64 elements, `rows` of them.
CUtensorMap rows_map(const Tensor& x, int rows) {
    return tensor_map(x.data(), {{x.cols(), size, k_step}, {x.rows(), x.cols() * size, rows}});
}
// W (G, out, in): boxes of 64 columns of `in` by `rows` of `out`, in one group.
CUtensorMap weight_map(const Tensor& w, int rows) {
    const int64_t G = w.size(0), out = w.size(1), in = w.size(2);
    return tensor_map(w.data(), {{in, size, k_step},
                                 {out, in * size, rows},
                                 {G, out * in * size, 1},
                                 {1, G * out * in * size, 1}});
}

template <GroupForm form, class D>
void start(const Tensor& out, const Tensor& addend, const GroupProduct& p, int64_t pairs,
           const CUtensorMap& A, const CUtensorMap& B) {
    check(pairs < int64_t(1) << 29, "grouped_matmul: too many tiles");
    const auto kernel = product<form, D>;
    static const int most = clusters_at_once(kernel, cluster, threads, sizeof(Shared));
    const CUtensorMap C = std::is_same_v<D, float> ? sums_map(out) : result_map(out);
    const Tensor taken = Tensor::zeros({1}, DType::int32, Memory::workspace);
    LAUNCH(kernel, unsigned(std::min<int64_t>(pairs, most) * cluster), threads, sizeof(Shared))
    (data<D>(out), addend ? data<D>(addend) : nullptr, taken.as<int32_t>(), p, A, B, C);
}

}  // namespace

void grouped_wgmma(GroupForm form, const Tensor& out, const Tensor& a, const Tensor& b,
                   const Tensor& addend, const GroupProduct& p) {
    const int64_t across = ceil_div(p.N, tile_columns);
    if (form == GroupForm::weight) {
        const int64_t pairs = p.G * ceil_div(ceil_div(p.M, tile_rows) * across, cluster);
        with_type(out.dtype(), [&]<class D>(D) {
            start<GroupForm::weight, D>(out, addend, p, pairs, rows_map(a, k_step),
                                        rows_map(b, k_step));
        });
        return;
    }
    const int64_t pairs = ceil_div(most_row_tiles(a.rows(), p.G, tile_rows) * across, cluster);
    if (form == GroupForm::forward)
        start<GroupForm::forward, Element>(out, {}, p, pairs, rows_map(a, tile_rows),
                                           weight_map(b, half_columns));
    else
        start<GroupForm::input, Element>(out, {}, p, pairs, rows_map(a, tile_rows),
                                         weight_map(b, k_step));
}

}  // namespace ultrascale::ops
