// Communication, on any number of ranks:  mpirun -n 4 build/cpu/comm_test
//
// Every rank can compute every rank's data, so each compares what it got with what it should have, bit by bit.
#include "comm_test.h"

#include <thread>

#include "trace.h"

using namespace ultrascale;

template <class T> struct Collectives : testing::Test {};
using Types = testing::Types<float, bf16, fp16, double, int32_t>;
TYPED_TEST_SUITE(Collectives, Types);

TYPED_TEST(Collectives, ReductionsAddInRankOrder) {
    using T = TypeParam;
    int n = world().size(), me = world().rank();
    for (const CommunicationSettings& settings : ways) {
        Way way(settings);
        for (int64_t count : sizes(settings)) {
            for (Reduce op : operations) {
                SCOPED_TRACE(fmt::format("count {} op {} small_bytes {}", count, int(op), settings.small_bytes));
                Tensor x = tensor(numbers<T>(me, count));
                world().all_reduce(x, op);
                EXPECT_TRUE(same(x, reduced<T>(op, n, count)));

                int root = int(count) % n;
                Tensor y = tensor(numbers<T>(me, count));
                world().reduce(y, root, op);
                EXPECT_TRUE(same(y, me == root ? reduced<T>(op, n, count) : numbers<T>(me, count)));

                Tensor in = tensor(numbers<T>(me, n * count)), out = blank<T>(count);
                std::vector<T> expected = part(reduced<T>(op, n, n * count), me * count, count);
                world().reduce_scatter(out, in, op);
                EXPECT_TRUE(same(out, expected));
                EXPECT_TRUE(same(in, numbers<T>(me, n * count)));
                Tensor slice = in.slice(me * count, (me + 1) * count);  // in place
                world().reduce_scatter(slice, in, op);
                EXPECT_TRUE(same(slice, expected));
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
                EXPECT_TRUE(same(gathered, me == root ? joined<T>(n, count) : std::vector<T>(n * count, T(0))));
                Tensor scattered = blank<T>(count);
                world().scatter(scattered, tensor(numbers<T>(me, n * count)), root);
                EXPECT_TRUE(same(scattered, part(numbers<T>(root, n * count), me * count, count)));
            }
            Tensor in = tensor(numbers<T>(me, n * count)), out = blank<T>(n * count);
            world().all_to_all(out, in);
            for (int r = 0; r < n; ++r) {
                EXPECT_TRUE(same(out.slice(r * count, (r + 1) * count), part(numbers<T>(r, n * count), me * count, count)));
            }
            // In place: the slice of `all` that is this rank's own.
            Tensor place = blank<T>(n * count), own = place.slice(me * count, (me + 1) * count);
            own.copy_from_host(numbers<T>(me, count).data());
            world().all_gather(place, own);
            EXPECT_TRUE(same(place, joined<T>(n, count)));
        }
    }
}

TEST(Reductions, ABrokenOneIsSeen) {
    int n = world().size(), me = world().rank();
    std::vector<float> values = numbers<float>(me, 1000);
    if (me == n - 1) values[500] = std::nextafter(values[500], 1e9f) * 1.001f;
    Tensor x = tensor(values);
    world().all_reduce(x);
    EXPECT_FALSE(same(x, reduced<float>(Reduce::sum, n, 1000)));
    if (n >= 3) {
        EXPECT_TRUE(reduced<float>(Reduce::sum, n, 1000) != reduced<float>(Reduce::sum, n, 1000, 0, true));  // the order shows
    }
}

TEST(Reductions, Corners) {
    int n = world().size();
    Tensor nan = tensor<float>({world().rank() == n / 2 ? NAN : 1e30f});
    world().all_reduce(nan, Reduce::max);
    EXPECT_TRUE(std::isnan(*nan.as<float>()));
    Tensor whole = tensor<int32_t>({-7, 7, world().rank() == 0 ? -1 : 0});
    world().all_reduce(whole, Reduce::average);
    EXPECT_TRUE(same<int32_t>(whole, {-7, 7, n == 1 ? -1 : 0}));
}

