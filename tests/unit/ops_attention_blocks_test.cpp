// Attention block by block, as ring attention computes it: each part of the queries attends to each
// part of the keys, the results are merged, and the gradients are added up in fp32. The whole
// agrees with double precision, for sequences that are cut into pieces or dealt out token by token.
#include <gtest/gtest.h>
#include <omp.h>

#include "04_context_parallel/kernels/ops_attention_merge.h"
#include "attention_reference.h"
#include "core/device.h"

namespace ultrascale {
namespace {

using namespace attention_test;

// Tokens offset, offset + stride, ... of a list.
struct Part {
    int64_t offset, stride, length;
};
using ModuleFactories = std::vector<Part>;
ModuleFactories deal(int64_t T, int64_t factories, bool striped) {
    ModuleFactories dealt;
    for (int64_t p = 0; p < factories; ++p) {
        const int64_t begin = T * p / factories;
        if (striped)
            dealt.push_back({p, factories, (T - p + factories - 1) / factories});
        else
            dealt.push_back({begin, 1, T * (p + 1) / factories - begin});
    }
    return dealt;
}

// Takes these tokens of x (B, T, ...).
Tensor take(const Tensor& x, const Part& part) {
    const Doubles from = to_double(x);
    const int64_t B = x.size(0), T = x.size(1), row = x.numel() / B / T;
    Doubles taken;
    for (int64_t b = 0; b < B; ++b)
        for (int64_t i = 0; i < part.length; ++i) {
            const auto at = from.begin() + (b * T + part.offset + i * part.stride) * row;
            taken.insert(taken.end(), at, at + row);
        }
    Shape shape = x.shape();
    shape[1] = part.length;
    if (x.dtype() == DType::int32)
        return integers(std::vector<int32_t>(taken.begin(), taken.end()), shape);
    return tensor_of(taken, shape, x.dtype());
}
// Puts a part that `take` would take from the whole (B, T, ...) back into it.
void put(Doubles& whole, const Tensor& x, int64_t T, const Part& part) {
    const Doubles from = to_double(x);
    const int64_t B = x.size(0), row = x.numel() / B / part.length;
    for (int64_t b = 0; b < B; ++b)
        for (int64_t i = 0; i < part.length; ++i)
            std::copy_n(from.begin() + (b * part.length + i) * row, row,
                        whole.begin() + (b * T + part.offset + i * part.stride) * row);
}

struct Whole {
    Doubles o, dq, dk, dv;
};

// Computes o and all gradients in fp32, which is never narrower than the gradients of a part. Only
// the log-sum-exps are initialised; the first block overwrites everything else.
Whole in_blocks(const Case& c, const Tensors& t, const ModuleFactories& q_parts,
                const ModuleFactories& k_parts) {
    const Tensor starts = mask_of(c).document_starts;
    Whole all = {Doubles(size_t(t.q.numel())), Doubles(size_t(t.q.numel())),
                 Doubles(size_t(t.k.numel())), Doubles(size_t(t.k.numel()))};
    std::vector<Tensor> dks, dvs;
    for (const Part& part : k_parts) {
        dks.push_back(poisoned({c.B, part.length, c.K, c.D}, DType::fp32));
        dvs.push_back(poisoned({c.B, part.length, c.K, c.D}, DType::fp32));
    }
    for (size_t a = 0; a < q_parts.size(); ++a) {
        const Part& own = q_parts[a];
        const Tensor q = take(t.q, own), dout = take(t.dout, own),
                     own_starts = starts ? take(starts, own) : Tensor();
        const Shape per_row = {c.B, c.H, own.length};
        const Tensor o = poisoned(q.shape(), DType::fp32), o_block = poisoned(q.shape(), q.dtype()),
                     lse = poisoned(per_row, DType::fp32),
                     lse_block = poisoned(per_row, DType::fp32),
                     delta = poisoned(per_row, DType::fp32), dq = poisoned(q.shape(), DType::fp32);
        ops::fill(lse, -INFINITY);
        const auto each_block = [&](auto with) {  // the rank's own keys first, then those before
            for (size_t hop = 0; hop < k_parts.size(); ++hop) {
                const size_t b = (a + k_parts.size() - hop) % k_parts.size();
                const Part& held = k_parts[b];
                with(b, hop, take(t.k, held), take(t.v, held),
                     ops::AttentionMask{c.causal, c.q_offset + own.offset, c.k_offset + held.offset,
                                        own_starts, own.stride});
            }
        };
        each_block(
            [&](size_t, size_t, const Tensor& k, const Tensor& v, const ops::AttentionMask& mask) {
                ops::attention_forward(o_block, lse_block, q, k, v, mask);
                ops::attention_merge(o, lse, o_block, lse_block);
            });
        ops::copy(o_block, o);
        ops::attention_delta(delta, dout, o_block);
        each_block([&](size_t b, size_t hop, const Tensor& k, const Tensor& v,
                       const ops::AttentionMask& mask) {
            ops::attention_backward(dq, dks[b], dvs[b], dout, q, k, v, lse, delta, mask,
                                    {.dq = hop > 0 ? dq : Tensor(), .dkv = a > 0});
        });
        put(all.o, o, c.Tq, own), put(all.dq, dq, c.Tq, own);
    }
    for (size_t b = 0; b < k_parts.size(); ++b)
        put(all.dk, dks[b], c.Tk, k_parts[b]), put(all.dv, dvs[b], c.Tk, k_parts[b]);
    return all;
}

void expect_whole() {
    std::vector<Case> cases = {
        {1, 201, 201, 4, 2, 16},
        {2, 131, 131, 2, 2, 7, true, 0, 0, true},     // heads that no vector fits, documents
        {1, 70, 203, 2, 1, 64, true, 133},            // the last 70 queries of 203
        {1, 130, 91, 3, 1, 128, true, 40, 60, true},  // some see no key
        {2, 90, 140, 4, 2, 64, false},
    };
#ifndef ULTRASCALE_SIMT  // large enough that several of Hopper's blocks share a tile of keys
    cases.push_back({1, 400, 400, 4, 1, 128});
    cases.push_back({1, 420, 420, 4, 1, 64, true, 0, 0, true});
#endif
    for (const Case& c : cases)
        for (const DType dtype : {DType::fp32, DType::bf16}) {
            const Tensors t(c, dtype, 1);
            const Reference reference(c);
            const Doubles o = reference.forward(to_double(t.q), to_double(t.k), to_double(t.v));
            const Reference::Gradients want = t.expected(reference);
            const double bound = dtype == DType::fp32 ? 5e-6 : 1e-2;
            for (const int64_t n : {1, 2, 3, 4})
                for (const bool striped : {false, true}) {
#ifdef ULTRASCALE_SIMT
                    if (n != (dtype == DType::fp32 ? 3 : 2)) continue;
#endif
                    SCOPED_TRACE(fmt::format("{} Tq {} Tk {} D {} causal {}, {} parts, striped {}",
                                             dtype_name(dtype), c.Tq, c.Tk, c.D, c.causal, n,
                                             striped));
                    const Whole got =
                        in_blocks(c, t, deal(c.Tq, n, striped), deal(c.Tk, n, striped));
                    EXPECT_LT(relative_error(got.o, o), bound);
                    EXPECT_LT(relative_error(got.dq, want.dq), bound);
                    EXPECT_LT(relative_error(got.dk, want.dk), bound);
                    EXPECT_LT(relative_error(got.dv, want.dv), bound);
                }
        }
}

TEST(OpsAttentionBlocks, AddUpToTheWhole) { expect_whole(); }

// The sums over blocks also have a fixed order.
TEST(OpsAttentionBlocks, HaveTheSameBitsInEveryRun) {
    const int threads = omp_get_max_threads();
    std::vector<std::pair<DType, Case>> some = {{DType::fp32, {1, 200, 200, 4, 2, 16}}};
#ifndef ULTRASCALE_SIMT
    some.insert(some.end(),
                {{DType::bf16, {2, 500, 500, 4, 2, 64}}, {DType::bf16, {1, 500, 500, 4, 2, 128}}});
#endif
    for (const auto& [dtype, c] : some) {
        const Tensors t(c, dtype, 23);
        const ModuleFactories factories = deal(c.Tq, 2, true);
        omp_set_num_threads(1);
        const Whole first = in_blocks(c, t, factories, factories);
        omp_set_num_threads(7);
        const Whole second = in_blocks(c, t, factories, factories);
        omp_set_num_threads(threads);
        EXPECT_EQ(first.o, second.o);
        EXPECT_EQ(first.dq, second.dq);
        EXPECT_EQ(first.dk, second.dk);
        EXPECT_EQ(first.dv, second.dv);
    }
}

// Each gradient is overwritten or added to, in q's dtype or in fp32, whatever the others are; dq
// may also be added to another tensor. Where the gradient is zero (at keys that no query sees, and
// at queries that see no key), the addend keeps its bits or is rounded.
void expect_added() {
    std::vector<Case> cases = {
        {1, 70, 100, 2, 1, 7, true, 10, 60},  // 50 queries see no key, 20 keys no query
        {1, 60, 80, 2, 2, 64, true, 0, 500},  // no query sees a key
        {1, 150, 300, 4, 1, 128, true, 100, 0},       {2, 129, 67, 2, 1, 64, false},
        {1, 100, 100, 2, 1, 64, true, 1, 3, true, 4},
    };
#ifdef ULTRASCALE_SIMT
    cases.erase(cases.begin() + 2, cases.begin() + 4);
#else
    cases.push_back({1, 260, 400, 4, 1, 64});  // several of Hopper's blocks share a tile of keys
    cases.push_back({1, 260, 400, 4, 1, 128});
#endif
    for (const Case& c : cases)
        for (const DType dtype : {DType::fp32, DType::bf16}) {
            Tensors t(c, dtype, 29);
            const Reference reference(c);
            const Reference::Gradients want = t.expected(reference);
            const Doubles o = reference.forward(to_double(t.q), to_double(t.k), to_double(t.v));
            ops::attention_forward(t.o, t.lse, t.q, t.k, t.v, mask_of(c));
            ops::attention_delta(t.delta, t.dout, t.o);
            enum class Adds { nothing, itself, another };
            struct Output {  // `before` is 0 if the output is overwritten
                Tensor tensor, addend;
                Doubles before;
                Output(const Shape& shape, DType dtype, Adds adds, uint64_t seed)
                    : tensor(poisoned(shape, dtype)), before(size_t(numel(shape)), 0) {
                    if (adds == Adds::nothing) return;
                    addend = random_tensor(shape, DType::fp32, seed), before = to_double(addend);
                    if (adds == Adds::itself) tensor = addend;
                }
                double rounded(double x) const {
                    return tensor.dtype() == DType::fp32 ? x : double(float(bf16(float(x))));
                }
                // `signs` is zero exactly where there is nothing to add.
                void expect(const Doubles& gradient, const Doubles& signs, double bound) const {
                    const Doubles now = to_double(tensor);
                    Doubles sum;
                    for (size_t i = 0; i < now.size(); ++i) {
                        sum.push_back(before[i] + gradient[i]);
                        if (signs[i] == 0) {
                            EXPECT_EQ(now[i], rounded(before[i])) << i;
                        }
                    }
                    EXPECT_LT(relative_error(now, sum), bound);
                }
            };
            struct Way {
                DType dtype;
                Adds adds;
            };
            const std::vector<Way> ways = {
                {dtype, Adds::nothing}, {DType::fp32, Adds::nothing}, {DType::fp32, Adds::itself}};
            std::vector<Way> ways_of_q = ways;
            ways_of_q.push_back({dtype, Adds::another});
            for (const Way& q_way : ways_of_q)
                for (const Way& kv_way : ways) {
                    SCOPED_TRACE(fmt::format("{} Tq {} Tk {} D {}, dq {} {}, dk and dv {} {}",
                                             dtype_name(dtype), c.Tq, c.Tk, c.D,
                                             dtype_name(q_way.dtype), int(q_way.adds),
                                             dtype_name(kv_way.dtype), int(kv_way.adds)));
                    const Output dq(t.q.shape(), q_way.dtype, q_way.adds, 31),
                        dk(t.k.shape(), kv_way.dtype, kv_way.adds, 32),
                        dv(t.k.shape(), kv_way.dtype, kv_way.adds, 33);
                    ops::attention_backward(dq.tensor, dk.tensor, dv.tensor, t.dout, t.q, t.k, t.v,
                                            t.lse, t.delta, mask_of(c),
                                            {.dq = dq.addend, .dkv = bool(dk.addend)});
                    const double bound = dtype == DType::fp32 ? 5e-6 : 1e-2;
                    dq.expect(want.dq, o, bound);
                    dk.expect(want.dk, want.dv, bound), dv.expect(want.dv, want.dv, bound);
                }
        }
}

TEST(OpsAttentionBlocks, GradientsAddedToWhatIsThere) { expect_added(); }

#ifndef ULTRASCALE_SIMT
TEST(OpsAttentionBlocks, WithoutHopper) {
    if (!device_is_gpu()) GTEST_SKIP() << "for GPUs";
    const NoHopper no_hopper;
    expect_whole();
    expect_added();
}
#endif

// Adding in bf16 would round at every block.
TEST(OpsAttentionBlocks, SumsMustBeWide) {
    const Case c = {1, 9, 9, 1, 1, 16};
    const Tensors t(c, DType::bf16, 37), wide(c, DType::fp32, 37);
    ops::attention_forward(t.o, t.lse, t.q, t.k, t.v, mask_of(c));
    ops::attention_delta(t.delta, t.dout, t.o);
    const auto backward = [&](const Tensor& dq, const Tensor& dk, const Tensor& dv,
                              ops::AttentionAdds add) {
        ops::attention_backward(dq, dk, dv, t.dout, t.q, t.k, t.v, t.lse, t.delta, mask_of(c), add);
    };
    EXPECT_THROW(backward(t.dq, t.dk, t.dv, {.dq = t.dq}), std::logic_error);
    EXPECT_THROW(backward(t.dq, t.dk, t.dv, {.dkv = true}), std::logic_error);
    EXPECT_THROW(backward(t.dq, t.dk, wide.dv, {}), std::logic_error);  // dk and dv share a dtype
}

}  // namespace
}  // namespace ultrascale
