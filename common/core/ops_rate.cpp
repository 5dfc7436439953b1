#include <algorithm>

#include "error.h"
#include "ops.h"
#include "stream.h"
#include "trace.h"

namespace ultrascale::ops {

static double rate_of_products(DType dtype, int64_t n) {
    Tensor a = Tensor::empty({n, n}, dtype, Memory::workspace),
           b = Tensor::empty({n, n}, dtype, Memory::workspace);
    Tensor d = Tensor::empty({n, n}, dtype, Memory::workspace);
    fill(a, 0.5f);
    fill(b, 0.25f);
    double best = 0;
    for (int repeat = 0; repeat < 6; ++repeat) {  // the first one warms up, the best one counts
        compute_stream().synchronize();
        const double begin = now_seconds();
        matmul(d, a, Transpose::no, b, Transpose::yes);
        compute_stream().synchronize();
        best = std::max(best, 2.0 * double(n) * double(n) * double(n) / (now_seconds() - begin));
    }
    return best;
}

double measure_matmul_rate(DType dtype, int64_t n) {
    try {
        return rate_of_products(dtype, n);
    } catch (const OutOfMemory&) {
        if (n == 1) throw;
    }
    return measure_matmul_rate(dtype, n / 2);
}

}  // namespace ultrascale::ops
