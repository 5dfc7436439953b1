// What every all-reduce of our own must do, whatever its way of summing: the tests of the ring and
// of the tree call these on all ranks. `sum(group, x)` replaces x by the sum over the group.
#pragma once

#include "comm_test.h"

namespace ultrascale {

// Rank r's element i: an integer that differs from its neighbours. Even bf16 represents the sums
// over 8 ranks exactly.
template <class T>
std::vector<T> integers(int r, int64_t count) {
    std::vector<T> values;
    for (int64_t i = 0; i < count; ++i) values.push_back(T(float((i * 5 + r * 3) % 17 + r)));
    return values;
}

template <class T, class Sum>
void expect_equals_all_reduce(const Communicator& group, int64_t count, const Sum& sum) {
    SCOPED_TRACE(fmt::format("{} of {} ranks, {} elements", group.rank(), group.size(), count));
    const Tensor x = tensor(integers<T>(group.rank(), count)),
                 y = tensor(integers<T>(group.rank(), count));
    sum(group, x);
    group.all_reduce(y);
    EXPECT_EQ(x.to_host_float(), y.to_host_float());
}

// Calls test(group) for groups in which neighbours are not neighbours in the world, in another
// order; and which are not of one size.
template <class Test>
void for_groups(const Test& test) {
    const int me = world().rank();
    const Communicator interleaved = world().split(me % 2, -me, "interleaved"),
                       uneven = world().split(me < 1, me, "uneven");
    test(interleaved), test(uneven);
}

template <class Sum>
void expect_same_bits_on_all_ranks(const Sum& sum) {
    const Tensor x = tensor(numbers<float>(world().rank(), 5003)), rank_0_sum = blank<float>(5003);
    sum(world(), x);
    ops::copy(rank_0_sum, x);
    world().broadcast(rank_0_sum, 0);
    EXPECT_TRUE(same(x, rank_0_sum.to_host<float>()));
}

// Of a view of any shape; what is around it stays.
template <class Sum>
void expect_sums_a_view(const Sum& sum) {
    const Tensor whole = tensor(integers<float>(world().rank(), 40)),
                 x = whole.slice(3, 33).view({2, 3, 5});
    sum(world(), x);
    std::vector<float> expected = integers<float>(world().rank(), 40);
    for (int64_t i = 3; i < 33; ++i) {
        expected[i] = 0;
        for (int r = 0; r < world().size(); ++r) expected[i] += integers<float>(r, 40)[i];
    }
    EXPECT_TRUE(same(whole, expected));
}

}  // namespace ultrascale
