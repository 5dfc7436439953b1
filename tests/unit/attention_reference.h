// Attention by its formulas in double precision, and the tensors of a test case that is compared
// with it.
#pragma once

#include <cmath>
#include <random>

#include "core/ops.h"
#include "tests/test_util.h"

namespace ultrascale::attention_test {

struct Case {
    int64_t B, Tq, Tk, H, K, D;
    bool causal = true;
    int64_t q_offset = 0, k_offset = 0;
    bool documents = false;
    int64_t stride = 1;
    int64_t window = 0, prefix = 0;
    bool has_starts() const { return documents || window > 0; }
};

// Draws documents of random lengths. Returns the first position that each query sees: that of its
// document, or of its window.
inline Tensor document_starts(const Case& c, uint64_t seed) {
    std::mt19937_64 generator(seed);
    std::vector<int32_t> starts;
    for (int64_t b = 0; b < c.B; ++b) {
        int32_t start = c.documents ? int32_t(c.q_offset) / 2 : 0;
        for (int64_t i = 0; i < c.Tq; ++i) {
            if (c.documents && generator() % 29 == 0) {
                start = int32_t(c.q_offset + i * c.stride);
                // often at a token that the stride skips
                if (c.stride > 1) start -= int32_t(generator() % uint64_t(c.stride));
            }
            const int64_t reach = c.window > 0 ? c.q_offset + i * c.stride - c.window + 1 : 0;
            starts.push_back(std::max(start, int32_t(reach)));
        }
    }
    return integers(starts, {c.B, c.Tq});
}

inline ops::AttentionMask mask_of(const Case& c) {
    return {c.causal, c.q_offset, c.k_offset, c.has_starts() ? document_starts(c, 99) : Tensor(),
            c.stride, c.prefix};
}

// Attention in double precision, by its formulas.
struct Reference {
    Case c;
    Doubles starts;  // empty without documents and window
    explicit Reference(const Case& c) : c(c) {
        if (c.has_starts()) starts = to_double(document_starts(c, 99));
    }

    bool visible(int64_t b, int64_t i, int64_t j) const {
        const int64_t key = c.k_offset + j * c.stride;
        if (c.causal && key > c.q_offset + i * c.stride && key >= c.prefix) return false;
        return starts.empty() || double(key) >= starts[b * c.Tq + i];
    }
    size_t q_at(int64_t b, int64_t i, int64_t h) const {
        return size_t(((b * c.Tq + i) * c.H + h) * c.D);
    }
    size_t k_at(int64_t b, int64_t j, int64_t h) const {
        return size_t(((b * c.Tk + j) * c.K + h / (c.H / c.K)) * c.D);
    }
    double scalar(const double* a, const double* b) const {
        double sum = 0;
        for (int64_t d = 0; d < c.D; ++d) sum += a[d] * b[d];
        return sum;
    }
    void add(double* to, double factor, const double* row) const {
        for (int64_t d = 0; d < c.D; ++d) to[d] += factor * row[d];
    }
    // Calls f(b, h, i) for each row.
    template <class F>
    void rows(F f) const {
        for (int64_t b = 0; b < c.B; ++b)
            for (int64_t h = 0; h < c.H; ++h)
                for (int64_t i = 0; i < c.Tq; ++i) f(b, h, i);
    }

    Doubles forward(const Doubles& q, const Doubles& k, const Doubles& v, Doubles* lse = nullptr,
                    Doubles* probabilities = nullptr) const {
        Doubles o(q.size(), 0);
        rows([&](int64_t b, int64_t h, int64_t i) {
            Doubles p(size_t(c.Tk), 0);
            double sum = 0;
            for (int64_t j = 0; j < c.Tk; ++j)
                if (visible(b, i, j))
                    sum += p[j] =
                        std::exp(scalar(&q[q_at(b, i, h)], &k[k_at(b, j, h)]) / std::sqrt(c.D));
            for (double& x : p) x = sum > 0 ? x / sum : 0;
            for (int64_t j = 0; j < c.Tk; ++j)
                if (p[j] != 0) add(&o[q_at(b, i, h)], p[j], &v[k_at(b, j, h)]);
            if (lse) lse->push_back(std::log(sum));
            if (probabilities) probabilities->insert(probabilities->end(), p.begin(), p.end());
        });
        return o;
    }

    struct Gradients {
        Doubles dq, dk, dv, delta;
    };
    Gradients backward(const Doubles& q, const Doubles& k, const Doubles& v,
                       const Doubles& dout) const {
        Doubles p;
        const Doubles o = forward(q, k, v, nullptr, &p);
        Gradients g = {Doubles(q.size(), 0), Doubles(k.size(), 0), Doubles(v.size(), 0), {}};
        const double* row = p.data();
        rows([&](int64_t b, int64_t h, int64_t i) {
            const size_t qi = q_at(b, i, h);
            g.delta.push_back(scalar(&dout[qi], &o[qi]));
            for (int64_t j = 0; j < c.Tk; ++j) {
                if (row[j] == 0) continue;
                const size_t kj = k_at(b, j, h);
                const double ds =
                    row[j] * (scalar(&dout[qi], &v[kj]) - g.delta.back()) / std::sqrt(c.D);
                add(&g.dv[kj], row[j], &dout[qi]);
                add(&g.dq[qi], ds, &k[kj]);
                add(&g.dk[kj], ds, &q[qi]);
            }
            row += c.Tk;
        });
        return g;
    }
};

struct Tensors {
    Tensor q, k, v, dout, o, lse, delta, dq, dk, dv, probabilities;
    // Only naive attention needs the probabilities; those of a large case take seconds to fill.
    Tensors(const Case& c, DType dtype, uint64_t seed, bool with_probabilities = true) {
        const Shape query = {c.B, c.Tq, c.H, c.D}, key = {c.B, c.Tk, c.K, c.D};
        q = random_tensor(query, dtype, seed), dout = random_tensor(query, dtype, seed + 1);
        k = random_tensor(key, dtype, seed + 2), v = random_tensor(key, dtype, seed + 3);
        o = poisoned(query, dtype), dq = poisoned(query, dtype), dk = poisoned(key, dtype),
        dv = poisoned(key, dtype);
        lse = poisoned({c.B, c.H, c.Tq}, DType::fp32),
        delta = poisoned({c.B, c.H, c.Tq}, DType::fp32);
        if (with_probabilities) probabilities = poisoned({c.B, c.H, c.Tq, c.Tk}, dtype);
    }
    Reference::Gradients expected(const Reference& reference) const {
        return reference.backward(to_double(q), to_double(k), to_double(v), to_double(dout));
    }
};

// While an object of this type lives, Hopper uses the other GPUs' kernels.
struct NoHopper {
    NoHopper() { setenv("ULTRASCALE_NO_HOPPER", "1", 1); }
    ~NoHopper() { unsetenv("ULTRASCALE_NO_HOPPER"); }
    NoHopper(const NoHopper&) = delete;
};

inline void expect_gradients(const Tensors& t, const Reference::Gradients& want, double bound) {
    EXPECT_LT(relative_error(t.dq, want.dq), bound);
    EXPECT_LT(relative_error(t.dk, want.dk), bound);
    EXPECT_LT(relative_error(t.dv, want.dv), bound);
}

}  // namespace ultrascale::attention_test
