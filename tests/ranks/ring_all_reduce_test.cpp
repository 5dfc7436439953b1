// The ring all-reduce of chapter 01, on any number of ranks. Linked into comm_test, which runs
// every test on every rank.
#include "01_data_parallel/5_ring_reduce.h"
#include "01_data_parallel/6_ring_all_reduce.h"
#include "01_data_parallel/lab/latency_demo.h"
#include "01_data_parallel/lab/predict.h"
#include "own_all_reduce.h"

using namespace ultrascale;
using namespace ultrascale::data_parallel;

namespace {

const std::vector<RingDirections> ways_round = {RingDirections::one, RingDirections::both};
// The counts range from zero elements, through fewer elements than ranks, to sizes at which tensors
// and their halves are cut at multiples of 64 elements. Chunks stay below 16384 elements, where
// ops::add begins to use threads: the thread sanitizer does not understand OpenMP.
std::vector<int64_t> counts(int n) {
    return {0, 1, 2, 3, 7, 64, 1000, 4096 * n + 5, 8192 * n, 8192 * n + 77};
}

template <class T>
void expect_equal_to_all_reduce(const Communicator& group) {
    for (RingDirections directions : ways_round) {
        SCOPED_TRACE(fmt::format("directions {}", int(directions)));
        for (int64_t count : counts(group.size()))
            expect_equals_all_reduce<T>(group, count, [&](const Communicator& g, const Tensor& x) {
                ring_all_reduce(g, x, directions);
            });
    }
}

// Returns the largest error, relative to the rounding error that n-1 additions may have.
template <class T>
double relative_error(const Tensor& x, int64_t count, double epsilon) {
    std::vector<double> sum(count), magnitude(count);
    for (int r = 0; r < world().size(); ++r) {
        const std::vector<T> values = numbers<T>(r, count);
        for (int64_t i = 0; i < count; ++i)
            sum[i] += float(values[i]), magnitude[i] += std::abs(float(values[i]));
    }
    const std::vector<float> got = x.to_host_float();
    double worst = 0;
    for (int64_t i = 0; i < count; ++i)
        worst = std::max(worst, std::abs(got[i] - sum[i]) /
                                    (magnitude[i] * epsilon * std::max(1, world().size() - 1)));
    return worst;
}

}  // namespace

TEST(RingAllReduce, EqualsAllReduce) {
    expect_equal_to_all_reduce<float>(world());
    expect_equal_to_all_reduce<bf16>(world());
}

TEST(RingReduce, LeavesTheSumOnRank0) {
    const int n = world().size(), me = world().rank();
    const Tensor x = tensor(integers<float>(me, 1000)), y = tensor(integers<float>(me, 1000));
    ring_reduce(world(), x);
    world().reduce(y, 0);
    if (me == 0) {
        EXPECT_EQ(x.to_host<float>(), y.to_host<float>());
    }
    if (me == n - 1 && n > 1) {  // the last rank, too, has added up everything
        const Tensor all = tensor(integers<float>(me, 1000));
        for (int r = 0; r < n - 1; ++r) ops::add(all, tensor(integers<float>(r, 1000)));
        EXPECT_EQ(x.to_host<float>(), all.to_host<float>());
    }
}

// A rank sends as many bytes, in as many hops, as in a ring of 64.
TEST(RingAllReduce, PretendedHops) {
    const Tensor x = tensor(integers<float>(world().rank(), 6400)), inbox = blank<float>(100);
    const CommunicationCounts before = communication_counts();
    pretended_ring(world(), x, inbox, 64);
    const CommunicationCount sent =
        difference(communication_counts(), before)[size_t(Collective::send_recv)];
    EXPECT_EQ(sent.calls, 126);
    EXPECT_EQ(sent.bytes, 126 * 400);
}

TEST(RingAllReduce, RoundsOncePerAddition) {
    for (RingDirections directions : ways_round) {
        const Tensor x = tensor(numbers<float>(world().rank(), 5003)),
                     y = tensor(numbers<bf16>(world().rank(), 5003));
        ring_all_reduce(world(), x, directions);
        ring_all_reduce(world(), y, directions);
        EXPECT_LE(relative_error<float>(x, 5003, std::ldexp(1, -24)), 1);
        EXPECT_LE(relative_error<bf16>(y, 5003, std::ldexp(1, -8)), 1);
    }
}

TEST(RingAllReduce, AllRanksHaveTheSameBits) {
    expect_same_bits_on_all_ranks([](const Communicator& g, const Tensor& x) {
        ring_all_reduce(g, x, RingDirections::both);
    });
}

TEST(RingAllReduce, InGroups) { for_groups(expect_equal_to_all_reduce<float>); }

