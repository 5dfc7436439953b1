// The kernel of the collectives by copy engines: each rank's position among the summands, rounding,
// ends that do not fill a pack.
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "common/cuda/sum_slots.h"

namespace ultrascale::test {
namespace {

template <class T>
void expect_sums_in_rank_order() {
    std::minstd_rand random(1);
    constexpr int64_t stride = 1024;  // elements of a slot: more than any count here
    for (const int ranks : {2, 3, 8}) {
        for (const int64_t count : {0, 1, 8, 1000, 1021}) {
            std::vector<std::vector<T>> in(static_cast<size_t>(ranks),
                                           std::vector<T>(size_t(count)));
            for (auto& summand : in)
                for (T& x : summand)
                    x = T(std::ldexp(float(int(random() % 16384) - 8192), -int(random() % 12)));
            for (int rank = 0; rank < ranks; rank += ranks - 1) {
                std::vector<T> slots(size_t((ranks - 1) * stride), T(1e4f)),
                    wanted(static_cast<size_t>(count));
                for (int r = 0, slot = 0; r < ranks; ++r)
                    if (r != rank)
                        std::ranges::copy(in[size_t(r)], slots.begin() + stride * slot++);
                for (size_t i = 0; i < wanted.size(); ++i) {
                    float sum = float(in[0][i]);
                    for (int r = 1; r < ranks; ++r) sum += float(in[size_t(r)][i]);
                    wanted[i] = T(sum);
                }
                std::vector<T> poison(static_cast<size_t>(count + 8), T(-7.0f));
                const Tensor others = Tensor::from_host<T>(slots, {int64_t(slots.size())},
                                                           Memory::workspace),
                             own =
                                 Tensor::from_host<T>(in[size_t(rank)], {count}, Memory::workspace),
                             out = Tensor::from_host<T>(poison, {count + 8}, Memory::workspace);
                ops::sum_slots(out.data(), own.data(), others.data(), stride, count, dtype_of<T>,
                               rank, ranks);
                ops::sum_slots(own.data(), own.data(), others.data(), stride, count, dtype_of<T>,
                               rank, ranks);  // in place
                // The addresses are not aligned for packs; nothing before or after the elements may
                // be touched.
                const Tensor apart = Tensor::from_host<T>(poison, {count + 8}, Memory::workspace);
                const Tensor moved = Tensor::from_host<T>(std::vector<T>(in[size_t(rank)]), {count},
                                                          Memory::workspace);
                ops::sum_slots(apart.as<T>() + 1, moved.data(), others.data(), stride, count,
                               dtype_of<T>, rank, ranks);
                wanted.insert(wanted.begin(), T(-7.0f));
                wanted.resize(size_t(count + 8), T(-7.0f));
                EXPECT_EQ(
                    std::memcmp(apart.to_host<T>().data(), wanted.data(), size_t(apart.bytes())), 0)
                    << ranks << " " << count << " " << rank;
                wanted.erase(wanted.begin());
                wanted.push_back(T(-7.0f));
                EXPECT_EQ(std::memcmp(out.to_host<T>().data(), wanted.data(), size_t(out.bytes())),
                          0)
                    << ranks << " " << count << " " << rank;
                EXPECT_EQ(std::memcmp(own.to_host<T>().data(), wanted.data(), size_t(own.bytes())),
                          0)
                    << ranks << " " << count << " " << rank;
            }
        }
    }
}

TEST(OpsSumSlots, InRankOrder) {
    expect_sums_in_rank_order<float>();
    expect_sums_in_rank_order<bf16>();
    expect_sums_in_rank_order<fp16>();
}

}  // namespace
}  // namespace ultrascale::test
