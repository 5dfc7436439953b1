// Dropout with counter-based random numbers, four per call of Philox.
#include "ops_common.h"

namespace ultrascale::ops {

void dropout(Tensor y, const Tensor& x, float p, const Random& random, uint64_t first,
             const Tensor& addend) {
    const int64_t n = x.numel();
    check(y.numel() == n && (!addend || addend.numel() == n),
          "dropout: x, y and the addend are of one size");
    check(p >= 0 && p < 1, "dropout: p is in [0, 1)");
    OpSpan span("dropout", 2.0 * double(n), bytes_of(y, x) + (addend ? bytes_of(addend) : 0));
    if (n == 0) return;
    const float factor = 1 / (1 - p);
    const auto last = first + uint64_t(n);
    with_type(x.dtype(), [&]<class T>(T) {
        const T *from = x.as<T>(), *add = addend ? addend.as<T>() : nullptr;
        T* to = y.as<T>();
#pragma omp parallel for if (n > parallel_threshold / 16)
        for (uint64_t block = first / 4; block <= (last - 1) / 4; ++block) {
            const auto uniforms = random.uniforms(block);
            for (uint64_t at = std::max(first, 4 * block); at < std::min(last, 4 * block + 4);
                 ++at) {
                const float kept = uniforms[at % 4] > p ? float(from[at - first]) * factor : 0.0f;
                store(to[at - first], kept + (add ? float(add[at - first]) : 0.0f));
            }
        }
    });
}

}  // namespace ultrascale::ops
