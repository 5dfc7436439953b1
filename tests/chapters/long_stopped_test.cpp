// One rank of several is asked to stop, where other sums take its vote to the others.
#include "stopped.h"

namespace ultrascale::test {
namespace {

TEST(LongStopped, OneOfSeveralRanks) {
    go_on_after_one_rank_is_signalled(
        {{2, "02_zero", "--stage 3"},
         {2, "05_pipeline", "--grad-accum 2"},
         {4, "05_pipeline", "--pp 2 --grad-accum 2 --schedule zb-h2 --post-validation"},
         {4, "09_5d_parallel", "--tp 2 --pp 2 --grad-accum 2"}});
}

}  // namespace
}  // namespace ultrascale::test
