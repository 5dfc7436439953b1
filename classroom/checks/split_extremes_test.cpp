// Exercise 03.3: logits so far from zero that only their differences have an exponential.
#include <gtest/gtest.h>

#include <cmath>

#include "03_tensor_parallel/kernels/ops_cross_entropy_split.h"

namespace ultrascale {
namespace {

// Three rows of four logits; each of two shards has two of the columns.
const std::vector<std::vector<float>> rows = {
    {-800, -801, -802, -803}, {900, 890, 905, 880}, {-3000, -2000, -INFINITY, -INFINITY}};

TEST(CrossEntropySplit, OfLogitsFarFromZero) {
    const auto N = int64_t(rows.size());
    const std::vector<int32_t> wanted = {2, 0, 1};
    const Tensor targets = Tensor::from_host<int32_t>(wanted, {N}, Memory::workspace),
                 stats = Tensor::empty({2, 3, N}, DType::fp32, Memory::workspace),
                 losses = Tensor::empty({N}, DType::fp32, Memory::workspace);
    std::vector<Tensor> shards;
    for (size_t r = 0; r < 2; ++r) {
        std::vector<float> shard;
        for (const auto& row : rows) shard.insert(shard.end(), {row[2 * r], row[2 * r + 1]});
        shards.push_back(Tensor::from_host<float>(shard, {N, 2}, Memory::workspace));
        ops::cross_entropy_partial(stats.slice(int64_t(r), int64_t(r) + 1), shards[r], targets,
                                   2 * int64_t(r));
    }
    for (size_t r = 0; r < 2; ++r) {
        ops::cross_entropy_combine(losses, shards[r], stats, targets, 2 * int64_t(r), 0);
        for (size_t i = 0; i < rows.size(); ++i) {
            double highest = -INFINITY, sum = 0;
            for (const double x : rows[i]) highest = std::max(highest, x);
            for (const double x : rows[i]) sum += std::exp(x - highest);
            EXPECT_NEAR(losses.to_host<float>()[i],
                        std::log(sum) + highest - rows[i][size_t(wanted[i])], 1e-4)
                << "row " << i;
        }
    }
}

}  // namespace
}  // namespace ultrascale
