// AdamW with states of any dtype and scales.
//
// One kernel looks the dtypes up (any_array.cuh), instead of one for each of 5^5 combinations.
//
// Scales need the magnitudes of the new numbers before any is stored:
//
//     measure   computes the update, and for each chunk keeps the largest magnitudes
//     scales    of each item from those of its chunks
//     update    computes it once more (from the old scales), and stores it with the new ones
//     publish   overwrites the old scales
#include "any_array.cuh"
#include "ops_adamw_any_checks.h"

namespace ultrascale::ops {

namespace {

constexpr int threads = 256;
constexpr int64_t chunk_size = 16384;  // elements that one block updates

struct Item {
    Array value, master, m, v, gradient;
    int64_t count, first_chunk;
    float decay;
    float smallest_v;  // of v's dtype
    bool own_value;    // value is not master
    bool stochastic;   // value is rounded with `random`
    Random random;
    uint64_t first;
    bool rounds_states;  // m and v in fp8, with `state_random`
    Random state_random;
};
struct Factors {
    float beta1, beta2, step_size, root_correction, eps;
    double max_norm;  // 0: no clipping
};
// Each item's scales of value, master, m and v; a missing one is 1.
using Scales = Pack<float, adamw_written>;
// Each chunk's largest magnitudes of master, m and v.
using Magnitudes = Pack<float, 4>;

__device__ void store_stochastic(const Item& item, const float (&from)[4], float scale, int64_t i,
                                 bool packs) {
    // Elements i .. i + 3 of the item come from two blocks of its stream, unless they begin at one.
    const uint64_t at = item.first + uint64_t(i);
    const std::array<uint32_t, 4> here = item.random.block_bits(at / 4);
    std::array<uint32_t, 4> random = here;
    if (at % 4 != 0) {
        const std::array<uint32_t, 4> next = item.random.block_bits(at / 4 + 1);
        for (uint64_t j = 0; j < 4; ++j)
            random[j] = at % 4 + j < 4 ? here[at % 4 + j] : next[at % 4 + j - 4];
    }
    float x[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) x[j] = from[j] * (1.0f / scale);
    uint16_t* const sixteen = static_cast<uint16_t*>(item.value.x) + i;
    uint8_t* const eight = static_cast<uint8_t*>(item.value.x) + i;
    switch (item.value.dtype) {
        case DType::bf16: return store_rounded<formats::Bf16>(sixteen, x, random, packs);
        case DType::fp16: return store_rounded<formats::Fp16>(sixteen, x, random, packs);
        case DType::e4m3: return store_rounded<formats::E4m3>(eight, x, random, packs);
        default: return store_rounded<formats::E5m2>(eight, x, random, packs);
    }
}

// Stores m (is_v = 0) or v (1) in fp8: elements i .. i + 3 have the bits 2 (first + i) + is_v ...
template <class Format>
__device__ void store_state_rounded(const Array& a, const Item& item, const float (&from)[4],
                                    float scale, uint64_t is_v, int64_t i, bool packs) {
    uint8_t* const to = static_cast<uint8_t*>(a.x) + i;
    for (int j = 0; j < 4; ++j) {
        if (j > 0 && !packs) break;
        const uint64_t at = 2 * (item.first + uint64_t(i + j)) + is_v;
        const uint32_t random = item.state_random.block_bits(at / 4)[at % 4];
        to[j] = uint8_t(
            Format::encode_stochastic(from[j] * (1.0f / scale), random, Overflow::saturate));
    }
}
__device__ void store_state(const Array& a, const Item& item, const float (&from)[4], float scale,
                            uint64_t is_v, int64_t i, bool packs) {
    if (item.rounds_states && a.dtype == DType::e4m3)
        store_state_rounded<formats::E4m3>(a, item, from, scale, is_v, i, packs);
    else if (item.rounds_states && a.dtype == DType::e5m2)
        store_state_rounded<formats::E5m2>(a, item, from, scale, is_v, i, packs);
    else
        store_scaled(a, from, scale, i, packs);
}

// One block updates a chunk of an item. If magnitudes is not null, they are written instead.
__global__ void __launch_bounds__(threads)
    update_any(const Item* items, int item_count, const double* squared_norm, const int32_t* skip,
               const Factors f, const Scales* new_scales, Magnitudes* magnitudes) {
    if (skip && *skip != 0) return;
    const int64_t chunk = blockIdx.x;
    const int index = item_of_chunk(items, item_count, chunk);
    const Item& item = items[index];
    const float clip = clip_factor(squared_norm, f.max_norm);
    const int64_t begin = (chunk - item.first_chunk) * chunk_size,
                  count = min(chunk_size, item.count - begin);
    const float master_scale = scale_of(item.master), m_scale = scale_of(item.m),
                v_scale = scale_of(item.v), gradient_scale = scale_of(item.gradient);
    Scales scales = {{1, 1, 1, 1}};
    if (new_scales) scales = new_scales[index];
    float largest[3] = {};
    const auto take = [&](int64_t i, bool packs) {
        float p[4], m[4], v[4], g[4];
        const Loaded old_p = load_elements(item.master, i, packs),
                     old_m = load_elements(item.m, i, packs),
                     old_v = load_elements(item.v, i, packs),
                     gradients = load_elements(item.gradient, i, packs);
        convert(p, old_p, item.master, master_scale);
        convert(m, old_m, item.m, m_scale);
        convert(v, old_v, item.v, v_scale);
        convert(g, gradients, item.gradient, gradient_scale);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            if (j > 0 && !packs) break;
            const float gradient = g[j] * clip;
            m[j] = m[j] + (1.0f - f.beta1) * (gradient - m[j]);
            v[j] = f.beta2 * v[j] + (1.0f - f.beta2) * gradient * gradient;
            p[j] =
                p[j] * item.decay - f.step_size * m[j] / (sqrtf(v[j]) * f.root_correction + f.eps);
            largest[0] = fmaxf(largest[0], fabsf(p[j]));
            largest[1] = fmaxf(largest[1], fabsf(m[j]));
            largest[2] = fmaxf(largest[2], fabsf(v[j]));
        }
        if (magnitudes) return;
        if (item.own_value) store_scaled(item.master, p, scales.x[1], i, packs);
        store_state(item.m, item, m, scales.x[2], 0, i, packs);
        const float least = item.smallest_v * scales.x[3];
#pragma unroll
        for (int j = 0; j < 4; ++j) v[j] = v[j] > 0 ? fmaxf(v[j], least) : v[j];
        store_state(item.v, item, v, scales.x[3], 1, i, packs);
        item.stochastic ? store_stochastic(item, p, scales.x[0], i, packs)
                        : store_scaled(item.value, p, scales.x[0], i, packs);
    };
    const bool packs = fits(item.value, begin) && fits(item.master, begin) && fits(item.m, begin) &&
                       fits(item.v, begin) && fits(item.gradient, begin);
    const int64_t in_packs = packs ? count / 4 * 4 : 0;
    for (int64_t i = threadIdx.x * 4; i < in_packs; i += threads * 4) take(begin + i, true);
    for (int64_t i = in_packs + threadIdx.x; i < count; i += threads) take(begin + i, false);
    if (!magnitudes) return;
    Magnitudes all = {};
#pragma unroll
    for (int i = 0; i < 3; ++i) {
        all.x[i] = block_max<threads>(largest[i]);
        __syncthreads();  // block_max's shared memory is used again
    }
    if (threadIdx.x == 0) magnitudes[chunk] = all;
}

// A block for each item.
__global__ void __launch_bounds__(threads)
    scales_of_items(Scales* new_scales, const Item* items, const Magnitudes* magnitudes,
                    const Scales* largest_numbers, const int32_t* skip) {
    if (skip && *skip != 0) return;
    const Item& item = items[blockIdx.x];
    const int64_t chunks = (item.count + chunk_size - 1) / chunk_size;
    float largest[3] = {};
    for (int64_t c = threadIdx.x; c < chunks; c += threads)
        for (int i = 0; i < 3; ++i)
            largest[i] = fmaxf(largest[i], magnitudes[item.first_chunk + c].x[i]);
    Scales result = {{1, 1, 1, 1}};
    for (int i = 0; i < 3; ++i) {
        largest[i] = block_max<threads>(largest[i]);
        __syncthreads();  // block_max's shared memory is used again
    }
    for (int i = 0; i < adamw_written; ++i)  // the value is the master, rounded
        if (const float number = largest_numbers[blockIdx.x].x[i]; number > 0)
            result.x[i] = scale_for(largest[i == 0 ? 0 : i - 1], number, true);
    if (threadIdx.x == 0) new_scales[blockIdx.x] = result;
}

__global__ void __launch_bounds__(threads)
    publish_scales(const Item* items, int item_count, const Scales* new_scales,
                   const int32_t* skip) {
    const int i = int(blockIdx.x) * threads + int(threadIdx.x);
    if (i >= item_count || (skip && *skip != 0)) return;
    const Item& item = items[i];
    const Array* const arrays[adamw_written] = {&item.value, &item.master, &item.m, &item.v};
    for (int k = 0; k < adamw_written; ++k)
        if (arrays[k]->scale) *arrays[k]->scale = new_scales[i].x[k];
}

}  // namespace