TEST(AllToAll, Uneven) {
    int n = world().size(), me = world().rank();
    auto count = [](int from, int to) { return int64_t((from * 7 + to * 3) % 5 * 11); };  // some are 0
    std::vector<int64_t> sends, receives;
    std::vector<int32_t> in, expected;
    for (int r = 0; r < n; ++r) {
        sends.push_back(count(me, r));
        receives.push_back(count(r, me));
        for (int64_t i = 0; i < sends[r]; ++i) in.push_back(me * 1000000 + r * 1000 + int(i));
        for (int64_t i = 0; i < receives[r]; ++i) expected.push_back(r * 1000000 + me * 1000 + int(i));
    }
    Tensor out = blank<int32_t>(int64_t(expected.size()));
    world().all_to_all(out, tensor(in), sends, receives, communication_stream());
    EXPECT_TRUE(same(out, expected));
}

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

// Receives on two streams, taken in another order than the sends were given: the k-th still meets the k-th.
TEST(PointToPoint, KthMeetsKth) {
    if (world().size() < 2 || world().rank() > 1) return;
    Stream one("one"), two("two");
    std::vector<Tensor> x;
    std::vector<Work> work;
    for (int k = 0; k < 20; ++k) {
        Stream& stream = (k + world().rank()) % 3 == 0 ? one : two;
        x.push_back(world().rank() == 0 ? tensor<int32_t>({k}) : blank<int32_t>(1));
        work.push_back(world().rank() == 0 ? world().send(x[k], 1, stream) : world().recv(x[k], 0, stream));
    }
    work.clear();
    for (int k = 0; k < 20; ++k) EXPECT_EQ(*x[k].as<int32_t>(), k);
}

// One communicator, three streams; each rank shares the calls out differently.
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
        if (k % 3 == 1) work.push_back(group.broadcast(x[k], k % n, stream));
        else work.push_back(group.all_reduce(x[k], Reduce::sum, stream));
    }
    for (size_t k = 0; k < work.size(); ++k) {
        if (k % 2) work[k].wait();
        else while (!work[k].done()) std::this_thread::yield();
        work[k].wait();
        auto expected = k % 3 == 1 ? numbers<float>(int(k) % n, x[k].numel(), int(k)) : reduced<float>(Reduce::sum, n, x[k].numel(), int(k));
        EXPECT_TRUE(same(x[k], expected)) << k;
    }
}

TEST(Async, DroppedAndReplacedWorkIsWaitedFor) {
    Tensor x = tensor(numbers<float>(world().rank(), 100000)), y = tensor(numbers<float>(world().rank(), 100000));
    Work work = world().all_reduce(x, Reduce::sum, communication_stream());
    work = world().all_reduce(y, Reduce::sum, communication_stream());
    EXPECT_TRUE(same(x, reduced<float>(Reduce::sum, world().size(), 100000)));
    { Work dropped = std::move(work); }
    EXPECT_TRUE(same(y, reduced<float>(Reduce::sum, world().size(), 100000)));
    EXPECT_TRUE(work.done());
    work.wait();
}

TEST(Split, RowsAndColumns) {
    int n = world().size(), me = world().rank(), columns = n % 2 == 0 ? 2 : n;
    Communicator row = world().split(me / columns, me, "row");
    Communicator column = world().split(me % columns, -me, "column");  // ordered backwards
    EXPECT_EQ(row.size(), columns);
    EXPECT_EQ(row.rank(), me % columns);
    EXPECT_EQ(row.name(), "row");
    EXPECT_EQ(column.rank(), column.size() - 1 - me / columns);
    Tensor a = tensor<int32_t>({me}), b = tensor<int32_t>({me});
    Work first = row.all_reduce(a, Reduce::sum, communication_stream());
    column.broadcast(b, 0);
    first.wait();
    EXPECT_EQ(*a.as<int32_t>(), me / columns * columns * columns + columns * (columns - 1) / 2);
    EXPECT_EQ(*b.as<int32_t>(), (n / columns - 1) * columns + me % columns);
    EXPECT_THROW(world().split(-1, 0, "none"), std::logic_error);
}

