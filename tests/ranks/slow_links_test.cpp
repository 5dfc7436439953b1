// Pretended nodes: messages between them take the time that the rate dictates, and arrive
// unchanged. Part of comm_test.
#include "comm/mpi/slow_links.h"

#include <chrono>

#include "comm_test.h"

using namespace ultrascale;

namespace {

// While an object of this type lives, the ranks pretend to be on nodes of `ranks_per_node` ranks.
struct PretendedNodes {
    PretendedNodes(int ranks_per_node, double bytes_per_second) {
        pretend_nodes(ranks_per_node, bytes_per_second * 8 / 1e9);
    }
    ~PretendedNodes() {
        world().barrier();
        slow_links() = {};
    }
};

constexpr int64_t count = 100000;      // 0.4 MB
constexpr double rate = 4e6, t = 0.1;  // seconds a message

// Returns the seconds from when the first rank began the call until this rank has finished it:
// ranks leave the barrier one after the other, but share this machine's clock.
template <class Call>
double seconds_of(Call call) {
    const auto now = [] {
        return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
            .count();
    };
    compute_stream().synchronize();
    world().barrier();
    const double begin = now();
    call();
    compute_stream().synchronize();
    const double end = now();
    const Tensor first_begin = tensor<double>({-begin});
    world().all_reduce(first_begin, Reduce::max);
    return end + first<double>(first_begin);
}

// Returns whether every rank stays below its limit of seconds. There are several tries, because
// other programs may take a rank's core for as long as a message takes.
template <class Call>
bool shorter_than(double limit, Call call) {
    for (int attempt = 0; attempt < 20; ++attempt) {
        const Tensor late = tensor<int32_t>({seconds_of(call) >= limit});
        world().all_reduce(late, Reduce::max);
        if (!first<int32_t>(late)) return true;
    }
    return false;
}

// Sends to the right neighbour and receives from the left one, `messages` times in one call.
void pass_on(const Tensor& x, const Tensor& y, int messages) {
    const int n = world().size(), me = world().rank();
    std::vector<Transfer> transfers;
    for (int i = 0; i < messages; ++i) {
        transfers.push_back({Transfer::send, x, (me + 1) % n});
        transfers.push_back({Transfer::recv, y, (me + n - 1) % n});
    }
    world().send_recv(transfers);
}

}  // namespace

TEST(SlowLinks, MessagesTakeBytesOverRate) {
    const int n = world().size(), me = world().rank();
    if (n == 1) GTEST_SKIP() << "needs two ranks";
    const Tensor x = tensor(numbers<float>(me, count)), y = blank<float>(count);
    pass_on(x, y, 1);  // NCCL connects
    {
        const PretendedNodes nodes(1, rate);
        EXPECT_GT(seconds_of([&] { pass_on(x, y, 1); }), 0.99 * t);
        EXPECT_GT(seconds_of([&] { pass_on(x, y, 2); }), 1.99 * t)
            << "messages that set out together share the card";
        EXPECT_GT(seconds_of([&] { pass_on(x, y, 1), pass_on(x, y, 1); }), 1.99 * t);
        EXPECT_TRUE(shorter_than(2 * t, [&] { pass_on(x, y, 1); })) << "both directions at once";
        EXPECT_TRUE(same(y, numbers<float>((me + n - 1) % n, count)));
    }
    const PretendedNodes one_node(n, rate / 1000);
    EXPECT_TRUE(shorter_than(t, [&] { pass_on(x, y, 1); })) << "nothing crosses";
}

TEST(SlowLinks, ReceivingTakesTimeToo) {
    const int n = world().size(), me = world().rank();
    if (n == 1) GTEST_SKIP() << "needs two ranks";
    const Tensor x = tensor(numbers<float>(me, count)), all = blank<float>(count * n);
    world().gather(all, x, 0);
    const PretendedNodes nodes(1, rate);
    const int messages = me == 0 ? n - 1 : 1;
    EXPECT_GT(seconds_of([&] { world().gather(all, x, 0); }), 0.99 * messages * t);
    EXPECT_TRUE(shorter_than((messages + 1) * t, [&] { world().gather(all, x, 0); }));
}

TEST(SlowLinks, SumsAreTheSame) {
    const int n = world().size(), me = world().rank();
    const PretendedNodes nodes(1, 1e8);
    for (int64_t size : {1, 1000, 300000}) {
        const Tensor x = tensor(numbers<float>(me, size));
        Work work = world().all_reduce(x, Reduce::sum, communication_stream());
        work.wait();
        EXPECT_TRUE(!exact() || same(x, reduced<float>(Reduce::sum, n, size)));
    }
}

// The bytes for which the CUDA backend waits, computed from NCCL's algorithms; here in MB.
TEST(SlowLinks, BytesOfNcclsCalls) {
    const PretendedNodes nodes(2, 1e6);
    const Communicator::Impl all("all", {0, 1, 2, 3}, 0, 1), inside("inside", {2, 3}, 1, 1),
        across("across", {1, 3}, 0, 1);
    const auto megabytes = [](const Communicator::Impl& group, Collective kind, int64_t out,
                              int64_t in, int root = -1) {
        return 1e-6 * slow_link_bytes(
                          {.kind = kind, .out_bytes = out, .in_bytes = in, .root = root}, group);
    };
    EXPECT_DOUBLE_EQ(megabytes(all, Collective::all_reduce, 1000000, 1000000), 1.5);  // 2 (n-1)/n
    EXPECT_DOUBLE_EQ(megabytes(across, Collective::all_reduce, 1000000, 1000000), 1);
    EXPECT_EQ(megabytes(inside, Collective::all_reduce, 1000000, 1000000), 0);
    EXPECT_DOUBLE_EQ(megabytes(all, Collective::all_gather, 1000000, 250000), 0.75);
    EXPECT_DOUBLE_EQ(megabytes(all, Collective::reduce_scatter, 250000, 1000000), 0.75);
    EXPECT_DOUBLE_EQ(megabytes(all, Collective::broadcast, 1000000, 1000000, 2), 1);
    EXPECT_DOUBLE_EQ(megabytes(all, Collective::gather, 1000000, 250000, 0),
                     0.5);  // the root receives from two others
    EXPECT_DOUBLE_EQ(megabytes(all, Collective::gather, 1000000, 250000, 1),
                     0);  // this rank sends within its node
    EXPECT_DOUBLE_EQ(megabytes(all, Collective::scatter, 250000, 1000000, 3), 0.25);
    const Operation to_all{.kind = Collective::all_to_all,
                           .send_begin = {0, 100, 300, 600, 1000},
                           .recv_begin = {0, 100, 200, 300, 400}};
    EXPECT_DOUBLE_EQ(slow_link_bytes(to_all, all), 700);
    const Operation messages{
        .kind = Collective::send_recv,
        .messages = {
            {true, nullptr, 500, 1, 0}, {true, nullptr, 300, 2, 0}, {false, nullptr, 400, 3, 0}}};
    EXPECT_DOUBLE_EQ(slow_link_bytes(messages, all), 400);
}
