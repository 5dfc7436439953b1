// Exercise 04.b2: the targets of a rank's part of a sequence.
#include <gtest/gtest.h>

#include "04_context_parallel/9_context_parallel.h"

namespace ultrascale {
using namespace ultrascale::context_parallel;
namespace {

TEST(ShiftedTargets, AreCaught) {
    const Communicator& ranks = Communicator::world();
    const int64_t T = 8 * ranks.size();
    const LlamaConfig config{
        .layers = 1, .hidden = 8, .heads = 2, .kv_heads = 2, .head_dim = 4, .ffn = 8, .vocab = 999};
    const ContextParallel parallel(config, {.cp = ranks.size()}, T, ranks);
    HostBatch whole{.sequences = 1, .length = T, .counted_targets = T};
    for (int64_t i = 0; i < T; ++i) {
        whole.tokens.push_back(int32_t(i));
        whole.targets.push_back(int32_t(i + 1));
        whole.positions.push_back(int32_t(i));
    }
    // exercise 04.b2 begin: every token's target, also that of a chunk's last one
    const HostBatch part = parallel.part(whole);
    for (int64_t i = 0; i < part.length; ++i)
        EXPECT_EQ(part.targets[size_t(i)], part.tokens[size_t(i)] + 1) << "token " << i;
    // exercise 04.b2 end
}

}  // namespace
}  // namespace ultrascale