TEST(Memory, ReturnsToTheBaseline) {
    Tensor x = blank<float>(30000);
    int64_t before = total(memory_now());
    Work work = world().all_reduce(x, Reduce::sum, communication_stream());
    bool scratch = world().size() > 1;  // held from the call to the wait, whatever the stream has done
    EXPECT_EQ(memory_now()[int(Memory::communication)] > 0, scratch);
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
    EXPECT_EQ(communication_counts()[int(Collective::all_reduce)].exposed, 0);  // compute never stood still
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
    world().send_recv({{Transfer::send, all, (me + 1) % n}, {Transfer::recv, other, (me + n - 1) % n}});
    trace_record(false);
    world().barrier();
    CommunicationCounts counts = communication_counts();
    for (int kind = 0; kind < collective_kinds; ++kind) {
        bool whole = kind != int(Collective::reduce) && kind != int(Collective::broadcast);
        int64_t bytes = kind == int(Collective::all_reduce) ? 80 : kind == int(Collective::barrier) ? 0 : whole ? 40 * n : 40;
        EXPECT_EQ(counts[kind].calls, kind == int(Collective::all_reduce) ? 2 : 1) << collective_names[kind];
        EXPECT_EQ(counts[kind].bytes, bytes) << collective_names[kind];
        EXPECT_GE(counts[kind].seconds, counts[kind].exposed);
    }
    ASSERT_EQ(trace_spans().size(), 10u);
    EXPECT_EQ(trace_spans()[0].name, "all-reduce");
    EXPECT_EQ(trace_spans()[0].lane, "communication");
    EXPECT_EQ(trace_spans()[0].bytes, 40);
    EXPECT_EQ(trace_spans()[1].lane, "compute");
    trace_clear();
}

TEST(Mistakes, AreNamed) {
    int n = world().size();
    Tensor x = blank<float>(4), y = blank<float>(4 * n), z = blank<bf16>(4 * n), more = blank<float>(4 * n + 1);
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
        EXPECT_THROW(world().all_gather(y, y.slice(world().rank() ? 0 : 4, world().rank() ? 4 : 8)), std::logic_error);
    }
    // The two ends of a message disagree: the shorter one is noticed.
    EXPECT_THROW(world().send_recv({{Transfer::send, y.slice(0, 3), world().rank()}, {Transfer::recv, x, world().rank()}}),
                 std::logic_error);
}

// An exception passes a Work that can never end: no hang, and its memory stays where MPI may write to it.
TEST(Mistakes, UnwindingDoesNotWait) {
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
    world().send(blank<float>(1), world().rank());  // what it waited for
}

TEST(Tags, WrapInsideTheirHalf) {
    Communicator::Impl impl(MPI_COMM_WORLD, "tags");
    impl.collectives = impl.sends[0] = Communicator::Impl::tags() - 1;
    EXPECT_EQ(impl.collective_tag(), int(Communicator::Impl::tags() - 1));
    EXPECT_EQ(impl.collective_tag(), 0);
    EXPECT_EQ(impl.send_tag(0), int(2 * Communicator::Impl::tags() - 1));
    EXPECT_EQ(impl.send_tag(0), impl.receive_tag(0));
}

int main(int argc, char** argv) {
#ifdef __SANITIZE_THREAD__
    setenv("UCX_MEM_EVENTS", "n", 0);  // UCX (under MPICH) would call into the sanitizer from threads that have ended
#endif
    testing::InitGoogleTest(&argc, argv);
    if (ranks_on_this_node() != 1) return 1;  // nobody asked for MPI yet
    finalize_communication();
    if (world().rank() != 0) {
        auto& listeners = testing::UnitTest::GetInstance()->listeners();
        delete listeners.Release(listeners.default_result_printer());
        listeners.Append(new FailuresOnly);
    }
    Tensor failed = tensor<int32_t>({RUN_ALL_TESTS()});
    world().all_reduce(failed, Reduce::max);
    finalize_communication();
    return *failed.as<int32_t>();
}
