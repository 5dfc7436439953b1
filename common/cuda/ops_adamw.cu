// AdamW in one pass over all parameters; does the same as torch.nn.utils.clip_grad_norm_ followed
// by torch.optim.AdamW.
//
// Bytes moved per element (bf16 value and gradient): reads master, m, v (12) and the gradient (2),
// writes the three (12) and the value (2); with m and v in bf16 8 less. There is one launch for the
// whole model: the parameters' addresses are passed in a list, and each block updates a chunk of
// one parameter. The clipping factor is computed here from the squared norm, so the host need not
// wait for it.
#include "core/ops_adamw.h"
#include "ops_common.cuh"

namespace ultrascale::ops {

namespace {

constexpr int threads = 256;
constexpr int64_t chunk_size = 16384;  // elements that one block updates

struct Factors {
    float beta1, beta2, step_size, root_correction, eps;
    double max_norm;  // 0: no clipping
};

struct Item {
    void* value;
    float* master;
    void *m, *v;
    const void* gradient;
    int64_t count, first_chunk;
    float decay;
};

// Updates one chunk with n elements per access and `unroll` accesses to each array in flight. value
// may be master itself. S: the moments' type.
template <int n, int unroll, class S, class V, class G>
__device__ void update(V* value, float* master, S* m, S* v, const G* gradient, int64_t count,
                       float decay, float clip, Factors f) {
    const auto one = [=](float& p, S& m, S& v, float gradient) {
        const float g = gradient * clip;
        float first = to_float(m), second = to_float(v);
        first = first + (1.0f - f.beta1) * (g - first);
        second = f.beta2 * second + (1.0f - f.beta2) * g * g;
        p = p * decay - f.step_size * first / (sqrtf(second) * f.root_correction + f.eps);
        m = from_float<S>(first), v = from_float<S>(second);
    };
    const bool own_value = static_cast<void*>(value) != master;
    const int64_t packs = count / n;
    for (int64_t first = threadIdx.x; first < packs; first += unroll * threads) {
        Pack<float, n> ps[unroll];
        Pack<S, n> ms[unroll], vs[unroll];
        Pack<G, n> gs[unroll];
#pragma unroll
        for (int u = 0; u < unroll; ++u) {
            const int64_t i = (first + u * threads) * n;
            if (first + u * threads >= packs) continue;
            ps[u] = load<n>(master + i), ms[u] = load<n>(m + i), vs[u] = load<n>(v + i),
            gs[u] = load<n>(gradient + i);
        }
#pragma unroll
        for (int u = 0; u < unroll; ++u) {
            const int64_t i = (first + u * threads) * n;
            if (first + u * threads >= packs) continue;
            Pack<V, n> rounded;
#pragma unroll
            for (int j = 0; j < n; ++j) {
                one(ps[u].x[j], ms[u].x[j], vs[u].x[j], to_float(gs[u].x[j]));
                rounded.x[j] = from_float<V>(ps[u].x[j]);
            }
            store(m + i, ms[u]), store(v + i, vs[u]), store(master + i, ps[u]);
            if (own_value) store(value + i, rounded);
        }
    }
    if (const int64_t i = packs * n + threadIdx.x;
        i < count) {  // fewer than n are left, and n < threads
        one(master[i], m[i], v[i], to_float(gradient[i]));
        if (own_value) value[i] = from_float<V>(master[i]);
    }
}

template <class S, class V, class G>
__global__ void __launch_bounds__(threads)
    update_items(const Item* items, int item_count, const double* squared_norm, Factors f) {
    const int64_t chunk = blockIdx.x;
    const Item item = items[item_of_chunk(items, item_count, chunk)];
    const float clip = clip_factor(squared_norm, f.max_norm);
    const int64_t begin = (chunk - item.first_chunk) * chunk_size,
                  count = min(chunk_size, item.count - begin);
    V* value = static_cast<V*>(item.value) + begin;
    const G* gradient = static_cast<const G*>(item.gradient) + begin;
    float* master = item.master + begin;
    S *m = static_cast<S*>(item.m) + begin, *v = static_cast<S*>(item.v) + begin;
    const uintptr_t addresses = reinterpret_cast<uintptr_t>(value) |
                                reinterpret_cast<uintptr_t>(gradient) |
                                reinterpret_cast<uintptr_t>(master) |
                                reinterpret_cast<uintptr_t>(m) | reinterpret_cast<uintptr_t>(v);
    if (addresses % 16 == 0)
        update<4, 2>(value, master, m, v, gradient, count, item.decay, clip, f);
    else
        update<1, 4>(value, master, m, v, gradient, count, item.decay, clip, f);
}

}  // namespace

void adamw(const std::vector<AdamWItem>& items, const Tensor& squared_norm,
           const AdamWSettings& s) {
    const AdamWCost cost = adamw_cost(items, s);
    OpSpan span("adamw", cost.flops, cost.bytes);
    int64_t chunks = 0;
    std::vector<Item> list;
    for (const AdamWItem& item : items) {
        const int64_t n = item.master.numel();
        list.push_back({item.value.data(), item.master.as<float>(), item.m.data(), item.v.data(),
                        item.gradient.data(), n, chunks,
                        float(1.0 - double(s.lr) * item.weight_decay)});
        chunks += ceil_div(n, chunk_size);
    }
    if (chunks == 0) return;
    const bool narrow = items[0].m.dtype() == DType::bf16;  // moments in bf16
    check(narrow || items[0].m.dtype() == DType::fp32, "adamw: moments are fp32 or bf16");
    const double correction1 = 1 - std::pow(double(s.beta1), double(s.step));
    const double correction2 = 1 - std::pow(double(s.beta2), double(s.step));
    const Factors factors = {
        s.beta1, s.beta2,   float(s.lr / correction1), float(1 / std::sqrt(correction2)),
        s.eps,   s.max_norm};
    const Tensor on_device = list_on_device(list);
    const double* norm = s.max_norm > 0 ? squared_norm.as<double>() : nullptr;
    with_type(items[0].value.dtype(), [&]<class V>(V) {
        with_type(items[0].gradient.dtype(), [&]<class G>(G) {
            LAUNCH((narrow ? update_items<__nv_bfloat16, V, G> : update_items<float, V, G>),
                   unsigned(chunks), threads, 0)
            (static_cast<const Item*>(on_device.data()), int(list.size()), norm, factors);
        });
    });
}

}  // namespace ultrascale::ops
