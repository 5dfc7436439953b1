// If the loss or norm of a training is not finite, all ranks stop after that step, say so once,
// name the last finite checkpoint, and leave it alone.
#include <cstring>

#include "run_program.h"

namespace ultrascale::test {
namespace {

namespace fs = std::filesystem;

// Weight decay multiplies the matrices by about -1e12 in every step, until a product overflows.
const std::string tiny = "--layers 1 --micro-batch 1 --seq 16 --peak-tflops 1 --no-verify ",
                  diverging = tiny + "--lr 1e6 --weight-decay 1e6 --clip 0 --steps 9 ";

// The contents of --json's last line, and of the one line on stderr.
struct Stopped {
    int64_t step;
    std::string what, checkpoint;
};
Stopped expect_stop(int ranks, const std::string& chapter, const std::string& arguments) {
    SCOPED_TRACE(fmt::format("{} {} on {} ranks", chapter, arguments, ranks));
    const TempDir dir;
    const std::string json = dir / "run.jsonl", all = fmt::format("{} --json {}", arguments, json);
    const Outcome run = ranks == 0 ? test::run(chapter, all) : run_ranks(ranks, chapter, all, 60);
    EXPECT_EQ(run.exit_code, 5) << run.err;
    const std::string lines = slurp(json);
    EXPECT_TRUE(lines.ends_with("\n"));
    std::istringstream in(lines);
    std::vector<Json> records;
    for (std::string line; std::getline(in, line);)
        if (Json record = Json::parse(line); !record.contains("by_rank"))
            records.push_back(std::move(record));
    if (records.size() < 2 || !records.back().contains("summary")) {
        ADD_FAILURE() << lines << run.err;
        return {};
    }
    const Json& told = records.back().at("summary").at("not_finite");
    const Stopped stopped{told.at("step"), told.at("what"), told.at("last_finite_checkpoint")};
    EXPECT_EQ(records[records.size() - 2].at("step"), stopped.step);  // no step came after it
    EXPECT_EQ(run.err, fmt::format("error: step {}: not finite: {}; training stops; {}\n",
                                   stopped.step, stopped.what,
                                   stopped.checkpoint.empty()
                                       ? "there is no finite checkpoint"
                                       : "the last finite checkpoint: " + stopped.checkpoint));
    EXPECT_FALSE(contains(run.out, "saved to")) << run.out;
    return stopped;
}

TEST(NotFinite, StopsAndKeepsTheLastCheckpoint) {
    const TempDir dir;
    const std::string saved = dir / "saved";
    const Stopped stopped =
        expect_stop(0, "00_single_gpu",
                    diverging + fmt::format("--save {} --save-every 1 --trace {} --html {}", saved,
                                            dir / "trace.json", dir / "page.html"));
    EXPECT_GT(stopped.step, 1);
    EXPECT_LT(stopped.step, 9);
    EXPECT_TRUE(contains(stopped.what, "gradient norm nan")) << stopped.what;
    const std::string last = fmt::format("checkpoint-{}", stopped.step - 1);
    EXPECT_EQ(stopped.checkpoint, saved + "/" + last);
    EXPECT_EQ(slurp(saved + "/latest_checkpoint"), last + "\n");
    EXPECT_TRUE(fs::exists(stopped.checkpoint + "/model.safetensors"));
    EXPECT_FALSE(fs::exists(saved + "/config.json"));  // nothing was saved at the end
    EXPECT_FALSE(Json::parse(slurp(dir / "trace.json")).at("traceEvents").empty());
    EXPECT_TRUE(contains(slurp(dir / "page.html"), "not_finite"));

    // A second run from the checkpoint reaches the same step, and names the checkpoint that it
    // began with.
    const Stopped again = expect_stop(0, "00_single_gpu",
                                      diverging + fmt::format("--load {} --save {}", saved, saved));
    EXPECT_EQ(again.step, stopped.step);
    EXPECT_EQ(again.checkpoint, stopped.checkpoint);
    EXPECT_EQ(slurp(saved + "/latest_checkpoint"), last + "\n");
}

TEST(NotFinite, OnSeveralRanksTheyStopTogether) {
    const TempDir dir;
    const Stopped stopped =
        expect_stop(2, "02_zero", diverging + fmt::format("--stage 3 --save {}", dir / "saved"));
    EXPECT_EQ(stopped.checkpoint, "");
    EXPECT_FALSE(fs::exists(dir / "saved/config.json"));
}

// A checkpoint whose last weight is infinite.
class Broken {
public:
    Broken() {
        train("00_single_gpu", fmt::format("{} --steps 0 --save {}", tiny, path()));
        const std::string file = path() + "/model.safetensors";
        std::string bytes = slurp(file);
        const float infinite = INFINITY;
        std::memcpy(bytes.data() + bytes.size() - sizeof infinite, &infinite, sizeof infinite);
        put(file, bytes);
    }
    std::string path() const { return dir_ / "broken"; }

private:
    const TempDir dir_;
};

TEST(NotFinite, CheckpointsThatAreNotAreNotNamed) {
    const Broken broken;
    const Stopped stopped = expect_stop(
        0, "00_single_gpu", fmt::format("{} --load {} --steps 3 --verify", tiny, broken.path()));
    EXPECT_EQ(stopped.step, 1);
    EXPECT_EQ(stopped.checkpoint, "");
    put(broken.path() + "/text.txt", std::string(100, 'x'));
    const Outcome validated =
        run("00_single_gpu",
            fmt::format("{0} --load {1} --steps 0 --val-data {1}/text.txt", tiny, broken.path()));
    EXPECT_EQ(validated.exit_code, 5) << validated.out;
    EXPECT_EQ(validated.err,
              "error: step 0: not finite: validation loss nan; there is no finite checkpoint\n");
    const Outcome compared =
        run_ranks(2, "05_pipeline",
                  fmt::format("--load {} --micro-batch 1 --seq 16 --grad-accum 2 --pp 1 --compare",
                              broken.path()),
                  60);
    EXPECT_EQ(compared.exit_code, 5) << compared.out;
    EXPECT_TRUE(compared.err.starts_with("error: a compared step is not finite: loss "))
        << compared.err;
}

// This holds in every chapter that trains, however its ranks learn a step's loss and norm.
TEST(LongNotFinite, InEveryChapter) {
    struct Run {
        int ranks;
        const char *chapter, *arguments;
    };
    const std::vector<Run> runs = {
        {0, "00_single_gpu", "--noise-scale --grad-accum 2"},
        {2, "01_data_parallel", ""},
        {2, "01_data_parallel", "--sync diloco --inner-steps 2"},
        {2, "02_zero", "--stage 1"},
        {2, "02_zero", "--stage 2 --gather-overlap forward"},
        {2, "02_zero", "--stage 3 --offload optimizer"},
        {4, "03_tensor_parallel", "--tp 2 --sequence-parallel"},
        {4, "04_context_parallel", "--cp 2"},
        {2, "05_pipeline", "--layers 2 --grad-accum 4"},
        {2, "05_pipeline", "--layers 2 --grad-accum 4 --post-validation --clip 1"},
        {4, "06_expert_parallel", "--ep 2"},
        {2, "08_mixed_precision", "--recipe bf16"},
        {2, "08_mixed_precision", "--recipe fp32"},
        {4, "09_5d_parallel", "--pp 2 --tp 2 --layers 2 --grad-accum 2"},
        {4, "09_5d_parallel", "--cp 2 --zero 3"}};
    for (const auto& [ranks, chapter, arguments] : runs)
        expect_stop(ranks, chapter, diverging + arguments);
    for (const auto& [ranks, chapter, arguments] : runs)
        expect_stop(ranks, chapter, diverging + "--verify " + arguments);
}

}  // namespace
}  // namespace ultrascale::test
