// Groups of ranks, and groups of those: their members, and that messages do not cross from one
// group to another (part of comm_test).
#include "comm_test.h"

using namespace ultrascale;

TEST(Split, RowsAndColumns) {
    int n = world().size(), me = world().rank(), columns = n % 2 == 0 ? 2 : n;
    Communicator row = world().split(me / columns, me, "row");
    Communicator column = world().split(me % columns, -me, "column");  // ordered backwards
    EXPECT_EQ(row.size(), columns);
    EXPECT_EQ(row.rank(), me % columns);
    EXPECT_EQ(row.name(), "row");
    EXPECT_EQ(column.rank(), column.size() - 1 - me / columns);
    Tensor a = tensor<int32_t>({me}), b = tensor<int32_t>({me});
    Work work = row.all_reduce(a, Reduce::sum, communication_stream());
    column.broadcast(b, 0);
    work.wait();
    EXPECT_EQ(first<int32_t>(a), me / columns * columns * columns + columns * (columns - 1) / 2);
    EXPECT_EQ(first<int32_t>(b), (n / columns - 1) * columns + me % columns);
}

// Groups that share ranks never share tags, in whatever order they were created. A split of a split
// works like any other.
TEST(Split, NestedAndOverlapping) {
    int n = world().size(), me = world().rank();
    Communicator half = world().split(me < (n + 1) / 2, me, "half");
    if (me < (n + 1) / 2) half.split(0, 0, "only one half makes this");
    Communicator pair = half.split(half.rank() / 2, 0, "pair"), all = world().split(0, -me, "all");
    Tensor a = tensor<int32_t>({1}), b = tensor<int32_t>({me}), c = tensor<int32_t>({me});
    Work one = all.broadcast(c, 0, communication_stream()),
         other = pair.all_reduce(a, Reduce::sum, communication_stream());
    half.all_reduce(b, Reduce::max);
    one.wait();
    other.wait();
    EXPECT_EQ(first<int32_t>(a), pair.size());
    EXPECT_EQ(first<int32_t>(b), me < (n + 1) / 2 ? (n + 1) / 2 - 1 : n - 1);
    EXPECT_EQ(first<int32_t>(c), n - 1);
}

// A message of one group does not arrive in another, even if it is the first message of both.
TEST(Split, GroupsAreApart) {
    Communicator one = world().split(0, 0, "one"), other = world().split(0, 0, "other");
    Tensor x = tensor<int32_t>({1}), y = tensor<int32_t>({2});
    if (world().size() > 1 && world().rank() == 0) {
        one.send(x, 1);
        other.send(y, 1);
    } else if (world().rank() == 1) {
        if (transport::over_mpi()) {  // in the other order, which NCCL does not allow
            other.recv(x, 0);
            one.recv(y, 0);
        } else {
            one.recv(y, 0);
            other.recv(x, 0);
        }
        EXPECT_EQ(first<int32_t>(x), 2);
        EXPECT_EQ(first<int32_t>(y), 1);
    }
}

TEST(Tags, StayInTheirRange) {
    using Impl = Communicator::Impl;
    int last = Impl::groups() - 1, tags = Impl::group_tags();
    Impl group("tags", {0, 1}, 0, last);
    group.collectives = group.sends[1] = tags / 2 - 1;
    EXPECT_EQ(group.collective_tag(), last * tags + (tags / 2 - 1));
    EXPECT_EQ(group.collective_tag(), last * tags);
    EXPECT_EQ(group.send_tag(1), last * tags + (tags - 1));
    EXPECT_EQ(group.send_tag(1), group.receive_tag(1));
    EXPECT_THROW(Impl("one too many", {0}, 0, last + 1), std::logic_error);
}
