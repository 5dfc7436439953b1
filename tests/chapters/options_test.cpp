// Options without effect are refused with the reason, unknown ones with a suggestion. Also the
// output that all programs have: --json's lines, --log-every, lines on a terminal.
#include <fmt/ranges.h>

#include <cstdlib>
#include <set>

#include "lab/options/other_chapters.h"
#include "refused.h"

namespace ultrascale::test {
namespace {

void refuses(int ranks, const std::string& chapter, const std::string& arguments,
             const std::vector<std::string>& telling) {
    SCOPED_TRACE(fmt::format("{} {}", chapter, arguments));
    expect_one_error_line(
        ranks == 0 ? run(chapter, arguments) : run_ranks(ranks, chapter, arguments, 60), telling);
}

TEST(Options, WithoutEffectAreRefused) {
    const std::string none = "has no effect: ";
    refuses(0, "00_single_gpu", "--naive-mean", {"--naive-mean " + none, "--grad-accum 2"});
    refuses(0, "00_single_gpu", "--batch-ramp 8:1,16 --grad-accum 2",
            {"--batch-ramp", "--grad-accum"});
    refuses(0, "00_single_gpu", "--temperature 1", {"--temperature " + none, "--sample"});
    refuses(0, "00_single_gpu", "--prompt a", {"--prompt " + none, "--sample"});
    refuses(0, "00_single_gpu", "--lr-steps 4", {"--lr-steps " + none, "cosine"});
    refuses(0, "00_single_gpu", fmt::format("--model nano --load {}", reference("gqa_untied")),
            {"--model " + none, "--load"});
    refuses(0, "00_single_gpu", fmt::format("--layers 1 --load {}", reference("gqa_untied")),
            {"--layers 1", "2 layers"});
    refuses(0, "01_data_parallel", "--sync naive --bucket-mb 1",
            {"--bucket-mb " + none, "--sync bucket"});
    refuses(0, "01_data_parallel", "--ring-directions both",
            {"--ring-directions " + none, "--sync ring"});
    refuses(0, "01_data_parallel", "--tree-chunks 4", {"--tree-chunks " + none, "--sync tree"});
    for (const char* option : {"--inner-steps 2", "--outer-lr 1", "--outer-momentum 0"})
        refuses(0, "01_data_parallel", option, {none, "--sync diloco"});
    refuses(0, "01_data_parallel", "--no-sync off", {"--no-sync " + none, "--grad-accum 2"});
    refuses(0, "01_data_parallel", "--largest-mib 1",
            {"--largest-mib " + none, "--demo bandwidth"});
    refuses(0, "01_data_parallel", "--sync ring --reduce-dtype bf16",
            {"--reduce-dtype " + none, "--sync bucket"});
    refuses(0, "01_data_parallel", "--demo bandwidth --hop-us 1", {"--hop-us " + none, "latency"});
    refuses(0, "01_data_parallel", "--planet km=1", {"--planet " + none, "--demo planet"});
    refuses(0, "01_data_parallel", "--demo planet --planet km", {"--planet km", "positive number"});
    refuses(0, "01_data_parallel", "--compare --sync ring", {"--compare", "--sync"});
    refuses(0, "01_data_parallel", "--demo collectives --json x.jsonl", {"--json", "no figures"});
    refuses(0, "03_tensor_parallel", "--demo linear --json x.jsonl", {"--json", "no figures"});
    refuses(0, "02_zero", "--stage 0 --shard-size 2", {"--shard-size " + none, "stage 0"});
    refuses(0, "02_zero", "--plain --shard-size 2", {"--shard-size " + none, "--plain"});
    refuses(0, "02_zero", "--stage 2 --secondary-shard 2",
            {"--secondary-shard " + none, "stage 3"});
    refuses(0, "02_zero", "--stage 3 --shard-size 2 --secondary-shard 2",
            {"--secondary-shard " + none, "--shard-size"});
    refuses(0, "02_zero", "--prefetch 2", {"--prefetch " + none, "stage 3"});
    refuses(0, "02_zero", "--stage 3 --gather-overlap forward",
            {"--gather-overlap " + none, "stages 1 and 2"});
    refuses(0, "02_zero", "--stage 2 --grad-accum 2 --no-sync off",
            {"--no-sync " + none, "after each micro-batch anyway"});
    for (const char* option : {"--stage 2", "--gather-overlap forward", "--offload optimizer",
                               "--grad-accum 2 --no-sync off", "--compare"})
        refuses(0, "02_zero", fmt::format("--plain {}", option), {"--plain"});
    for (const char* option : {"--keep-gathered on", "--cut model"})
        refuses(0, "02_zero", fmt::format("--stage 2 {}", option), {none, "stage 3"});
    refuses(0, "02_zero", "--offload activations", {"--offload activations", "--recompute full"});
    refuses(0, "09_5d_parallel", "--plan --gpus 8 --recompute full:1",
            {"--recompute full:1", "all layers"});
    refuses(2, "03_tensor_parallel", "--overlap halves --recompute full:1", {"--recompute full:1"});
    refuses(2, "03_tensor_parallel", "--overlap halves --memory-budget 1",
            {"--memory-budget " + none});
    refuses(0, "02_zero", "--offload both --stage 0 --recompute full", {"--offload", "--stage 1"});
    refuses(0, "00_single_gpu", "--seq-ramp 16:2,32 --seq 32", {"--seq-ramp", "--seq"});
    refuses(0, "02_zero", "--compare --stage 1", {"--stage " + none, "--compare"});
    refuses(2, "03_tensor_parallel", "--chunks 4", {"--chunks " + none, "--overlap chunk"});
    refuses(2, "03_tensor_parallel", "--keep-gathered on",
            {"--keep-gathered " + none, "--sequence-parallel"});
    refuses(2, "03_tensor_parallel", "--same-seed off", {"--same-seed " + none, "--dropout"});
    refuses(2, "03_tensor_parallel", "--compare --sequence-parallel",
            {"--compare", "--sequence-parallel"});
    refuses(2, "04_context_parallel", "--ulysses 2", {"--ulysses " + none, "--variant usp"});
    for (const char* option : {"--bidirectional on", "--ring-backward restarted", "--merge bf16"})
        for (const char* variant : {"plain", "ulysses"})
            refuses(2, "04_context_parallel", fmt::format("--variant {} {}", variant, option),
                    {none});
    refuses(2, "04_context_parallel", "--variant plain --layout zigzag",
            {"--layout zigzag", "--variant plain", "contiguous only"});
    for (const char* chapter : {"04_context_parallel", "09_5d_parallel"})
        refuses(2, chapter, "--cp 2 --variant plain --document-token 10",
                {"--document-token", "--variant plain", "--variant ring"});
    refuses(2, "04_context_parallel", "--bidirectional on --ring-backward restarted",
            {"--ring-backward " + none});
    refuses(2, "04_context_parallel", "--tails on", {"--tails is called --bidirectional now"});
    refuses(2, "04_context_parallel", "--compare --bidirectional on",
            {"--compare", "--bidirectional"});
    refuses(2, "04_context_parallel", "--demo merge --json x.jsonl", {"--json", "no figures"});
    refuses(2, "05_pipeline", "--chunks 2", {"--chunks " + none, "--schedule 1f1b"});
    refuses(2, "05_pipeline", "--schedule zbv --group 2", {"--group " + none, "--schedule zbv"});
    refuses(2, "05_pipeline", "--in-flight 2", {"--in-flight " + none});
    refuses(2, "05_pipeline", "--solver-seconds 2", {"--solver-seconds " + none, "optimal"});
    refuses(1, "05_pipeline", "--post-validation", {"--post-validation " + none, "single stage"});
    for (const char* option : {"--post-validation", "--pretend F=40", "--chunks 2", "--group 2"})
        refuses(2, "05_pipeline", std::string("--schedule plain ") + option,
                {std::string(option).substr(0, std::string(option).find(' ')) + ": ",
                 "--schedule plain", "1f1b"});
    refuses(2, "09_5d_parallel", "--pp 2 --schedule plain", {"--schedule plain", "1f1b"});
    refuses(2, "09_5d_parallel", "--tp 2 --tp-overlap halves", {"--tp-overlap", "halves", "async"});
    refuses(2, "05_pipeline", "--compare --schedule zbv", {"--compare", "--schedule"});
    refuses(2, "05_pipeline", "--simulate p=4 --json x.jsonl", {"--json", "no figures"});
}

TEST(Options, UnexpectedOnesAreNamedInOrderWithWhatWasMeant) {
    refuses(0, "02_zero", "--stag 3 --steps 2 rest",
            {"--stag 3 rest: not expected", "did you mean --stage?"});
    refuses(0, "01_data_parallel", "--stage 3",
            {"--stage 3: not expected", "--stage is an option of 02_zero"});
    for (const char* cuts_matrices : {"03_tensor_parallel", "09_5d_parallel"})
        refuses(0, cuts_matrices, "--optimizer muon",
                {"--optimizer is an option of 00_single_gpu", "Muon needs whole matrices"});
    EXPECT_FALSE(contains(run("08_mixed_precision", "--optimizer muon").err, "Muon needs"));
    refuses(0, "00_single_gpu", "--bucket-mb=3 --completely-unknown",
            {"option of 01_data_parallel", "--help"});
    EXPECT_FALSE(contains(run("00_single_gpu", "--completely-unknown").err, "did you mean"));
    refuses(0, "00_single_gpu", "--seed -1", {"--seed", "whole number of at least 0"});
    EXPECT_FALSE(contains(run("00_single_gpu", "--help").out, "e+"));
}

std::set<std::string> options_of(const std::string& chapter) {
    std::set<std::string> names;
    std::istringstream words(run(chapter, "--help").out);
    for (std::string line; std::getline(words, line);)
        if (line.starts_with("  --")) names.insert(line.substr(2, line.find_first_of(" ,", 2) - 2));
    return names;
}

// OPTIONS.md's table of the options of each chapter, and the table behind "is an option of", agree
// with the programs.
TEST(Options, TablesAreWhatTheProgramsSay) {
    const std::string command =
        fmt::format("python3 tests/options.py --check {} >&2", built.string());
    EXPECT_EQ(std::system(command.c_str()), 0) << "make options";
}

// --help lists the exit codes of OPTIONS.md.
TEST(Options, PageHasTheExitCodes) {
    std::string page;
    for (const char c : slurp(built / "../../OPTIONS.md"))
        page += c == '`' ? "" : std::string(1, c);
    for (const char* chapter : {"00_single_gpu", "07_kernels", "09_5d_parallel"}) {
        const std::string help = run(chapter, "--help").out;
        std::istringstream lines(help.substr(std::min(help.size(), help.find("Exit codes:\n"))));
        std::string line;
        int codes = 0;
        for (std::getline(lines, line); std::getline(lines, line); ++codes)
            EXPECT_TRUE(contains(
                page, fmt::format("\n| {} | {} |\n", std::atoi(line.c_str()), line.substr(6))))
                << line;
        EXPECT_EQ(codes, 8) << chapter;
    }
}

TEST(Options, OfOtherChaptersAreKnown) {
    const std::vector<std::string> chapters = {
        "00_single_gpu",      "01_data_parallel",    "02_zero",
        "03_tensor_parallel", "04_context_parallel", "05_pipeline",
        "06_expert_parallel", "07_kernels",          "08_mixed_precision",
        "09_5d_parallel"};
    std::map<std::string, std::vector<std::string>> owners;  // of each option
    for (const std::string& chapter : chapters)
        for (const std::string& name : options_of(chapter)) owners[name].push_back(chapter);
    std::vector<std::string> training = chapters;
    std::erase(training, "07_kernels");
    for (const auto& [name, of] : owners)
        EXPECT_EQ(chapters_with_option(name), of == chapters ? ""
                                              : of == training
                                                  ? "every chapter that trains"
                                                  : fmt::format("{}", fmt::join(of, " and ")))
            << name;
    EXPECT_EQ(owners.at("--model"), training);
    EXPECT_EQ(owners.at("--json"), chapters);
}

TEST(JsonLines, NameWhatWasRun) {
    const Outcome run = train(
        2, "02_zero", "--stage 2 --layers 1 --seq 16 --steps 4 --lr 2e-3 --seed 7 --no-verify");
    const Json& configuration = run.summary.at("configuration");
    EXPECT_EQ(configuration.at("chapter"), "02_zero");
    EXPECT_EQ(configuration.at("layout"), Json({{"dp", 2}}));
    EXPECT_TRUE(contains(configuration.at("technique").get<std::string>(), "stage 2"));
    EXPECT_EQ(configuration.at("learning_rate"), 2e-3);
    EXPECT_EQ(configuration.at("seed"), 7);
    const Json& options = configuration.at("options");
    EXPECT_EQ(options.at("--stage"), 2);
    EXPECT_EQ(options.at("--gather-overlap"), "forward");
    EXPECT_EQ(options.at("--lr"), 2e-3);
    const Json& speed = run.summary.at("speed");
    EXPECT_DOUBLE_EQ(speed.at("tokens_per_second").get<double>(),
                     2 * speed.at("tokens_per_second_per_device").get<double>());
    EXPECT_DOUBLE_EQ(run.steps.back().at("tokens_per_second").get<double>(),
                     speed.at("tokens_per_second").get<double>());
}

TEST(JsonLines, HaveTheRowsOfTables) {
    const auto rows = [](int ranks, const std::string& chapter, const std::string& arguments) {
        TempDir dir;
        const std::string all = fmt::format("{} --json {}", arguments, dir / "out.jsonl");
        const Outcome outcome = ranks == 0 ? run(chapter, all) : run_ranks(ranks, chapter, all);
        EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
        std::istringstream lines(slurp(dir / "out.jsonl"));
        std::vector<Json> all_rows;
        Json last;
        for (std::string line; std::getline(lines, line);) {
            last = Json::parse(line, nullptr, false);
            if (last.contains("row")) all_rows.push_back(last["row"]);
        }
        EXPECT_TRUE(last.contains("summary")) << chapter << " " << arguments;
        EXPECT_EQ(last["summary"]["configuration"]["chapter"], chapter);
        return all_rows;
    };
    const std::string small = "--layers 1 --seq 16 --micro-batch 1 --peak-tflops 1 ";
    EXPECT_EQ(rows(0, "00_single_gpu", "--estimate").size(), 4u * 8);
    EXPECT_EQ(rows(0, "00_single_gpu", small + "--compare recompute").size(), 5u);
    const std::vector<Json> syncs = rows(2, "01_data_parallel", small + "--steps 3 --compare");
    ASSERT_EQ(syncs.size(), 7u);
    EXPECT_EQ(syncs[0].at("calls"), 0);      // no communication
    EXPECT_EQ(syncs[1].at("calls"), 9 + 3);  // naive: a layer's tensors, embedding, norm, head
    // A ring sends as much as an all-reduce, no more; an earlier first screen had this wrong.
    EXPECT_EQ(syncs[1].at("sent_bytes"), syncs[4].at("sent_bytes")) << syncs[1] << syncs[4];
    const std::vector<Json> stages = rows(2, "02_zero", small + "--steps 3 --compare");
    ASSERT_EQ(stages.size(), 5u);  // 0, plain, 1, 2, 3
    EXPECT_EQ(stages[0].at("sent_bytes"), stages[2].at("sent_bytes"));
    EXPECT_EQ(stages[1].at("plain"), true);
    for (const char* same : {"sent_bytes", "parameter_bytes", "gradient_bytes"})
        EXPECT_NEAR(stages[1].at(same).get<double>() / stages[2].at(same).get<double>(), 1, 1e-3);
    EXPECT_GT(stages[4].at("sent_bytes"), stages[2].at("sent_bytes"));
    const std::vector<Json> linears = rows(2, "03_tensor_parallel", small + "--steps 3 --compare");
    ASSERT_EQ(linears.size(), 4u);  // plain; without and with sequence parallelism; inputs kept
    EXPECT_EQ(linears[0].at("sent_bytes"), linears[1].at("sent_bytes"));
    const std::vector<Json> bandwidth =
        rows(2, "01_data_parallel", "--demo bandwidth --largest-mib 0.01");
    EXPECT_EQ(bandwidth.size(), 8u * 3);
    EXPECT_EQ(bandwidth.front().at("right"), true);
}

// A run that is killed leaves the lines of its finished steps.
TEST(JsonLines, AreWrittenAsTheyCome) {
    TempDir dir;
    const std::string command = fmt::format(
        "{} --layers 1 --seq 16 --micro-batch 1 --steps 1000000 --no-verify --json {} > {} & "
        "for i in $(seq 600); do "
        "    [ \"$(wc -l < {})\" -gt 3 ] && break; sleep 0.1; "
        "done 2> /dev/null; kill -KILL $!; wait $!",
        program("00_single_gpu"), dir / "out.jsonl", dir / "out.txt", dir / "out.jsonl");
    EXPECT_NE(std::system(command.c_str()), 0);
    std::istringstream lines(slurp(dir / "out.jsonl"));
    int64_t steps = 0;
    for (std::string line; std::getline(lines, line) && !lines.eof(); ++steps)
        EXPECT_EQ(Json::parse(line, nullptr, false).at("step"), steps + 1) << line;
    EXPECT_GT(steps, 3);
}

int step_lines(const std::string& text) {
    int lines = 0;
    std::istringstream in(text);
    for (std::string line; std::getline(in, line);) lines += line.starts_with("step ");
    return lines;
}

TEST(StepLines, EveryNth) {
    const std::string arguments = "--layers 1 --seq 16 --micro-batch 1 --steps 11 --no-verify ";
    EXPECT_EQ(step_lines(train("00_single_gpu", arguments).out), 11);
    const Outcome fifth = train("00_single_gpu", arguments + "--log-every 5");
    EXPECT_EQ(step_lines(fifth.out), 4) << fifth.out;  // 1, 5, 10, 11
    EXPECT_EQ(fifth.steps.size(), 11u);
}

// On a terminal the lines also stay, and fit into 80 columns.
TEST(StepLines, OnATerminal) {
    if (std::system("command -v script >/dev/null") != 0) GTEST_SKIP() << "needs script(1)";
    TempDir dir;
    const std::string command = fmt::format(
        "script -qec '{} --layers 1 --seq 16 --steps 5 --no-verify --peak-tflops 1' {} >/dev/null "
        "</dev/null",
        program("00_single_gpu"), dir / "screen");
    ASSERT_EQ(std::system(command.c_str()), 0);
    const std::string screen = slurp(dir / "screen");
    EXPECT_EQ(step_lines(screen), 5) << screen;
    EXPECT_FALSE(contains(screen, "\033[K")) << screen;
    std::istringstream lines(screen);
    for (std::string line; std::getline(lines, line);)
        EXPECT_TRUE(!line.starts_with("step ") || line.size() <= 81)
            << line;  // with the terminal's carriage return
}

TEST(Report, ShortOrFull) {
    const std::string arguments = "--layers 1 --seq 16 --steps 2 --no-verify ";
    const Outcome brief = train("00_single_gpu", arguments),
                  full = train("00_single_gpu", arguments + "--report full");
    for (const char* section : {"memory per rank", "communication", "speed"})
        EXPECT_TRUE(contains(brief.out, section)) << section;
    for (const char* section :
         {"memory anatomy", "what forward keeps", "memory during", "the activations' peak"}) {
        EXPECT_FALSE(contains(brief.out, section)) << section;
        EXPECT_TRUE(contains(full.out, section)) << section;
    }
    EXPECT_FALSE(contains(brief.out, "1 ranks") || contains(brief.out, "1 steps")) << brief.out;
}

}  // namespace
}  // namespace ultrascale::test
