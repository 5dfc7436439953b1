// Permutations of rows for ops::gather_rows. Each is made once and stays on the device.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "core/ops.h"
#include "model/activation.h"

namespace ultrascale::context_parallel {

class RowOrders {
public:
    // The order in which the rows of a tensor (a, b, row) become those of one (b, a, row).
    const Tensor& swapped(int64_t a, int64_t b) {
        return made({0, a, b}, [&](std::vector<int32_t>& rows) {
            for (int64_t j = 0; j < b; ++j)
                for (int64_t i = 0; i < a; ++i) rows.push_back(int32_t(i * b + j));
        });
    }
    // Another permutation, which `make` writes into a vector. `key` identifies it, and its first
    // number is not 0, which is swapped()'s.
    template <class Make>
    const Tensor& made(const std::vector<int64_t>& key, Make make) {
        Tensor& index = (*made_)[key];
        if (!index) {
            std::vector<int32_t> rows;
            make(rows);
            index = Tensor::from_host<int32_t>(rows, {int64_t(rows.size())}, Memory::workspace);
        }
        return index;
    }

private:
    std::shared_ptr<std::map<std::vector<int64_t>, Tensor>> made_ =
        std::make_shared<std::map<std::vector<int64_t>, Tensor>>();
};

// x's rows in another order, as a tensor of this shape.
inline Tensor reordered(const Tensor& x, const Tensor& order, Shape shape, Memory category) {
    const Tensor y = Tensor::empty(std::move(shape), x.dtype(), category);
    ops::gather_rows(y, x, order);
    return y;
}

}  // namespace ultrascale::context_parallel
