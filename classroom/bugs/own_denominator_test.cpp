// Exercise 04.b1: the number by which a rank of context parallelism divides its loss.
#include <gtest/gtest.h>

#include "04_context_parallel/9_context_parallel.h"

namespace ultrascale {
using namespace ultrascale::context_parallel;
namespace {

TEST(OwnDenominator, IsCaught) {
    const Communicator& ranks = Communicator::world();
    const int64_t T = 24 * ranks.size();
    const LlamaConfig config{
        .layers = 1, .hidden = 8, .heads = 2, .kv_heads = 2, .head_dim = 4, .ffn = 8, .vocab = 9};
    const ContextParallel parallel(config, {.cp = ranks.size()}, T, ranks);
    HostBatch whole{.sequences = 1, .length = T, .counted_targets = 5};
    for (int64_t i = 0; i < T; ++i) {
        whole.tokens.push_back(int32_t(i % 9));
        whole.targets.push_back(i < 5 ? int32_t(i) : -100);  // only five of them count
        whole.positions.push_back(int32_t(i));
    }
    // exercise 04.b1 begin: what may the rank's part say about the number of targets?
    const HostBatch part = parallel.part(whole);
    EXPECT_EQ(part.counted_targets, whole.counted_targets);
    // exercise 04.b1 end
}

}  // namespace
}  // namespace ultrascale
