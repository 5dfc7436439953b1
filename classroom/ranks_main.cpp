// main() of graded tests that run on several ranks. Every rank runs every test; ranks other than 0
// print only failures.
#include <gtest/gtest.h>

#include "comm/comm.h"
#include "core/ops.h"
#include "core/threads.h"

using namespace ultrascale;

namespace {

class FailuresOnly : public testing::EmptyTestEventListener {
    void OnTestPartResult(const testing::TestPartResult& result) override {
        if (!result.failed()) return;
        std::fprintf(stderr, "rank %d: %s:%d: Failure\n%s\n", Communicator::world().rank(),
                     result.file_name(), result.line_number(), result.message());
    }
};

}  // namespace

int main(int argc, char** argv) {
    testing::InitGoogleTest(&argc, argv);
    use_threads(ranks_on_this_node());
    const Communicator& world = Communicator::world();
    if (world.rank() != 0) {
        auto& listeners = testing::UnitTest::GetInstance()->listeners();
        delete listeners.Release(listeners.default_result_printer());
        listeners.Append(new FailuresOnly);
    }
    world.barrier();
    const Tensor failed =
        Tensor::from_host<int32_t>(std::vector<int32_t>{RUN_ALL_TESTS()}, {1}, Memory::workspace);
    world.all_reduce(failed, Reduce::max);
    const int result = failed.to_host<int32_t>()[0];
    finalize_communication();
    return result;
}
