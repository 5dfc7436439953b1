// 09_5d_parallel's planner, as a user sees it: ranks that are only imagined hold and call what is
// predicted.
#include <algorithm>

#include "compare_runs.h"

namespace ultrascale::test {
namespace {

const char* const chapter = "09_5d_parallel";

TEST(PlannerModes, ARehearsedRankHoldsWhatIsPredicted) {
    for (const char* layout :
         {"17/6144 --tp 8 --sequence-parallel --cp 2 --pp 8 --zero 1 --micro-batch 1 --grad-accum "
          "8",
          "9/16 --model nano-moe --tp 2 --sequence-parallel --ep 2 --pp 2 --zero 1 --micro-batch 1 "
          "--grad-accum 4",
          "5/64 --zero 3 --micro-batch 2 --grad-accum 2 --recompute full"}) {
        SCOPED_TRACE(layout);
        const Outcome rehearsed = train(chapter, fmt::format("--rehearse {} --steps 2", layout));
        expect_as_predicted(rehearsed);
    }
}

TEST(PlannerModes, EstimateOfImaginedRanksEqualsThatOfRealOnes) {
    const std::string layout =
        "--estimate --tp 2 --sequence-parallel --pp 2 --zero 3 --micro-batch 1 --grad-accum 4";
    const Outcome real = train(8, chapter, layout), imagined = train(chapter, layout + " --gpus 8");
    int64_t most = 0;
    for (const Json& row : imagined.rows)
        if (row.at("table") == "places") most = std::max(most, row.at("total").get<int64_t>());
    EXPECT_EQ(most, real.summary.at("memory").at("peak").at("predicted").get<int64_t>());
}

TEST(PlannerModes, BadLayoutsAreRefused) {
    for (const char* args :
         {"--rehearse 8/8", "--rehearse x", "--plan --hardware h1000", "--gpus 8",
          "--plan --batch-tokens many", "--explain-layout --gpus 8 --tp 3"}) {
        const Outcome refused = run(chapter, args);
        EXPECT_EQ(refused.exit_code, 2) << args << "\n" << refused.out;
        EXPECT_EQ(std::ranges::count(refused.err, '\n'), 1) << refused.err;
    }
}

}  // namespace
}  // namespace ultrascale::test
