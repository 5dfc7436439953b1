// Streams and events. Linked into comm_test, which runs every test on every rank.
#include "core/stream.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>
#include <vector>

#include "core/trace.h"

using namespace ultrascale;

TEST(Stream, RunsInOrder) {
    std::vector<int> order;  // written by the stream only, read after it was synchronised
    Stream stream("test");
    for (int i = 0; i < 1000; ++i) stream.submit([&order, i] { order.push_back(i); });
    stream.synchronize();
    ASSERT_EQ(order.size(), 1000u);
    for (int i = 0; i < 1000; ++i) EXPECT_EQ(order[i], i);
    EXPECT_EQ(stream.name(), "test");
}

TEST(Stream, ComputeIsTheCallingThread) {
    std::thread::id where;
    compute_stream().submit([&] { where = std::this_thread::get_id(); });
    EXPECT_EQ(where, std::this_thread::get_id());
    Event event = compute_stream().record();
    compute_stream().synchronize();
    EXPECT_TRUE(event.reached());
    EXPECT_TRUE(Event().reached());
    Event().synchronize();
    EXPECT_EQ(&compute_stream(), &compute_stream());
    EXPECT_NE(&compute_stream(), &communication_stream());
}

TEST(Stream, OtherStreamsAreNot) {
    std::thread::id where;
    communication_stream().submit([&] { where = std::this_thread::get_id(); });
    communication_stream().synchronize();
    EXPECT_NE(where, std::this_thread::get_id());
}

// A gate in `first` keeps all work behind the event waiting; only the host opens it.
TEST(Stream, WaitsForAnotherStreamsEvent) {
    std::atomic<bool> gate = false;
    std::vector<int> order;
    Stream first("first"), second("second");
    first.submit([&] {
        while (!gate) std::this_thread::yield();
        order.push_back(1);
    });
    Event event = first.record();
    second.wait(event);
    second.submit([&] { order.push_back(2); });
    Event end = second.record();
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    EXPECT_FALSE(event.reached());
    EXPECT_FALSE(end.reached());
    gate = true;
    compute_stream().wait(end);      // on the CPU the host waits here,
    compute_stream().synchronize();  // on CUDA here
    EXPECT_TRUE(event.reached());
    EXPECT_TRUE(end.reached());
    EXPECT_EQ(order, (std::vector<int>{1, 2}));
}

TEST(Stream, PingPong) {
    int value = 0;  // only the events order the two threads
    Stream a("a"), b("b");
    for (int i = 0; i < 200; ++i) {
        a.submit([&value, i] { EXPECT_EQ(value++, 2 * i); });
        b.wait(a.record());
        b.submit([&value, i] { EXPECT_EQ(value++, 2 * i + 1); });
        a.wait(b.record());
    }
    b.synchronize();
    EXPECT_EQ(value, 400);
}

TEST(Stream, TakesWorkFromSeveralThreads) {
    int done = 0;
    Stream stream("test");
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
        threads.emplace_back([&] {
            for (int i = 0; i < 250; ++i) stream.submit([&] { ++done; });
            stream.synchronize();
        });
    }
    for (std::thread& thread : threads) thread.join();
    stream.synchronize();
    EXPECT_EQ(done, 1000);
}

TEST(Stream, DestructorDrains) {
    int done = 0;
    {
        Stream stream("test");
        stream.submit([] { std::this_thread::sleep_for(std::chrono::milliseconds(5)); });
        for (int i = 0; i < 100; ++i) stream.submit([&] { ++done; });
    }
    EXPECT_EQ(done, 100);
}

TEST(Stream, EventOutlivesItsStream) {
    Event event;
    {
        Stream stream("test");
        event = stream.record();
    }
    EXPECT_TRUE(event.reached());
    event.synchronize();
}

TEST(Stream, ExceptionOnCompute) {
    EXPECT_THROW(compute_stream().submit([] { throw std::runtime_error("now"); }),
                 std::runtime_error);
    compute_stream().submit([] {});  // it continues
}

TEST(Stream, ExceptionOnAnotherStream) {
    int later = 0;
    Stream first("first"), second("second");
    Event before = first.record();
    first.submit([] { throw std::runtime_error("broken"); });
    first.submit([&] { ++later; });
    second.wait(first.record());
    second.submit([&] { ++later; });
    before.synchronize();  // came before the failure
    EXPECT_THROW(first.synchronize(), std::runtime_error);
    EXPECT_THROW(first.synchronize(), std::runtime_error);  // stays broken
    EXPECT_THROW(second.synchronize(), std::runtime_error);
    auto wait_on_compute = [](const Event& event) {
        compute_stream().wait(event);
        compute_stream().synchronize();
    };
    EXPECT_THROW(wait_on_compute(first.record()), std::runtime_error);
    compute_stream().synchronize();  // compute goes on
    EXPECT_EQ(later, 0);
}

TEST(Timestamps, AreOnTheHostsClock) {
    double before = now_seconds();
    Stream stream("test");
    Timestamp early = Timestamp::in(compute_stream());
    compute_stream().synchronize();
    stream.submit([] { std::this_thread::sleep_for(std::chrono::milliseconds(20)); });
    Timestamp late = Timestamp::in(stream);
    EXPECT_EQ(Timestamp().seconds(), 0);
    EXPECT_GT(late.seconds() - early.seconds(), 0.01);
    double after = now_seconds();
    EXPECT_GT(early.seconds(), before - 0.001);
    EXPECT_LT(late.seconds(), after + 0.001);
    EXPECT_EQ(late.seconds(), late.seconds());
}

TEST(Stream, UnseenExceptionIsReported) {
    testing::internal::CaptureStderr();
    {
        Stream("lonely").submit([] { throw std::runtime_error("nobody listens"); });
    }
    EXPECT_EQ(testing::internal::GetCapturedStderr(), "stream lonely failed: nobody listens\n");
}
