// Communication, on any number of ranks:  mpirun -n 4 build/cpu/comm_test
//
// Every rank can compute the data of all ranks, so each compares its result with the expected one,
// bit by bit (sums by NCCL: within its rounding).
#include "comm_test.h"

#include <ctime>
#include <thread>

#include "comm_collectives_test.h"
#include "core/trace.h"

using namespace ultrascale;

TEST(PointToPoint, Ring) {
    int n = world().size(), me = world().rank(), next = (me + 1) % n, previous = (me + n - 1) % n;
    Tensor x = tensor(numbers<float>(me, 300000));  // past every eager limit
    for (int step = 1; step <= n; ++step) {
        Tensor y = blank<float>(x.numel());
        world().send_recv({{Transfer::send, x, next}, {Transfer::recv, y, previous}});
        EXPECT_TRUE(same(y, numbers<float>((me + n - step) % n, 300000)));
        x = y;
    }
}

// A rank receives on two streams, in another order than the sends; the k-th receive still gets the
// k-th send.
TEST(PointToPoint, KthMeetsKth) {
    if (world().size() < 2 || world().rank() > 1) return;
    Stream one("one"), two("two");
    std::vector<Tensor> x;
    std::vector<Work> work;
    for (int k = 0; k < 20; ++k) {
        Stream& stream = (k + world().rank()) % 3 == 0 ? one : two;
        x.push_back(world().rank() == 0 ? tensor<int32_t>({k}) : blank<int32_t>(1));
        work.push_back(world().rank() == 0 ? world().send(x[k], 1, stream)
                                           : world().recv(x[k], 0, stream));
    }
    work.clear();
    for (int k = 0; k < 20; ++k) EXPECT_EQ(first<int32_t>(x[k]), k);
}

// One communicator serves three streams, and each rank distributes the calls differently.
TEST(Async, ManyOnThreeStreams) {
    int n = world().size(), me = world().rank();
    Stream other("other");
    Stream* streams[] = {&communication_stream(), &other, &compute_stream()};
    std::minstd_rand random(me + 1);
    Communicator twin = world().split(0, me, "twin");
    std::vector<Tensor> x;
    std::vector<Work> work;
    for (int k = 0; k < 60; ++k) {
        Stream& stream = *streams[k % 10 == 9 ? 2 : random() / 7 % 2];
        const Communicator& group = k % 4 == 3 ? twin : world();
        int64_t count = k % 5 == 0 ? 40000 : 100 + k;
        x.push_back(tensor(numbers<float>(me, count, k)));
        if (k % 3 == 1)
            work.push_back(group.broadcast(x[k], k % n, stream));
        else
            work.push_back(group.all_reduce(x[k], Reduce::sum, stream));
    }
    for (size_t k = 0; k < work.size(); ++k) {
        if (k % 2)
            work[k].wait();
        else
            while (!work[k].done()) std::this_thread::yield();
        work[k].wait();
        int64_t count = x[k].numel();
        EXPECT_TRUE(k % 3 == 1 ? same(x[k], numbers<float>(int(k) % n, count, int(k)))
                               : is_reduction<float>(x[k], Reduce::sum, count, int(k)))
            << k;
    }
}

TEST(Async, DroppedAndReplacedWorkIsWaitedFor) {
    Tensor x = tensor(numbers<float>(world().rank(), 100000)),
           y = tensor(numbers<float>(world().rank(), 100000));
    Work work = world().all_reduce(x, Reduce::sum, communication_stream());
    work = world().all_reduce(y, Reduce::sum, communication_stream());
    EXPECT_TRUE(is_reduction<float>(x, Reduce::sum, 100000));
    { Work dropped = std::move(work); }
    EXPECT_TRUE(is_reduction<float>(y, Reduce::sum, 100000));
    EXPECT_TRUE(work.done());
    work.wait();
}

