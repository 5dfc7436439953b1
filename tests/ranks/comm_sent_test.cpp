// By comm.h's formula a rank sends exactly the bytes that it passes to MPI, or between GPUs to copy
// engines.
#include "comm_test.h"
#include "core/trace.h"

namespace ultrascale {
namespace {

struct Bytes {
    double counted, handed_over;
};
Bytes bytes_of(const std::function<void()>& call) {
    const auto counted = [] { return bytes_sent_in_all(communication_counts()); };
    const double counted_before = counted();
    const int64_t before = bytes_handed_over();
    call();
    return {counted() - counted_before, double(bytes_handed_over() - before)};
}

// If n does not divide the number of elements, slices differ by one element in each chunk.
void expect_equal(const Bytes& bytes, int64_t tensor_bytes, const char* what) {
    const double n = world().size(),
                 chunks = double(tensor_bytes) / double(communication_settings().chunk_bytes) + 1;
    EXPECT_NEAR(bytes.handed_over, bytes.counted, 4 * n * chunks)
        << what << ", rank " << world().rank();
}

TEST(Sent, IsWhatIsHandedOver) {
    const int n = world().size(), me = world().rank(), root = n - 1;
    const int64_t slice = 3 << 18, whole = slice * n, bytes = whole * 4;  // 3 MiB and n times that
    const auto memory = world().symmetric_memory();
    if (!transport::over_mpi() && !memory) GTEST_SKIP() << "NCCL does not tell what it sends";
    const Tensor x = Tensor::zeros({whole}, DType::fp32, Memory::workspace, memory),
                 y = Tensor::zeros({whole}, DType::fp32, Memory::workspace, memory),
                 part = Tensor::zeros({slice}, DType::fp32, Memory::workspace);
    const double S = double(bytes), share = double(n - 1) / n;
    const auto expect = [&](const char* what, double formula, const std::function<void()>& call) {
        call();  // the first call may map memory, for which ranks exchange messages
        const Bytes got = bytes_of(call);
        EXPECT_NEAR(got.counted, formula, 1e-3) << what << ", rank " << me;
        expect_equal(got, bytes, what);
    };
    expect("all-reduce", 2 * share * S, [&] { world().all_reduce(x); });
    expect("all-gather", share * S, [&] { world().all_gather(x, part); });
    expect("reduce-scatter", share * S, [&] { world().reduce_scatter(part, x); });
    if (!transport::over_mpi()) return;  // the others go by NCCL
    expect("all-to-all", share * S, [&] { world().all_to_all(y, x); });
    expect("broadcast", me == root ? (n - 1) * S : 0, [&] { world().broadcast(x, root); });
    expect("reduce", me == root ? share * S : n > 1 ? S : 0, [&] { world().reduce(x, root); });
    expect("gather", me == root ? 0 : S / n, [&] { world().gather(x, part, root); });
    expect("scatter", me == root ? share * S : 0, [&] { world().scatter(part, x, root); });
    expect("send/recv", n > 1 ? S : 0, [&] {
        world().send_recv(
            {{Transfer::send, x, (me + 1) % n}, {Transfer::recv, y, (me + n - 1) % n}});
    });
}

TEST(Sent, OfSlicesOfDifferentSizes) {
    const int n = world().size(), me = world().rank();
    std::vector<int64_t> send(n), recv(n);  // rank a sends a + 2 b + 1 elements to rank b
    int64_t in = 0, out = 0;
    for (int r = 0; r < n; ++r) in += send[r] = me + 2 * r + 1, out += recv[r] = r + 2 * me + 1;
    const Bytes got =
        bytes_of([&] { world().all_to_all(blank<float>(out), blank<float>(in), send, recv); });
    EXPECT_NEAR(got.counted, 4.0 * double(in - send[me]), 1e-3);
    if (transport::over_mpi()) {
        EXPECT_NEAR(got.handed_over, got.counted, 1e-3);
    }
}

TEST(Sent, OfAGroupAndOfASmallTensor) {
    const int n = world().size(), half = (n + 1) / 2;
    const Communicator group = world().split(world().rank() / half, world().rank(), "half");
    const Bytes group_bytes = bytes_of([&] { group.all_reduce(blank<float>(1 << 18)); });
    EXPECT_NEAR(group_bytes.counted, 2.0 * (group.size() - 1) / group.size() * (4 << 18), 1e-3);
    if (!transport::over_mpi()) return;
    expect_equal(group_bytes, 4 << 18, "all-reduce in a group");
    // Up to 4 KiB take one round instead of two: every rank sends everything to every other rank.
    const Bytes small = bytes_of([&] { world().all_reduce(blank<float>(2)); });
    EXPECT_NEAR(small.counted, 2.0 * (n - 1) / n * 8, 1e-3);
    EXPECT_EQ(small.handed_over, (n - 1) * 8);
}

TEST(Explain, SaysWhatIsCommunicated) {
    Tensor x = blank<float>(1024);
    testing::internal::CaptureStdout();
    explain_enable(Communicator::world().rank() == 0);
    world().all_reduce(x, Reduce::sum, communication_stream());
    world().broadcast(x, 0);
    explain_enable(false);
    std::string text = testing::internal::GetCapturedStdout();
    const int n = world().size();
    std::string what =
        fmt::format("of {} over world ({})", format_bytes(4096), format_count(n, "rank"));
    if (world().rank() > 0) return;
    const std::string sent = format_bytes(2.0 * (n - 1) / n * 4096),
                      root_sent = format_bytes((n - 1) * 4096);
    EXPECT_NE(text.find("all-reduce " + what + ", sends " + sent + ", asynchronous\n"),
              std::string::npos)
        << text;
    EXPECT_NE(text.find("broadcast " + what + " from 0, sends " + root_sent + "\n"),
              std::string::npos)
        << text;
}

}  // namespace
}  // namespace ultrascale
