// Random inputs for measurements of speed.
#pragma once

#include <vector>

#include "core/ops.h"
#include "core/random.h"

namespace ultrascale {

// Standard normal numbers, the same 65536 repeated. The values that tensor cores multiply determine
// how much power they draw, and so how fast they run: with zeros or small integers they would run
// too fast.
inline Tensor random_tensor(const Shape& shape, DType dtype = DType::bf16, unsigned seed = 1) {
    std::vector<float> numbers(65536);
    Random(seed, "random_tensor").normals(0, numbers);
    const int64_t size = numel(shape);
    int64_t done = std::min(size, int64_t(numbers.size()));
    Tensor all = Tensor::empty({size}, dtype, Memory::workspace);
    const Tensor first =
        Tensor::from_host<float>(numbers, {int64_t(numbers.size())}, Memory::workspace);
    ops::copy(all.slice(0, done), first.slice(0, done));
    for (int64_t more; done < size; done += more) {
        more = std::min(done, size - done);
        ops::copy(all.slice(done, done + more), all.slice(0, more));
    }
    return all.view(shape);
}

}  // namespace ultrascale
