// The double binary tree of chapter 01, on any number of ranks. Linked into comm_test, which runs
// every test on every rank.
#include "01_data_parallel/6_tree_all_reduce.h"
#include "01_data_parallel/lab/predict.h"
#include "comm_test.h"

using namespace ultrascale;
using namespace ultrascale::data_parallel;

namespace {

const std::vector<int64_t> numbers_of_chunks = {1, 2, 7, 32};
// From zero elements, through fewer than chunks, to sizes that no number of chunks divides. Chunks
// stay below the size at which ops::add begins to use threads.
const std::vector<int64_t> some_counts = {0, 1, 2, 3, 7, 64, 1000, 4099, 20011};

// Rank r's element i: an integer that differs from its neighbours. Even bf16 represents the sums
// over 8 ranks exactly.
template <class T>
std::vector<T> integers(int r, int64_t count) {
    std::vector<T> values;
    for (int64_t i = 0; i < count; ++i) values.push_back(T(float((i * 5 + r * 3) % 17 + r)));
    return values;
}

template <class T>
void expect_equal_to_all_reduce(const Communicator& group) {
    for (int64_t chunks : numbers_of_chunks) {
        for (int64_t count : some_counts) {
            SCOPED_TRACE(fmt::format("{} of {} ranks, {} elements in 2 x {} chunks", group.rank(),
                                     group.size(), count, chunks));
            const Tensor x = tensor(integers<T>(group.rank(), count)),
                         y = tensor(integers<T>(group.rank(), count));
            tree_all_reduce(group, x, chunks);
            group.all_reduce(y);
            EXPECT_EQ(x.to_host_float(), y.to_host_float());
        }
    }
}

}  // namespace

TEST(TreeAllReduce, EqualsAllReduce) {
    expect_equal_to_all_reduce<float>(world());
    expect_equal_to_all_reduce<bf16>(world());
}

// Neighbours in the group are not neighbours in the world, and the group has another order.
TEST(TreeAllReduce, InGroups) {
    const int me = world().rank();
    const Communicator interleaved = world().split(me % 2, -me, "interleaved"),
                       uneven = world().split(me < 1, me, "uneven");
    expect_equal_to_all_reduce<float>(interleaved);
    expect_equal_to_all_reduce<float>(uneven);
}

TEST(TreeAllReduce, AllRanksHaveTheSameBits) {
    const Tensor x = tensor(numbers<float>(world().rank(), 5003)), rank_0_sum = blank<float>(5003);
    tree_all_reduce(world(), x, 5);
    ops::copy(rank_0_sum, x);
    world().broadcast(rank_0_sum, 0);
    EXPECT_TRUE(same(x, rank_0_sum.to_host<float>()));
}

TEST(TreeAllReduce, OfAViewAndOfAnyShape) {
    const Tensor whole = tensor(integers<float>(world().rank(), 40)),
                 x = whole.slice(3, 33).view({2, 3, 5});
    tree_all_reduce(world(), x, 4);
    std::vector<float> expected = integers<float>(world().rank(), 40);
    for (int64_t i = 3; i < 33; ++i) {
        expected[i] = 0;
        for (int r = 0; r < world().size(); ++r) expected[i] += integers<float>(r, 40)[i];
    }
    EXPECT_TRUE(same(whole, expected));
}

TEST(TreeAllReduce, CommunicatesWhatIsPredicted) {
    const int n = world().size(), me = world().rank();
    for (int64_t chunks : numbers_of_chunks) {
        for (int64_t count : some_counts) {
            const Tensor x = tensor(integers<bf16>(me, count));
            world().barrier();
            communication_reset_counts();
            tree_all_reduce(world(), x, chunks);
            const CommunicationCounts counted = communication_counts();
            const auto predicted = predict_tree_all_reduce(count, DType::bf16, me, n, chunks);
            EXPECT_EQ(counted[int(Collective::send_recv)].calls, predicted.calls);
            EXPECT_EQ(counted[int(Collective::send_recv)].bytes, predicted.bytes);
            EXPECT_LE(predicted.bytes, 2 * x.bytes() + 256);  // halves differ by up to 64 elements
            for (int kind = 0; kind < collective_kinds; ++kind)
                EXPECT_TRUE(kind == int(Collective::send_recv) || counted[kind].calls == 0);
        }
    }
}

TEST(TreeAllReduce, HoldsAChunkOfEachNeighbour) {
    const int n = world().size(), me = world().rank();
    const Tensor x = blank<float>(2 * 64 * 7 * 64);
    const int64_t before = memory_now()[int(Memory::communication)];
    memory_reset_peak();
    tree_all_reduce(world(), x, 7);
    int64_t chunks = 0;
    for (const TreePlace& place : tree_places(me, n)) chunks += int64_t(place.neighbours());
    EXPECT_EQ(memory_peak_by_category()[int(Memory::communication)] - before,
              chunks * x.bytes() / 14);
    EXPECT_EQ(memory_now()[int(Memory::communication)], before);
}