// Ranks that sleep while they wait leave the cores to root.
TEST(WaitAsleep, TakesAlmostNoTimeOfTheProcessor) {
    const auto processor_seconds = [] {
        timespec now;
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
        return double(now.tv_sec) + double(now.tv_nsec) * 1e-9;
    };
    const int root = world().size() - 1;
    const double begin = now_seconds();
    world().barrier();
    const double before = processor_seconds();
    if (world().rank() == root) std::this_thread::sleep_for(std::chrono::milliseconds(400));
    world().wait_asleep_for(root);
    EXPECT_GE(now_seconds() - begin, 0.4);
    EXPECT_LE(processor_seconds() - before, 0.1);
    world().wait_asleep_for(0);  // and once more, for another rank
}

TEST(Memory, ReturnsToTheBaseline) {
    Tensor x = blank<float>(30000);
    int64_t before = total(memory_now());
    Work work = world().all_reduce(x, Reduce::sum, communication_stream());
    bool scratch = world().size() > 1 &&
                   !on_gpu;  // held from the call to the wait, whatever the stream has done
    EXPECT_EQ(total(memory_now()) > before, scratch);
    while (!work.done()) std::this_thread::yield();
    EXPECT_EQ(total(memory_now()) > before, scratch);
    work.wait();
    EXPECT_EQ(total(memory_now()), before);
    world().all_reduce(x);
    EXPECT_EQ(total(memory_now()), before);
    work = world().broadcast(x, 0, communication_stream());
    x = {};  // Work keeps it
    EXPECT_EQ(total(memory_now()), before);
    work.wait();
    EXPECT_LT(total(memory_now()), before);
}

TEST(Counters, CallsAndBytes) {
    int n = world().size(), me = world().rank();
    Tensor one = blank<float>(10), all = blank<float>(10 * n), other = blank<float>(10 * n);
    world().barrier();
    communication_reset_counts();
    trace_clear();
    trace_record(true);
    Work work = world().all_reduce(one, Reduce::sum, communication_stream());
    while (!work.done()) std::this_thread::yield();
    work.wait();
    if (!on_gpu || !transport::over_mpi()) {
        EXPECT_EQ(communication_counts()[int(Collective::all_reduce)].exposed,
                  0);  // compute never stalled
    }
    EXPECT_GT(communication_counts()[int(Collective::all_reduce)].seconds, 0);
    world().all_reduce(one);
    EXPECT_GT(communication_counts()[int(Collective::all_reduce)].exposed, 0);
    world().reduce(one, 0);
    world().broadcast(one, 0);
    world().all_gather(all, one);
    world().reduce_scatter(one, all);
    world().gather(all, one, 0);
    world().scatter(one, all, 0);
    world().all_to_all(other, all);
    world().send_recv(
        {{Transfer::send, all, (me + 1) % n}, {Transfer::recv, other, (me + n - 1) % n}});
    resolve_communication_times();
    trace_record(false);
    world().barrier();
    CommunicationCounts counts = communication_counts();
    for (int kind = 0; kind < collective_kinds; ++kind) {
        bool whole = kind != int(Collective::reduce) && kind != int(Collective::broadcast);
        int64_t bytes = kind == int(Collective::all_reduce) ? 80
                        : kind == int(Collective::barrier)  ? 0
                        : whole                             ? 40 * n
                                                            : 40;
        EXPECT_EQ(counts[kind].calls, kind == int(Collective::all_reduce) ? 2 : 1)
            << collective_names[kind];
        EXPECT_EQ(counts[kind].bytes, bytes) << collective_names[kind];
        EXPECT_GE(counts[kind].seconds, counts[kind].exposed);
    }
    std::vector<Span> spans = trace_spans();
    std::erase_if(spans, [](const Span& span) {
        return std::ranges::find(collective_names, span.name) == collective_names.end();
    });
    ASSERT_EQ(spans.size(), 10u);
    EXPECT_EQ(spans[0].name, "all-reduce");
    EXPECT_EQ(spans[0].lane, "communication");
    EXPECT_EQ(spans[0].bytes, 40);
    EXPECT_EQ(spans[1].lane, "compute");
    trace_clear();
}

