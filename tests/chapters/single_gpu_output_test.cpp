// The output that 00_single_gpu prints and writes on request.
#include <cmath>
#include <map>
#include <regex>
#include <set>

#include "run_program.h"

namespace ultrascale::test {
namespace {

TEST(SingleGpuOutput, HelpListsTheOptions) {
    const Outcome outcome = run("00_single_gpu", "--help");
    EXPECT_EQ(outcome.exit_code, 0);
    EXPECT_EQ(outcome.err, "");
    for (const char* option : {"--model",        "--layers",       "--load",
                               "--save",         "--data",         "--steps",
                               "--seq",          "--micro-batch",  "--grad-accum",
                               "--lr ",          "--lr-schedule",  "--lr-steps",
                               "--warmup",       "--weight-decay", "--clip",
                               "--seed",         "--shuffle",      "--dtype",
                               "--fp32-grads",   "--recompute",    "--no-verify",
                               "--explain",      "--profile",      "--json",
                               "--trace",        "--peak-tflops",  "--device-memory",
                               "--attention",    "--loss-chunk",   "--document-token",
                               "--ignore-token", "--naive-mean",   "--batch-ramp",
                               "--noise-scale",  "--estimate",     "--compare",
                               "--sample",       "--prompt",       "--temperature",
                               "--val-data",     "--val-every"})
        EXPECT_TRUE(contains(outcome.out, option)) << option;
}

TEST(SingleGpuOutput, ReportHasItsSections) {
    const Outcome outcome = train("00_single_gpu", "--layers 2 --seq 32 --steps 5 --report full");
    for (const char* text :
         {"model   0.", "batch   8 sequences x 32 tokens = 256 a step", "step     5",
          "verify:", "memory per rank", "predicted", "measured", "memory anatomy",
          "bytes a parameter", "memory during the first 4 steps", "tokens/s", "TFLOP/s", "MFU",
          "HFU", "what forward keeps", "the activations' peak"})
        EXPECT_TRUE(contains(outcome.out, text)) << text;
    ASSERT_EQ(outcome.steps.size(), 5u);
    for (const Json& step : outcome.steps)
        for (const char* field :
             {"step", "loss", "grad_norm", "lr", "step_ms", "tokens_per_second"})
            EXPECT_TRUE(std::isfinite(step.at(field).get<double>())) << field;
    for (const char* section : {"configuration", "verify", "memory", "communication", "speed"})
        EXPECT_TRUE(outcome.summary.contains(section)) << section;
    EXPECT_LT(outcome.of("loss").back(), outcome.of("loss").front());
    EXPECT_GE(outcome.summary["speed"]["hfu"].get<double>(),
              outcome.summary["speed"]["mfu"].get<double>());
}

// A model of 405 billion parameters under a limit of 1 MiB: nothing is allocated.
TEST(SingleGpuEstimate, AllocatesNothing) {
    const Outcome outcome = run("00_single_gpu",
                                "--estimate --model llama-3-405b --dtype bf16 --fp32-grads "
                                "--micro-batch 1 --device-memory 0.001");
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_TRUE(contains(outcome.out, "405853.389 M parameters"));
    for (const char* row : {"parameters +756.0 GiB", "gradients +1.48 TiB", "optimizer +4.43 TiB"})
        EXPECT_TRUE(std::regex_search(outcome.out, std::regex(row))) << outcome.out;
    for (const char* seq : {"1024", "2048", "4096", "8192", "16384"})
        EXPECT_TRUE(std::regex_search(outcome.out, std::regex(fmt::format("\n +{} ", seq)))) << seq;
}

TEST(SingleGpuEstimate, ReadsPresetsAndConfigs) {
    const Outcome preset = run("00_single_gpu", "--estimate --model smollm-135m");
    EXPECT_TRUE(contains(preset.out, "134.515 M parameters")) << preset.out << preset.err;
    TempDir dir;  // a config.json alone, without weights
    put(dir / "config.json", config_json());
    for (const char* option : {"--model", "--load"}) {
        const Outcome outcome =
            run("00_single_gpu", fmt::format("--estimate {} {}", option, dir.path()));
        EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
        EXPECT_TRUE(contains(outcome.out, "0.062 M parameters")) << outcome.out;
    }
}

TEST(SingleGpuSample, PrintsThatManyBytes) {
    for (int count : {1, 37}) {
        const Outcome outcome =
            run("00_single_gpu", fmt::format("--layers 1 --seq 16 --steps 1 --no-verify "
                                             "--peak-tflops 1 --prompt Once --sample {}",
                                             count));
        EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
        const size_t begin = outcome.out.find("sample at temperature 0.8\n  Once");
        ASSERT_NE(begin, std::string::npos) << outcome.out;
        EXPECT_EQ(outcome.out.size() - begin,
                  std::string("sample at temperature 0.8\n  Once\n").size() + size_t(count));
    }
}

TEST(SingleGpuExplain, PrintsOneStepsEventsInOrder) {
    for (const char* recompute : {"none", "full"}) {
        const Outcome outcome = train(
            "00_single_gpu", fmt::format("--layers 2 --seq 16 --steps 2 --no-verify --micro-batch "
                                         "2 --grad-accum 2 --explain --recompute {}",
                                         recompute));
        std::vector<std::string> events;
        const std::regex numbered("^ *([0-9]+)  +(.*)$");
        std::istringstream lines(outcome.out);
        std::smatch match;
        for (std::string line; std::getline(lines, line);)
            if (std::regex_match(line, match, numbered) &&
                match[1] == std::to_string(events.size() + 1))
                events.push_back(match[2]);
        std::vector<std::string> passes;
        std::map<std::string, int> complete;
        for (const std::string& event : events) {
            if (event.starts_with("gradient complete: "))
                ++complete[event.substr(19)];
            else
                passes.push_back(event);
        }
        std::vector<std::string> expected = {"gradients begin anew"};
        for (int m = 0; m < 2; ++m) {
            for (const char* unit : {"embedding", "layers.0", "layers.1", "head"})
                for (const char* when : {"before", "after"})
                    expected.push_back(
                        fmt::format("{} forward of {} (micro-batch {})", when, unit, m));
            for (const char* unit : {"head", "layers.1", "layers.0", "embedding"})
                for (const char* when : {"before", "after"})
                    expected.push_back(
                        fmt::format("{} backward of {} (micro-batch {})", when, unit, m));
        }
        expected.push_back("global gradient norm, clip, AdamW");
        EXPECT_EQ(passes, expected) << outcome.out;
        EXPECT_EQ(complete.size(), 2u * 9 + 3);
        for (const auto& [name, times] : complete)
            EXPECT_EQ(times, 1) << name;  // in the last micro-batch
    }
}

TEST(SingleGpuTrace, IsWhatPerfettoReads) {
    TempDir dir;
    const Outcome outcome = train(
        "00_single_gpu",
        fmt::format("--layers 2 --seq 16 --steps 3 --no-verify --trace {}", dir / "trace.json"));
    const Json trace = Json::parse(slurp(dir / "trace.json"), nullptr, false);
    ASSERT_TRUE(trace.is_object() && trace.contains("traceEvents"));
    std::set<std::string> lanes, names, counters;
    std::map<int, int> phases;
    double optimizer_before = -1, optimizer_after = -1;
    for (const Json& event : trace["traceEvents"]) {
        const std::string kind = event.at("ph");
        if (kind == "M" && event.at("name") == "thread_name")
            lanes.insert(event.at("args").at("name").get<std::string>());
        if (kind == "X") {
            names.insert(event.at("args").at("operation").get<std::string>());
            EXPECT_GE(event.at("dur").get<double>(), 0);
            EXPECT_GE(event.at("ts").get<double>(), 0);
        }
        if (kind == "C") {
            for (const auto& [category, bytes] : event.at("args").items()) {
                counters.insert(category);
                EXPECT_GE(bytes.get<int64_t>(), 0);
            }
            optimizer_after = event.at("args").at("optimizer").get<double>();
            if (optimizer_before < 0) optimizer_before = optimizer_after;
        }
    }
    EXPECT_TRUE(lanes.count("compute") && lanes.count("phase"));
    for (const char* name : {"forward", "backward", "update", "matmul", "attention_forward",
                             "attention_backward", "adamw", "cross_entropy"})
        EXPECT_TRUE(names.count(name)) << name;
    EXPECT_EQ(counters,
              (std::set<std::string>{"parameters", "gradients", "optimizer", "activations",
                                     "communication", "workspace", "host", "checkpoint"}));
    EXPECT_EQ(optimizer_before, 0);  // the first step's update allocates the states
    EXPECT_EQ(optimizer_after,
              outcome.summary.at("memory").at("optimizer").at("measured").get<double>());
}

TEST(SingleGpuProfile, CountsCalls) {
    const Outcome outcome = train(
        "00_single_gpu", "--layers 2 --seq 16 --steps 3 --micro-batch 2 --no-verify --profile");
    // A linear has 3 products (forward, dX, dW), and there are 4 linears in each of 2 layers, and
    // the head. Each layer has two norms, and the model one more.
    EXPECT_TRUE(std::regex_search(outcome.out, std::regex("\n +matmul +27.0 "))) << outcome.out;
    EXPECT_TRUE(std::regex_search(outcome.out, std::regex("\n +attention_backward +2.0 ")));
    EXPECT_TRUE(std::regex_search(outcome.out, std::regex("\n +rmsnorm_forward +5.0 ")));
    for (const char* column : {"operation", "calls/step", "ms/step", "GFLOP/s", "GB/s"})
        EXPECT_TRUE(contains(outcome.out, column)) << column;
}

TEST(SingleGpuDemo, PrintsItsTables) {
    const auto prints = [](const std::string& arguments, std::initializer_list<const char*> texts) {
        const Outcome outcome = run("00_single_gpu", arguments);
        EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
        for (const char* text : texts)
            EXPECT_TRUE(contains(outcome.out, text)) << text << " in " << outcome.out;
    };
    prints("--demo parameters", {"12 h^2 + 13 h", "174.579 B", "6480.0", "8100.0", "405.853 B"});
    prints("--demo activations", {"s b h (34 + 5 a s / h)", "114.0 s b h  70.2 %", "2.7 %"});
    prints("--demo scales --model llama-3-8b --micro-batch 1 --dtype bf16",
           {"16 h^2 L           8.590 B", "6.980 B", "8.030 B   15.0 GiB", "672.0 MiB", "+13.4 %"});
    prints("--demo scales", {"2 N in fp32             3.281 M   12.5 MiB"});
    prints("--demo batch", {"1024 samples", "128 GPUs:     4 each", "4700.0", "86.5 %"});
    prints("--demo batch --batch-ramp 4M:40M,8M --micro-batch 2 --seq 100",
           {"4.00 M        40000           10 ", "8.00 M        80000 "});
    prints("--demo latent", {"576 numbers", "28.2 %"});
    prints("--demo memory --model llama-3-8b --dtype bf16 --settings dp=8,zero=3,recompute=2",
           {"N = copied + with_experts * experts = 8030261248 parameters", "2.36 GiB",
            "in_flight = pp == 1 ? 1"});
    prints("--demo memory --settings dp=2;tp=3", {"at most", "not split"});
    prints("--demo launches", {"launched", "events", "waiting", "512"});
    prints("--demo failures",
           {"one in 3.09 h", "5.8 years", "5.68 TB", "Young's T", "7.65     7.37"});
    const Outcome refused = run("00_single_gpu", "--demo batch --json x.jsonl");
    EXPECT_EQ(refused.exit_code, 2);
    EXPECT_TRUE(contains(refused.err, "no figures")) << refused.err;
    const Outcome no_heads = run("00_single_gpu", "--demo memory --settings tp=3");
    EXPECT_EQ(no_heads.exit_code, 2);
    EXPECT_TRUE(contains(no_heads.err, "a head is not split")) << no_heads.err;
}

// The first step has no optimizer states until its update, so its peak is lower.
TEST(SingleGpuFirstSteps, TheSecondIsHigher) {
    const Outcome outcome =
        train("00_single_gpu", "--layers 2 --seq 64 --steps 3 --no-verify --report full");
    const Json& steps = outcome.summary.at("first_steps");
    EXPECT_LT(steps.at("step_1_bytes").get<double>(), steps.at("step_2_bytes").get<double>());
    EXPECT_EQ(steps.at("step_2_bytes"), steps.at("step_3_bytes"));
    EXPECT_TRUE(contains(outcome.out, "only in step 2")) << outcome.out;
}

TEST(SingleGpuNoiseScale, Prints) {
    const Outcome outcome = train(
        "00_single_gpu",
        "--layers 1 --seq 16 --steps 4 --no-verify --micro-batch 2 --grad-accum 4 --noise-scale");
    EXPECT_TRUE(contains(
        outcome.out,
        "gradient noise scale from each step's first 2 sequences and its whole batch, over 4 "
        "steps:"));
    EXPECT_TRUE(contains(outcome.out, "critical batch size about"));
    EXPECT_TRUE(std::isfinite(outcome.summary.at("noise_scale").at("sequences").get<double>()));
}

TEST(SingleGpuCompare, RecomputationLeavesEveryBit) {
    const Outcome outcome = run(
        "00_single_gpu", "--layers 2 --seq 24 --micro-batch 2 --peak-tflops 1 --compare recompute");
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err << outcome.out;
    EXPECT_FALSE(contains(outcome.out, "DIFFERS"));
    for (const char* row : {"T x T, none", "T x T, selective", "T x T, full", "tiles, none",
                            "tiles, full", "same bits"})
        EXPECT_TRUE(contains(outcome.out, row)) << row;
}

}  // namespace
}  // namespace ultrascale::test