TEST(RingAllReduce, OfAViewAndOfAnyShape) {
    expect_sums_a_view([](const Communicator& g, const Tensor& x) { ring_all_reduce(g, x); });
}

// The ring takes 2(n-1) steps in each direction. After the reduce-scatter, chunk r is finished on
// rank r. Each step of the all-gather completes another chunk, so a ring that leaves out a step, or
// sends a wrong chunk, fails.
TEST(RingAllReduce, TakesTheseSteps) {
    const int n = world().size(), me = world().rank();
    const int64_t per_chunk = 3, count = per_chunk * n;
    for (RingDirections directions : ways_round) {
        const int rings = directions == RingDirections::one ? 1 : 2;
        const Tensor x = tensor(numbers<float>(me, rings * count));
        std::vector<float> sum = x.to_host<float>();
        const Tensor y = tensor(sum);
        world().all_reduce(y);
        sum = y.to_host<float>();
        std::vector<RingStep> steps;
        // the chunks of this direction that hold the sum after each step
        std::vector<std::vector<bool>> right;
        ring_all_reduce(world(), x, directions, [&](const RingStep& step) {
            const int64_t share = steps.size() % rings * count;
            steps.push_back(step);
            const std::vector<float> now = x.to_host<float>();
            right.emplace_back();
            for (int64_t c = 0; c < n; ++c) {
                bool near = true;
                // The numbers are up to 4096; a missing part would make a far larger difference.
                for (int64_t i = share + c * per_chunk; i < share + (c + 1) * per_chunk; ++i)
                    near = near && std::abs(now[i] - sum[i]) <= 1e-2;
                right.back().push_back(near);
            }
        });
        ASSERT_EQ(steps.size(), size_t(rings * 2 * (n - 1)));
        for (size_t k = 0; k < steps.size(); ++k) {
            const RingStep& step = steps[k];
            const int d = k % rings == 0 ? 1 : -1, s = int(k) / rings % (n - 1),
                      gathering = int(k) / rings >= n - 1;
            const auto wrap = [&](int rank) { return ((rank % n) + n) % n; };
            EXPECT_EQ(step.phase, gathering ? RingStep::all_gather : RingStep::reduce_scatter);
            EXPECT_EQ(step.step, s);
            EXPECT_EQ(step.to, wrap(me + d));
            EXPECT_EQ(step.from, wrap(me - d));
            EXPECT_EQ(step.sent, wrap(me - d * (gathering ? s : s + 1)));
            EXPECT_EQ(step.received, wrap(me - d * (gathering ? s + 1 : s + 2)));
            const bool own = gathering || s == n - 2;
            EXPECT_EQ(std::count(right[k].begin(), right[k].end(), true), gathering ? s + 2
                                                                          : own     ? 1
                                                                                    : 0);
            EXPECT_EQ(right[k][me], own);
            EXPECT_TRUE(!gathering || right[k][step.received]);
        }
    }
}

TEST(RingAllReduce, CommunicatesWhatIsPredicted) {
    const int n = world().size(), me = world().rank();
    for (RingDirections directions : ways_round) {
        for (int64_t count : counts(n)) {
            const Tensor x = tensor(integers<bf16>(me, count));
            world().barrier();
            communication_reset_counts();
            ring_all_reduce(world(), x, directions);
            const CommunicationCounts counted = communication_counts();
            const auto predicted = predict_ring_all_reduce(count, DType::bf16, me, n, directions);
            EXPECT_EQ(counted[int(Collective::send_recv)].calls, predicted.calls);
            EXPECT_EQ(counted[int(Collective::send_recv)].bytes, predicted.bytes);
            EXPECT_EQ(predicted.calls, 2 * (n - 1));
            const bool divides = count % (2 * n * 64) == 0;
            EXPECT_TRUE(!divides || predicted.bytes == 2 * (n - 1) * x.bytes() / n);
            for (int kind = 0; kind < collective_kinds; ++kind)
                EXPECT_TRUE(kind == int(Collective::send_recv) || counted[kind].calls == 0);
        }
    }
}

TEST(RingAllReduce, HoldsOneChunk) {
    const int n = world().size();
    for (RingDirections directions : ways_round) {
        const Tensor x = blank<float>(2 * n * 64 * 50);
        const int64_t before = memory_now()[int(Memory::communication)];
        memory_reset_peak();
        ring_all_reduce(world(), x, directions);
        EXPECT_EQ(memory_peak_by_category()[int(Memory::communication)] - before,
                  n == 1 ? 0 : x.bytes() / n);
        EXPECT_EQ(memory_now()[int(Memory::communication)], before);
    }
}