void adamw_any(const std::vector<AdamWAnyItem>& items, const Tensor& squared_norm,
               const AdamWSettings& s, const Tensor& skip_if) {
    for (const DType moments : {DType::fp32, DType::bf16})
        if (const auto plain = plain_items(items, moments); !skip_if && !plain.empty())
            return adamw(plain, squared_norm, s);
    const AdamWCost cost = adamw_any_cost(items, s);
    OpSpan span("adamw", cost.flops, cost.bytes);
    int64_t chunks = 0;
    bool scaled = false;
    std::vector<Item> list;
    std::vector<Scales> largest_numbers;
    for (const AdamWAnyItem& item : items) {
        const int64_t n = item.master.numel();
        list.push_back(
            {array_of(item.value, item.value_scale), array_of(item.master, item.master_scale),
             array_of(item.m, item.m_scale), array_of(item.v, item.v_scale),
             array_of(item.gradient, item.gradient_scale), n, chunks,
             adamw_factors(s, item.weight_decay, 1).decay, smallest_second_moment(item.v.dtype()),
             item.value.data() != item.master.data(), item.rounding.has_value(),
             item.rounding.value_or(Random(0, "")), item.first, item.state_rounding.has_value(),
             item.state_rounding.value_or(Random(0, ""))});
        chunks += ceil_div(n, chunk_size);
        scaled = scaled || has_scales(item);
        Scales numbers = {};
        const auto all = written(item);
        for (size_t i = 0; i < all.size(); ++i)
            if (*all[i].scale) numbers.x[i] = largest_scaled(all[i].tensor->dtype());
        largest_numbers.push_back(numbers);
    }
    if (chunks == 0) return;
    const AdamWFactors step_factors = adamw_factors(s, 0, 1);
    const Factors factors = {
        s.beta1, s.beta2, step_factors.step_size, step_factors.root_correction, s.eps, s.max_norm};
    const Tensor on_device = list_on_device(list), numbers = list_on_device(largest_numbers);
    const auto workspace = [](int64_t structs) {
        return Tensor::empty({structs, 4}, DType::fp32, Memory::workspace);
    };
    const Tensor new_scales = workspace(int64_t(list.size())), magnitudes = workspace(chunks);
    const auto* const all = static_cast<const Item*>(on_device.data());
    auto* const scales = static_cast<Scales*>(new_scales.data());
    const double* const norm = s.max_norm > 0 ? squared_norm.as<double>() : nullptr;
    const int32_t* const skip = skip_if ? skip_if.as<int32_t>() : nullptr;
    const int count = int(list.size());
    const auto update = [&](const Scales* new_scales, Magnitudes* magnitudes) {
        LAUNCH(update_any, unsigned(chunks), threads, 0)
        (all, count, norm, skip, factors, new_scales, magnitudes);
    };
    if (!scaled) return update(nullptr, nullptr);
    update(nullptr, static_cast<Magnitudes*>(magnitudes.data()));
    LAUNCH(scales_of_items, unsigned(count), threads, 0)
    (scales, all, static_cast<const Magnitudes*>(magnitudes.data()),
     static_cast<const Scales*>(numbers.data()), skip);
    update(scales, nullptr);
    LAUNCH(publish_scales, unsigned(ceil_div(count, threads)), threads, 0)
    (all, count, scales, skip);
}

}  // namespace ultrascale::ops
