// Decides how many pieces a tile is divided into, and merges them (attention_wgmma_pieces.cuh).
#include "attention_wgmma_backward.cuh"
#include "attention_wgmma_forward.cuh"

namespace ultrascale::ops {

namespace {

// For few tiles, in backward: enough pieces that the longest tile, whose keys all queries see,
// takes about as long as the work of all tiles (half of which a causal mask hides) divided by the
// multiprocessors. It also chooses two if there are a few hundred long tiles: a few heads are
// processed at a time (TileOrder), so the longest tile of the last heads begins late. (H200,
// Llama-3-8B's heads: one sequence of 4096 0.99 -> 0.80 ms, of 8192 3.14 -> 2.86; but doubling the
// first rule's pieces is slower.) A piece of fewer than four steps is not worth its overhead.
int pieces_of_few(int64_t tiles, int64_t steps, bool causal) {
    const int64_t at_once = multiprocessors(),
                  least = causal && steps >= 128 && tiles <= 4 * at_once ? 2 : 1;
    return int(std::clamp<int64_t>(at_once * (causal ? 2 : 1) / tiles, least,
                                   std::max<int64_t>(steps / 4, 1)));
}

// For tiles that all take the same number of steps: after whole rounds of all multiprocessors, the
// leftover tiles would occupy only some of them. Returns the number of pieces of each of these
// tiles for which the fewest steps are needed, if a piece's beginning and end cost as much as 6
// steps, and the second launch and the addition as much as 16 (of 2.5 us each).
int pieces_of_rest(int64_t tiles, int64_t steps) {
    const auto steps_with = [&](int64_t pieces) {
        return ceil_div(tiles * pieces, int64_t(multiprocessors())) * (ceil_div(steps, pieces) + 6);
    };
    int64_t best = 1, fewest = steps_with(1) - 16;
    for (int64_t pieces = 2; pieces <= steps / 4; ++pieces)
        if (steps_with(pieces) < fewest) best = pieces, fewest = steps_with(pieces);
    return int(best);
}

constexpr int threads = 256;

// Each warp merges the pieces of a query: O = sum_p e^(lse_p - lse) O_p, lse = log sum_p e^lse_p.
// No exponent is positive, so nothing overflows; a query without keys has O = 0, lse = - infinity.
template <int D>
__global__ void __launch_bounds__(threads)
    merge(Element* o, float* lse, Pieces pieces, AttentionSizes s) {
    constexpr int queries = ForwardShape<D>::queries, n = D / 32;
    const int warp = int(blockIdx.x * threads + threadIdx.x) / 32, lane = int(threadIdx.x) % 32;
    const int row = warp % queries, number = warp / queries;
    if (number >= pieces.tiles()) return;
    const TilePiece tile(pieces, number * pieces.per_tile);
    const int64_t query = int64_t(pieces.order.tiles - 1 - tile.rank) * queries + row;
    if (query >= s.Tq) return;
    const float* const first = pieces.results + int64_t(number) * forward_piece<D>(queries);
    const int64_t next = int64_t(pieces.tiles()) * forward_piece<D>(queries);
    const auto lse_of = [&](int p) { return first[p * next + queries * D + row]; };

    float top = -INFINITY;
    for (int p = 0; p < pieces.per_tile; ++p) top = fmaxf(top, lse_of(p));
    Pack<float, n> sum = {};
    float weights = 0;
    for (int p = 0; p < pieces.per_tile && top > -INFINITY; ++p) {
        const float weight = expf(lse_of(p) - top);
        const Pack<float, n> part = load<n>(first + p * next + row * D + lane * n);
        for (int j = 0; j < n; ++j) sum.x[j] += weight * part.x[j];
        weights += weight;
    }
    Pack<Element, n> rounded;
    for (int j = 0; j < n; ++j)
        rounded.x[j] = from_float<Element>(weights > 0 ? sum.x[j] / weights : 0);
    store(o + ((tile.b * s.Tq + query) * s.H + tile.h) * D + lane * n, rounded);
    if (lane == 0) lse[(tile.b * s.H + tile.h) * s.Tq + query] = top + logf(weights);
}

// Each block adds up a tile's pieces; blockIdx.y is 0 for dV, 1 for dK.
template <int D, class Out>
__global__ void __launch_bounds__(threads)
    sum_pieces(Out* dv, Out* dk, Pieces pieces, AttentionSizes s, bool add) {
    constexpr int numel = backward_keys * D;
    const KeyTile tile(pieces, int(blockIdx.x) * pieces.per_tile);
    const float* const from =
        pieces.results + (int64_t(blockIdx.y) * pieces.count() + blockIdx.x) * numel;
    Out* const out = blockIdx.y == 0 ? dv : dk;
    for (int i = int(threadIdx.x) * 4; i < numel; i += threads * 4) {
        const int64_t key = tile.first + i / D;
        if (key >= s.Tk) break;
        Pack<float, 4> sum = load<4>(from + i);
        for (int p = 1; p < pieces.per_tile; ++p) {
            const Pack<float, 4> more = load<4>(from + int64_t(p) * pieces.tiles() * numel + i);
            for (int j = 0; j < 4; ++j) sum.x[j] += more.x[j];
        }
        Out* const to = out + (tile.b * s.Tk + key) * s.k_row() + tile.h * D + i % D;
        for (int j = 0; j < 4; ++j) sum.x[j] *= blockIdx.y == 0 ? 1 : s.scale();
        if constexpr (std::is_same_v<Out, float>)
            store_sums(to, sum.x, add ? to : nullptr);
        else
            store_sums(to, sum.x, nullptr);
    }
}

}  // namespace

std::vector<Pieces> divided(const TileOrder& order, int64_t steps, const DeviceMask& mask,
                            bool few) {
    const int tiles = order.count();
    const int few_pieces = few ? pieces_of_few(tiles, steps, mask.causal) : 1;
    if (few_pieces > 1) return {{order, 0, tiles, few_pieces}};
    const int rest = mask.causal || mask.starts ? 0 : tiles % multiprocessors();
    const int pieces = rest == 0 ? 1 : pieces_of_rest(rest, steps);
    if (pieces == 1) return {{order, 0, tiles, 1}};
    std::vector<Pieces> launches;
    if (rest < tiles) launches.push_back({order, 0, tiles - rest, 1});
    launches.push_back({order, tiles - rest, tiles, pieces});
    return launches;
}

Tensor piece_results(Pieces& pieces, int64_t numel) {
    if (pieces.per_tile == 1) return {};
    const Tensor results = Tensor::empty({pieces.count(), numel}, DType::fp32, Memory::workspace);
    pieces.results = data<float>(results);
    return results;
}

void merge_pieces(const Tensor& o, const Tensor& lse, const Pieces& pieces,
                  const AttentionSizes& s) {
    const int queries = s.D == 64 ? ForwardShape<64>::queries : ForwardShape<128>::queries;
    LAUNCH(s.D == 64 ? merge<64> : merge<128>,
           unsigned(ceil_div(pieces.tiles() * queries, threads / 32)), threads, 0)
    (data<Element>(o), data<float>(lse), pieces, s);
}

void add_pieces(const Tensor& dk, const Tensor& dv, const Pieces& pieces, const AttentionSizes& s,
                bool add) {
    with_type(dk.dtype(), [&]<class Out>(Out) {
        const auto kernel = s.D == 64 ? sum_pieces<64, Out> : sum_pieces<128, Out>;
        LAUNCH(kernel, dim3(unsigned(pieces.tiles()), 2), threads, 0)
        (data<Out>(dv), data<Out>(dk), pieces, s, add);
    });
}

}  // namespace ultrascale::ops
