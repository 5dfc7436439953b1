// 03_tensor_parallel's demos print the right figures.
#include "compare_runs.h"

namespace ultrascale::test {
namespace {

const char* const chapter = "03_tensor_parallel";

TEST(TensorParallelDemos, ColumnThenRowAndRowThenColumn) {
    for (int ranks : {1, 2, 4}) {
        const Outcome demo = run_ranks(ranks, chapter, "--demo linear");
        EXPECT_EQ(demo.exit_code, 0) << demo.out << demo.err;
        // The sums have two rows: of K = 4 numbers, or of F = 8 and of K numbers.
        if (ranks != 2) continue;
        for (const char* line : {"column, then row     32 bytes in 1 call, by formula 32   equal",
                                 "row, then column     80 bytes in 2 calls, by formula 80   equal",
                                 "without the all-reduce in the middle, 8 of 8 numbers"})
            EXPECT_TRUE(contains(demo.out, line)) << demo.out;
    }
}

TEST(TensorParallelDemos, TheCliffAtTheNodesEdge) {
    const Outcome demo = run(chapter,
                             "--demo scaling --model llama-3-70b --seq 16384 --micro-batch 1 "
                             "--dtype bf16 --fp32-grads");
    EXPECT_EQ(demo.exit_code, 0) << demo.out << demo.err;
    for (const char* line :
         {"32         97      25 %          75 %           9.91        17.88          93           "
          " 1.04",
          "16        255      66 %          34 %           1.80         3.24",
          "the group leaves the node",
          "32        4.3        8.7       26.1             87.1        9.2      48.2  fits"})
        EXPECT_TRUE(contains(demo.out, line)) << line << "\n" << demo.out;
}

}  // namespace
}  // namespace ultrascale::test
