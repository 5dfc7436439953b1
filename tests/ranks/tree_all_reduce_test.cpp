// The double binary tree of chapter 01, on any number of ranks. Linked into comm_test, which runs
// every test on every rank.
#include "01_data_parallel/6_tree_all_reduce.h"
#include "01_data_parallel/lab/predict.h"
#include "own_all_reduce.h"

using namespace ultrascale;
using namespace ultrascale::data_parallel;

namespace {

const std::vector<int64_t> numbers_of_chunks = {1, 2, 7, 32};
// From zero elements, through fewer than chunks, to sizes that no number of chunks divides. Chunks
// stay below the size at which ops::add begins to use threads.
const std::vector<int64_t> some_counts = {0, 1, 2, 3, 7, 64, 1000, 4099, 20011};

auto in_chunks(int64_t chunks) {
    return [chunks](const Communicator& g, const Tensor& x) { tree_all_reduce(g, x, chunks); };
}

template <class T>
void expect_equal_to_all_reduce(const Communicator& group) {
    for (int64_t chunks : numbers_of_chunks) {
        SCOPED_TRACE(fmt::format("2 x {} chunks", chunks));
        for (int64_t count : some_counts)
            expect_equals_all_reduce<T>(group, count, in_chunks(chunks));
    }
}

}  // namespace

TEST(TreeAllReduce, EqualsAllReduce) {
    expect_equal_to_all_reduce<float>(world());
    expect_equal_to_all_reduce<bf16>(world());
}

TEST(TreeAllReduce, InGroups) { for_groups(expect_equal_to_all_reduce<float>); }

TEST(TreeAllReduce, AllRanksHaveTheSameBits) { expect_same_bits_on_all_ranks(in_chunks(5)); }

TEST(TreeAllReduce, OfAViewAndOfAnyShape) { expect_sums_a_view(in_chunks(4)); }

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
