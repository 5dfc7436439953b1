// Every collective, dtype and operation, on every way that data can travel. Part of comm_test.cpp.
#pragma once

#include <algorithm>

#include "comm_test.h"

namespace ultrascale {

template <class T>
struct Collectives : testing::Test {};
TYPED_TEST_SUITE(Collectives, CommunicatedTypes);

TYPED_TEST(Collectives, ReductionsAddInRankOrder) {
    using T = TypeParam;
    int n = world().size(), me = world().rank();
    for (const CommunicationSettings& settings : ways) {
        Way way(settings);
        for (int64_t count : sizes(settings)) {
            for (Reduce op : operations) {
                SCOPED_TRACE(fmt::format("count {} op {} small_bytes {}", count, int(op),
                                         settings.small_bytes));
                Tensor x = tensor(numbers<T>(me, count));
                world().all_reduce(x, op);
                EXPECT_TRUE(is_reduction<T>(x, op, count));

                int root = int(count) % n;
                Tensor y = tensor(numbers<T>(me, count));
                world().reduce(y, root, op);
                EXPECT_TRUE(me == root ? is_reduction<T>(y, op, count)
                                       : same(y, numbers<T>(me, count)));

                int64_t share = std::min<int64_t>(count, 10007);
                Tensor in = tensor(numbers<T>(me, n * share)), out = blank<T>(share);
                world().reduce_scatter(out, in, op);
                EXPECT_TRUE(is_reduction<T>(out, op, n * share, 0, me * share));
                EXPECT_TRUE(same(in, numbers<T>(me, n * share)));
                Tensor slice = in.slice(me * share, (me + 1) * share);  // in place
                world().reduce_scatter(slice, in, op);
                EXPECT_TRUE(is_reduction<T>(slice, op, n * share, 0, me * share));
            }
        }
    }
}

TYPED_TEST(Collectives, MoveData) {
    using T = TypeParam;
    int n = world().size(), me = world().rank();
    for (const CommunicationSettings& settings : ways) {
        Way way(settings);
        for (int64_t count : sizes(settings)) {
            SCOPED_TRACE(fmt::format("count {} piece_bytes {}", count, settings.piece_bytes));
            Tensor mine = tensor(numbers<T>(me, count)), all = blank<T>(n * count);
            world().all_gather(all, mine);
            EXPECT_TRUE(same(all, joined<T>(n, count)));
            for (int root = 0; root < n; root += std::max(1, n - 1)) {
                Tensor x = tensor(numbers<T>(me, count));
                world().broadcast(x, root);
                EXPECT_TRUE(same(x, numbers<T>(root, count)));
                Tensor gathered = blank<T>(n * count);
                world().gather(gathered, mine, root);
                EXPECT_TRUE(same(
                    gathered, me == root ? joined<T>(n, count) : std::vector<T>(n * count, T(0))));
                Tensor scattered = blank<T>(count);
                world().scatter(scattered, tensor(numbers<T>(me, n * count)), root);
                EXPECT_TRUE(same(scattered, part(numbers<T>(root, n * count), me * count, count)));
            }
            Tensor in = tensor(numbers<T>(me, n * count)), out = blank<T>(n * count);
            world().all_to_all(out, in);
            for (int r = 0; r < n; ++r) {
                EXPECT_TRUE(same(out.slice(r * count, (r + 1) * count),
                                 part(numbers<T>(r, n * count), me * count, count)));
            }
            // In place: the output is this rank's slice of `whole`.
            Tensor whole = blank<T>(n * count), own = whole.slice(me * count, (me + 1) * count);
            own.copy_from_host(numbers<T>(me, count).data());
            world().all_gather(whole, own);
            EXPECT_TRUE(same(whole, joined<T>(n, count)));
        }
    }
}

TEST(Reductions, ABrokenOneIsSeen) {
    int n = world().size(), me = world().rank();
    std::vector<float> values = numbers<float>(me, 1000);
    if (me == n - 1) values[500] = std::nextafter(values[500], 1e9f) * 1.001f + (exact() ? 0 : 1);
    Tensor x = tensor(values);
    world().all_reduce(x);
    EXPECT_FALSE(is_reduction<float>(x, Reduce::sum, 1000));
    if (n >= 3) {
        EXPECT_TRUE(reduced<float>(Reduce::sum, n, 1000) !=
                    reduced<float>(Reduce::sum, n, 1000, 0, true));  // depends on the order
    }
}

TEST(Reductions, Corners) {
    if (!exact()) GTEST_SKIP() << "NCCL promises nothing of these";
    int n = world().size();
    Tensor nan = tensor<float>({world().rank() == n / 2 ? NAN : 1e30f});
    world().all_reduce(nan, Reduce::max);
    EXPECT_TRUE(std::isnan(first<float>(nan)));
    Tensor whole = tensor<int32_t>({-7, 7, world().rank() == 0 ? -1 : 0});
    world().all_reduce(whole, Reduce::average);
    EXPECT_TRUE(same<int32_t>(whole, {-7, 7, n == 1 ? -1 : 0}));
}

TEST(AllToAll, Uneven) {
    int n = world().size(), me = world().rank();
    auto count = [](int from, int to) {
        return int64_t((from * 7 + to * 3) % 5 * 11);
    };  // some are 0
    std::vector<int64_t> sends, receives;
    std::vector<int32_t> in, expected;
    for (int r = 0; r < n; ++r) {
        sends.push_back(count(me, r));
        receives.push_back(count(r, me));
        for (int64_t i = 0; i < sends[r]; ++i) in.push_back(me * 1000000 + r * 1000 + int(i));
        for (int64_t i = 0; i < receives[r]; ++i)
            expected.push_back(r * 1000000 + me * 1000 + int(i));
    }
    Tensor out = blank<int32_t>(int64_t(expected.size()));
    world().all_to_all(out, tensor(in), sends, receives, communication_stream());
    EXPECT_TRUE(same(out, expected));
}

}  // namespace ultrascale
