// Symmetric memory (comm.h), on any number of ranks. On GPUs that can access each other's memory,
// its collectives use copy engines; then sums are in rank order, bit by bit as on the CPU.
// Elsewhere the same calls work as usual.
#include "comm_test.h"
#include "core/ops.h"

using namespace ultrascale;

namespace {

template <class T>
Tensor symmetric(const std::vector<T>& values, const Communicator& group = world()) {
    Tensor x = Tensor::empty({int64_t(values.size())}, dtype_of<T>, Memory::workspace,
                             group.symmetric_memory());
    x.copy_from_host(values.data());
    return x;
}

// Returns settings that use copies for everything, for large messages, or for nothing. Without
// copies all three would be the same, so there is only one.
std::vector<CommunicationSettings> copy_ways() {
    if (!world().symmetric_memory()) return {{}};
    return {{.copies_from_bytes = 0}, {.copies_from_bytes = 100000}, {.copy_engines = false}};
}

// Returns whether x is the sum of numbers(r, count) from element `begin` on. The sum must be exact
// unless one of NCCL's kernels added.
template <class T>
bool is_sum(const Tensor& x, int64_t count, int64_t begin, bool copied, int seed = 0) {
    if (!copied) return is_reduction<T>(x, Reduce::sum, count, seed, begin);
    return same(x, part(reduced<T>(Reduce::sum, world().size(), count, seed), begin, x.numel()));
}

template <class T>
struct Symmetric : testing::Test {};
TYPED_TEST_SUITE(Symmetric, CommunicatedTypes);

TYPED_TEST(Symmetric, CollectivesAreRight) {
    using T = TypeParam;
    const int n = world().size(), me = world().rank();
    const bool summed =
        std::is_same_v<T, float> || std::is_same_v<T, bf16> || std::is_same_v<T, fp16>;
    for (const CommunicationSettings& settings : copy_ways()) {
        Way way(settings);
        const bool copies = settings.copy_engines && world().symmetric_memory() && summed;
        const auto copied = [&](const Tensor& whole) {
            return copies && whole.bytes() >= settings.copies_from_bytes;
        };
        for (int64_t count : {0, 1, 7, 1000, 5003, 16384}) {
            SCOPED_TRACE(fmt::format("count {} copies {} from {}", count, copies,
                                     settings.copies_from_bytes));
            Tensor x = symmetric(numbers<T>(me, count));
            world().all_reduce(x);
            EXPECT_TRUE(is_sum<T>(x, count, 0, copied(x)));
            x = symmetric(numbers<T>(me, count));
            world().all_reduce(x, Reduce::max);
            EXPECT_TRUE(is_reduction<T>(x, Reduce::max, count));
            if (count > 4) {  // from an address that is not a multiple of 16 bytes
                x = symmetric(numbers<T>(me, count));
                world().all_reduce(x.slice(1, count));
                EXPECT_TRUE(is_sum<T>(x.slice(1, count), count, 1, copied(x.slice(1, count))));
                EXPECT_TRUE(same(x.slice(0, 1), part(numbers<T>(me, count), 0, 1)));
            }

            Tensor in = tensor(numbers<T>(me, n * count)), out = blank<T>(count);
            const bool packs = count * int64_t(sizeof(T)) % 16 == 0;
            world().reduce_scatter(out, in);
            EXPECT_TRUE(is_sum<T>(out, n * count, me * count, copied(in) && packs));
            EXPECT_TRUE(same(in, numbers<T>(me, n * count)));
            const Tensor slice = in.slice(me * count, (me + 1) * count);  // in place
            world().reduce_scatter(slice, in);
            EXPECT_TRUE(is_sum<T>(slice, n * count, me * count, copied(in) && packs));

            Tensor all = symmetric(std::vector<T>(size_t(n * count), T(0))),
                   mine = tensor(numbers<T>(me, count));
            world().all_gather(all, mine);
            EXPECT_TRUE(same(all, joined<T>(n, count)));
            all = symmetric(std::vector<T>(size_t(n * count), T(0)));
            Tensor own = all.slice(me * count, (me + 1) * count);
            own.copy_from_host(numbers<T>(me, count).data());
            world().all_gather(all, own);  // in place
            EXPECT_TRUE(same(all, joined<T>(n, count)));
        }
    }
}

// Hops of a ring in both directions. A tensor that arrived is used on one stream and sent on from
// another.
TEST(SymmetricMemory, HopsOfARing) {
    const int n = world().size(), me = world().rank();
    for (const CommunicationSettings& settings : copy_ways())
        for (const int direction : {1, -1}) {
            Way way(settings);
            const auto neighbour = [&](int hops) { return ((me + hops) % n + n) % n; };
            for (const int64_t count : {1, 7, 5003, 100000}) {
                Tensor a = symmetric(numbers<float>(me, count)),
                       b = symmetric(numbers<float>(me, 3, 1));
                for (int hop = 1; hop <= 2 * n; ++hop) {
                    const Tensor next_a = symmetric(std::vector<float>(size_t(count))),
                                 next_b = symmetric(std::vector<float>(3));
                    const int to = neighbour(direction), from = neighbour(-direction);
                    Work work = world().send_recv({{Transfer::send, a, to},
                                                   {Transfer::recv, next_a, from},
                                                   {Transfer::send, b, to},
                                                   {Transfer::recv, next_b, from}},
                                                  communication_stream());
                    work.wait();
                    a = next_a, b = next_b;
                    const int owner = neighbour(-direction * hop);
                    EXPECT_TRUE(same(a, numbers<float>(owner, count))) << hop;
                    EXPECT_TRUE(same(b, numbers<float>(owner, 3, 1))) << hop;
                }
            }
        }
}

// Slices of different sizes, some empty, go into the same buffer again and again, on two streams.
TEST(SymmetricMemory, AllToAllWithAllCounts) {
    const int n = world().size(), me = world().rank();
    constexpr int64_t most = 40'000;
    for (const CommunicationSettings& settings : copy_ways()) {
        Way way(settings);
        const Tensor buffer = symmetric(std::vector<float>(size_t(n * most)));
        for (int round = 0; round < 6; ++round) {
            const auto count = [&](int from, int to) {
                return (from + 2 * to + round) % 3 == 0 ? 0 : most / (1 + (3 * from + to) % 7);
            };
            std::vector<int64_t> counts;
            std::vector<float> sent, expected;
            const auto append = [](std::vector<float>& all, std::vector<float> more) {
                all.insert(all.end(), more.begin(), more.end());
            };
            for (int from = 0; from < n; ++from)
                for (int to = 0; to < n; ++to) {
                    counts.push_back(count(from, to));
                    const int seed = round * 100 + to;
                    if (from == me) append(sent, numbers<float>(from, count(from, to), seed));
                    if (to == me) append(expected, numbers<float>(from, count(from, to), seed));
                }
            const Tensor out = buffer.slice(0, int64_t(expected.size()));
            world()
                .all_to_all(out, tensor(sent), counts,
                            round % 2 ? communication_stream() : compute_stream())
                .wait();
            EXPECT_TRUE(same(out, expected)) << round;
        }
    }
    if (n == 1) return;
    const Tensor x = blank<float>(n);
    EXPECT_THROW(world().all_to_all(blank<float>(n), x, std::vector<int64_t>(size_t(n), 1)),
                 std::logic_error);
}

// Reuses a freed block while its last communication may still be running, on three streams, in two
// groups.
void reuse_on_three_streams(int64_t unsummed_bytes) {
    Way way({.copies_from_bytes = 0, .copies_unsummed_bytes = unsummed_bytes});
    const int n = world().size(), me = world().rank();
    const Communicator twin = world().split(0, me, "twin");
    Stream other("other");
    Stream* const streams[] = {&communication_stream(), &other, &compute_stream()};
    std::vector<Tensor> kept;
    std::vector<Work> work;
    constexpr int64_t count = 10000;
    for (int k = 0; k < 60; ++k) {
        const Communicator& group = k % 4 == 3 ? twin : world();
        Stream& stream = *streams[size_t(k % 3)];
        if (k % 5 == 4) {  // nobody reads the result: the block goes back with the Work
            work.push_back(group.all_reduce(symmetric(numbers<float>(me, count, k), group),
                                            Reduce::sum, stream));
            work.back() = {};
            kept.push_back({});
        } else if (k % 2) {
            Tensor all = symmetric(std::vector<float>(size_t(n * count)), group);
            work.push_back(group.all_gather(all, tensor(numbers<float>(me, count)), stream));
            kept.push_back(all);
        } else {
            kept.push_back(symmetric(numbers<float>(me, count, k), group));
            work.push_back(group.all_reduce(kept.back(), Reduce::sum, stream));
        }
        if (k >= 10) kept[size_t(k - 10)] = {};  // perhaps before it has run: Work keeps it
        if (k < 50) continue;
        work[size_t(k)].wait();
        if (!kept.back()) continue;
        const bool copied = bool(world().symmetric_memory());
        EXPECT_TRUE(k % 2 ? same(kept.back(), joined<float>(n, count))
                          : is_sum<float>(kept.back(), count, 0, copied, k))
            << k;
    }
}

TEST(SymmetricMemory, ReusedOnThreeStreams) {
    const std::vector<int64_t> limits = {0, 100'000, 256 << 20};
    for (size_t i = 0; i < (world().symmetric_memory() ? limits.size() : 1); ++i)
        reuse_on_three_streams(limits[i]);
}

// A rank that is late for a sum still gets what its peers sent for it, even if they have sent more
// since.
TEST(SymmetricMemory, SummedLate) {
    Way way({.copies_from_bytes = 0});
    const int n = world().size(), me = world().rank(), rounds = 6;
    constexpr int64_t share = 5000;
    const Tensor busy = Tensor::zeros({on_gpu ? 4 << 20 : 1}, DType::fp32, Memory::workspace);
    std::vector<Tensor> in, out;
    for (int k = 0; k < rounds; ++k) {
        in.push_back(tensor(numbers<float>(me, n * share, k)));
        out.push_back(blank<float>(share));
    }
    for (int k = 0; k < rounds; ++k) {
        Work work = world().reduce_scatter(out[size_t(k)], in[size_t(k)], Reduce::sum,
                                           communication_stream());
        for (int i = 0; i < 200 && k % n == me; ++i) ops::add(busy, busy);
        work.wait();
    }
    for (int k = 0; k < rounds; ++k)
        EXPECT_TRUE(is_sum<float>(out[size_t(k)], n * share, me * share,
                                  bool(world().symmetric_memory()), k))
            << k;
}

// A call sees the result of the previous one on its stream, whoever does the summing, even if the
// previous call belonged to another group.
TEST(SymmetricMemory, CallsOnOneStreamFollowEachOther) {
    Way way({.copies_from_bytes = 0});
    const int n = world().size(), me = world().rank();
    const Communicator twin = world().split(0, me, "twin");
    constexpr int64_t share = 5000;
    const Tensor in = tensor(numbers<float>(me, n * share)), out = blank<float>(share);
    const Tensor all =
        Tensor::zeros({n * share}, DType::fp32, Memory::workspace, twin.symmetric_memory());
    Work scattered = world().reduce_scatter(out, in, Reduce::sum, communication_stream());
    Work gathered = twin.all_gather(all, out, communication_stream());
    gathered.wait();
    scattered.wait();
    EXPECT_TRUE(is_sum<float>(all, n * share, 0, bool(world().symmetric_memory())));
}

// Memory is counted by the tensors in it, whoever keeps the block.
TEST(SymmetricMemory, IsCounted) {
    const int64_t before = memory_now()[int(Memory::gradient)];
    Tensor x = Tensor::zeros({1000}, DType::fp32, Memory::gradient, world().symmetric_memory());
    EXPECT_EQ(memory_now()[int(Memory::gradient)], before + 4000);
    EXPECT_TRUE(same(x, std::vector<float>(1000, 0.0f)));
    x = {};
    EXPECT_EQ(memory_now()[int(Memory::gradient)], before);
    memory_set_limit(total(memory_now()) + 1000);
    EXPECT_THROW(Tensor::empty({1000}, DType::fp32, Memory::gradient, world().symmetric_memory()),
                 OutOfMemory);
    memory_set_limit(device_memory_bytes());
}

}  // namespace