TEST(Mistakes, AreNamed) {
    int n = world().size();
    Tensor x = blank<float>(4), y = blank<float>(4 * n), z = blank<bf16>(4 * n),
           more = blank<float>(4 * n + 1);
    EXPECT_THROW(world().broadcast(x, n), std::logic_error);
    EXPECT_THROW(world().reduce(x, -1), std::logic_error);
    EXPECT_THROW(world().send(x, n), std::logic_error);
    EXPECT_THROW(world().recv(x, -1), std::logic_error);
    EXPECT_THROW(world().all_reduce({}), std::logic_error);
    EXPECT_THROW(world().all_gather(more, x), std::logic_error);
    EXPECT_THROW(world().all_gather(z, x), std::logic_error);
    EXPECT_THROW(world().reduce_scatter(x, more), std::logic_error);
    EXPECT_THROW(world().all_to_all(y, y), std::logic_error);
    EXPECT_THROW(world().all_to_all(y, blank<float>(4 * n), {1}, {1}), std::logic_error);
    if (n > 1) {
        EXPECT_THROW(world().all_to_all(more, blank<float>(4 * n + 1)), std::logic_error);
        EXPECT_THROW(world().all_gather(y, y.slice(world().rank() ? 0 : 4, world().rank() ? 4 : 8)),
                     std::logic_error);
    }
    // The two ends of a message disagree, and the shorter one is noticed.
    EXPECT_THROW(world().send_recv({{Transfer::send, y.slice(0, 3), world().rank()},
                                    {Transfer::recv, x, world().rank()}}),
                 std::logic_error);
}

// An exception unwinds past a Work that can never end. It does not hang, and the Work's memory
// stays allocated, since MPI may still write to it.
TEST(Mistakes, UnwindingDoesNotWait) {
    if (on_gpu) GTEST_SKIP() << "a rank's messages to itself are in one call there";
    {
        Stream stream("abandoned");
        try {
            Work never = world().recv(blank<float>(1), world().rank(), stream);
            throw std::runtime_error("out of here");
        } catch (const std::runtime_error&) {
        }
        EXPECT_THROW(stream.synchronize(), std::logic_error);
    }
    abandon_communication(false);
    world().send(blank<float>(1), world().rank());  // the message for which it waited
}

// Strings of different lengths, including empty ones, come from ranks that arrive at different
// times.
TEST(Host, StringsAndArrivals) {
    const auto text = [](int rank) {
        return std::string(size_t(rank % 3) * 40000, char('a' + rank));
    };
    const std::vector<std::string> all = world().gather_strings(text(world().rank()));
    ASSERT_EQ(int(all.size()), world().size());
    for (int r = 0; r < world().size(); ++r) EXPECT_EQ(all[r], text(r));
    for (int times = 0; times < 2; ++times) {
        std::this_thread::sleep_for(std::chrono::milliseconds(world().rank()));
        EXPECT_TRUE(all_ranks_arrive(60));
    }
    EXPECT_EQ(rank_prefix(), world().size() == 1 ? "" : fmt::format("rank {}: ", world().rank()));
}

int main(int argc, char** argv) {
    testing::InitGoogleTest(&argc, argv);
    if (ranks_on_this_node() != 1) return 1;  // MPI is not initialized yet
    finalize_communication();
    if (world().rank() != 0) {
        auto& listeners = testing::UnitTest::GetInstance()->listeners();
        delete listeners.Release(listeners.default_result_printer());
        listeners.Append(new FailuresOnly);
    }
    world().barrier();  // here NCCL starts, or not: exact() asks
    Tensor failed = tensor<int32_t>({RUN_ALL_TESTS()});
    world().all_reduce(failed, Reduce::max);
    finalize_communication();
    return first<int32_t>(failed);
}
