// Messages in one direction, with and without a mailbox (comm.h), on any number of ranks. In a
// chain each rank sends to the next one, and the last one only receives.
#include "comm_test.h"
#include "core/ops.h"

using namespace ultrascale;

namespace {

// Numbers of elements of the messages; the last messages are larger than the mailbox.
const std::vector<int64_t> counts = {1, 5003, 0, 300000, 7, 300000, 300000, 2, 400001, 3, 400001};
constexpr int64_t mailbox_bytes = 300000 * 4;

// Passes all messages down the chain. Each is received on one stream and sent on another.
void expect_messages_pass(const Communicator& chain) {
    const int n = chain.size(), me = chain.rank();
    Stream receiving("receiving"), sending("sending");
    std::vector<Tensor> received;
    std::vector<Work> arriving, leaving;
    for (size_t i = 0; i < counts.size(); ++i) {
        received.push_back(me == 0 ? tensor(numbers<float>(0, counts[i], int(i)))
                                   : blank<float>(counts[i]));
        if (me > 0) arriving.push_back(chain.recv(received.back(), me - 1, receiving));
        if (me > 0 && i % 2) arriving.back().wait();  // odd ones only when they are sent on
        if (me < n - 1) {
            if (me > 0) arriving.back().wait();
            leaving.push_back(chain.send(received.back(), me + 1, sending));
        }
    }
    for (std::vector<Work>* works : {&arriving, &leaving})
        for (Work& work : *works) work.wait();
    for (size_t i = 0; i < counts.size(); ++i)
        EXPECT_TRUE(same(received[i], numbers<float>(0, counts[i], int(i))))
            << "message " << i << ", rank " << me;
}

TEST(Mailbox, MessagesPassWithoutOne) {
    Way way({.copies_from_bytes = 0});
    expect_messages_pass(world().split(0, world().rank(), "chain"));
}

TEST(Mailbox, MessagesPassThroughIt) {
    const int64_t before = memory_now()[int(Memory::communication)];
    {
        const Communicator chain = world().split(0, world().rank(), "chain");
        const int64_t held = chain.open_mailbox(mailbox_bytes);
        EXPECT_EQ(held, chain.symmetric_memory() ? (chain.size() - 1) * mailbox_bytes : 0);
        EXPECT_EQ(memory_now()[int(Memory::communication)], before + held);
        for (int round = 0; round < 3; ++round) expect_messages_pass(chain);
    }
}

// Receives that are posted before their messages delay neither the messages of the other direction,
// which NCCL would queue behind them, nor the device's computation.
TEST(Mailbox, ReceivesArePostedFirst) {
    const int n = world().size(), me = world().rank(), peer = me ^ 1;
    const Communicator pair = world().split(me / 2, me, "pair");
    const bool mailbox = pair.open_mailbox(mailbox_bytes) > 0;
    if (!mailbox && !transport::over_mpi()) GTEST_SKIP() << "with NCCL alone this would hang";
    if (peer >= n) return;
    constexpr int64_t count = 300000;
    Tensor x = tensor(std::vector<float>(count, 1.0f));
    ops::add(x, x);  // CUDA loads the kernel now, for which it may wait for all streams
    Stream receiving("receiving"), sending("sending");
    std::vector<Tensor> received;
    std::vector<Work> arriving, leaving;
    for (int i = 0; i < 4; ++i) {
        received.push_back(blank<float>(count));
        arriving.push_back(pair.recv(received.back(), 1 - pair.rank(), receiving));
    }
    for (int i = 0; i < 10; ++i) ops::add(x, x);
    EXPECT_EQ(first<float>(x), 2048.0f);  // waits for the device, and no message has been sent
    for (int i = 0; i < 4; ++i)
        leaving.push_back(
            pair.send(tensor(numbers<float>(me, count, i)), 1 - pair.rank(), sending));
    for (int i = 0; i < 4; ++i) {
        arriving[size_t(i)].wait();
        EXPECT_TRUE(same(received[size_t(i)], numbers<float>(peer, count, i))) << i;
    }
}

}  // namespace
