// A GPT-2 in the chapters: equal to one device, with memory and communication as predicted, and the
// terms of s b h (34 + 5 a s / h) measured.
#include "compare_runs.h"
#include "refused.h"

namespace ultrascale::test {
namespace {

const char* const common = "--model gpt-nano --layers 4 --seq 40 --steps 3 --micro-batch 4";
const char* const dropped = "--attention naive --dropout 0.1";

TEST(Gpt, EveryTechniqueEqualsOneDevice) {
    expect_exact_peaks(
        common, {{0, "00_single_gpu", "--loss-chunk 37 --recompute full"},
                 {0, "00_single_gpu", "--dtype bf16 --attention naive --dropout 0.1 --keep-masks"},
                 {0, "00_single_gpu", "--attention naive --dropout 0.1 --recompute selective"},
                 {2, "01_data_parallel", "--attention naive --dropout 0.1"},
                 {2, "02_zero", "--stage 3"},
                 {2, "03_tensor_parallel", "--tp 2 --overlap chunk"},
                 {2, "03_tensor_parallel",
                  "--tp 2 --sequence-parallel --attention naive --dropout 0.1 --keep-masks"},
                 {2, "04_context_parallel", "--cp 2"},
                 {2, "05_pipeline",
                  "--pp 2 --grad-accum 4 --schedule zb-h1 --attention naive --dropout 0.1"},
                 {4, "09_5d_parallel", "--tp 2 --cp 2 --sequence-parallel"},
                 {4, "09_5d_parallel", "--tp 2 --pp 2 --grad-accum 2 --zero 1"}});
}

// Returns the table's rows that end with `how`.
int64_t rows_with(const std::string& table, const std::string& how) {
    int64_t count = 0;
    std::istringstream lines(table);
    for (std::string line; std::getline(lines, line);) count += line.ends_with("   " + how);
    return count;
}
std::string terms_of(const Outcome& run) {
    const size_t first = run.out.find("a layer's activations in units of s b h");
    EXPECT_NE(first, std::string::npos) << run.out;
    return run.out.substr(first, run.out.find("\n\n", first) - first);
}

TEST(Gpt, KeepsTheTermsOfTheFormula) {
    const std::string full = fmt::format("{} --dtype bf16 --no-verify --report full", common);
    const auto table = [&](int ranks, const char* chapter, const std::string& arguments) {
        const std::string terms =
            terms_of(train(ranks, chapter, fmt::format("{} {}", full, arguments)));
        EXPECT_FALSE(contains(terms, "MISMATCH")) << terms;
        return terms;
    };
    const std::string kept = fmt::format("{} --keep-masks", dropped);
    EXPECT_EQ(rows_with(table(0, "00_single_gpu", kept), "equal"), 13);
    const std::string again = table(0, "00_single_gpu", dropped);
    EXPECT_EQ(rows_with(again, "equal"), 8) << again;
    EXPECT_EQ(rows_with(again, "drawn again"), 3) << again;
    EXPECT_EQ(rows_with(again, "GELU is computed again"), 1) << again;
    const std::string selective =
        table(0, "00_single_gpu", fmt::format("{} --recompute selective", kept));
    EXPECT_EQ(rows_with(selective, "computed again"), 3) << selective;
    const std::string tiles = table(0, "00_single_gpu", "");
    EXPECT_EQ(rows_with(tiles, "attention in tiles has no s x s"), 3) << tiles;
    EXPECT_EQ(rows_with(tiles, "no dropout"), 2) << tiles;
    if (on_gpu && gpus() < 2) return;
    const std::string tp = fmt::format("--tp 2 {}", kept);
    EXPECT_EQ(rows_with(table(2, "03_tensor_parallel", tp), "equal"), 13);
    const std::string sp = table(2, "03_tensor_parallel",
                                 fmt::format("{} --sequence-parallel --keep-gathered on", tp));
    EXPECT_EQ(rows_with(sp, "kept as it was gathered"), 2) << sp;
    EXPECT_EQ(rows_with(sp, "equal"), 11) << sp;
}

TEST(Gpt, IsRefusedWhereOnlyALlamaFits) {
    for (const auto& [chapter, arguments, telling] :
         std::vector<std::tuple<const char*, const char*, const char*>>{
             {"00_single_gpu", "--seq 1025", "1024 positions"},
             {"00_single_gpu", "--dropout 0.1", "--attention naive"},
             {"02_zero", "--demo memory", "is a GPT"},
             {"03_tensor_parallel", "--demo scaling", "is a GPT"},
             {"06_expert_parallel", "", "experts"},
             {"08_mixed_precision", "--recipe te", "is a GPT"},
             {"09_5d_parallel", "--plan --gpus 8", "is a GPT"}}) {
        const Outcome outcome = run(chapter, fmt::format("--model gpt-nano {}", arguments));
        expect_one_error_line(outcome, {telling});
    }
}

}  // namespace
}  // namespace ultrascale::test
