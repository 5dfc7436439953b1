// Wrong input to 01_data_parallel and 02_zero on two ranks: exit code 2 within seconds, one line on
// stderr that says what is wrong, no output file touched, no process left.
#include "compare_runs.h"
#include "processes.h"
#include "refused.h"

namespace ultrascale::test {
namespace {

const std::string data_parallel = "01_data_parallel", zero = "02_zero";

class ParallelBadInput : public testing::Test {
protected:
    void expect(const std::string& chapter, const std::string& arguments,
                const std::vector<std::string>& telling) {
        const auto begin = std::chrono::steady_clock::now();
        expect_ranks_refuse(2, chapter, "--steps 2 --seq 32 " + arguments, telling);
        EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(),
                  30)
            << arguments;
    }
    void expect_both(const std::string& arguments, const std::vector<std::string>& telling) {
        for (const std::string& chapter : {data_parallel, zero})
            expect(chapter, arguments, telling);
    }
    ProcessMark mark_;
};

TEST_F(ParallelBadInput, OptionsOfTheTechniques) {
    expect(data_parallel, "--bucket-mb 0", {"--bucket-mb", "0"});
    expect(data_parallel, "--bucket-mb nan", {"--bucket-mb", "nan"});
    expect(data_parallel, "--sync all", {"--sync", "all", "naive", "bucket"});
    expect(data_parallel, "--sync ring --ring-directions three", {"--ring-directions", "three"});
    expect(data_parallel, "--stage 1", {"--stage"});  // the next chapter's
    expect(zero, "--stage 4", {"--stage", "4"});
    expect(zero, "--stage -1", {"--stage", "-1"});
    expect(zero, "--offload parameters", {"--offload", "parameters"});
    expect(zero, "--stage 0 --offload optimizer", {"--offload optimizer", "--stage 1, 2 or 3"});
    expect(zero, "--prefetch -1", {"--prefetch", "-1"});
    expect(zero, "--gather-overlap backward", {"--gather-overlap", "backward", "forward"});
    expect(zero, "--no-sync maybe", {"--no-sync", "maybe"});
}

TEST_F(ParallelBadInput, WhatDoesNotTrainWritesNothing) {
    expect_both("--compare", {"--compare", "--save", "excludes"});
    expect(data_parallel, "--demo collectives", {"--demo", "--save", "excludes"});
    TempDir dir;
    expect_one_error_line(run_ranks(2, zero, fmt::format("--compare --save {}", dir / "new"), 60),
                          {"--compare", "--save"});
    EXPECT_FALSE(fs::exists(dir / "new"));
    Outcome outcome = run_ranks(2, zero, "--compare --device-memory 0.03", 60);
    expect_one_error_line(outcome, {"out of memory", "stage 0", "--micro-batch"});
    EXPECT_EQ(outcome.out, "");
    outcome =
        run_ranks(2, data_parallel, "--demo bandwidth --largest-mib 100 --device-memory 0.2", 60);
    expect_one_error_line(outcome, {"--largest-mib 100", "do not fit"});
    EXPECT_EQ(outcome.out, "");
    expect_one_error_line(run_ranks(2, data_parallel, "--compare --grad-accum 2", 60),
                          {"--compare", "--grad-accum"});
    expect_one_error_line(
        run_ranks(2, zero, "--compare --micro-batch 1 --grad-accum 1099511627776", 60),
        {"sequences", "--grad-accum"});
}

TEST_F(ParallelBadInput, Sizes) {
    expect_both("--micro-batch 0", {"--micro-batch"});
    expect_both("--micro-batch 4000000", {"out of memory", "activations"});
    expect_both("--grad-accum 5000000", {"80000000 sequences", "--grad-accum"});
    expect_both("--fp32-grads", {"--fp32-grads", "--dtype fp32"});
}

TEST_F(ParallelBadInput, Files) {
    TempDir dir;
    for (const std::string& missing : {dir / "nothing.bin", dir / "nothing"})
        expect_both("--data " + missing, {missing, "No such file"});
    expect_both("--load " + dir.path(), {"config.json", "No such file"});
    expect_both("--model nona", {"--model nona", "presets"});
    put(dir / "file", "before\n");
    for (const std::string& chapter : {data_parallel, zero})
        expect_one_error_line(
            run_ranks(2, chapter, fmt::format("--steps 1000000 --save {}", dir / "file"), 60),
            {dir / "file"});
    EXPECT_EQ(slurp(dir / "file"), "before\n");
}

// Each rank needs the predicted memory, and the message says how much.
TEST_F(ParallelBadInput, OutOfMemory) {
    expect(data_parallel, "--device-memory 0.01",
           {"out of memory",
            "parameters 6.26 MiB, gradients 6.26 MiB, optimizer 12.5 MiB, activations"});
    expect(zero, "--stage 0 --device-memory 0.01",
           {"out of memory", "parameters 6.26 MiB, gradients 6.26 MiB, optimizer 12.5 MiB",
            "--stage 3"});
    expect(zero, "--stage 1 --device-memory 0.01",
           {"out of memory", "parameters 6.26 MiB, gradients 6.26 MiB, optimizer 6.26 MiB"});
    expect(zero, "--stage 3 --device-memory 0.01",
           {"out of memory", "parameters 3.13 MiB, gradients 3.13 MiB, optimizer 6.26 MiB"});
    expect(zero, "--stage 3 --recompute full --micro-batch 1 --no-verify --device-memory 0.01",
           {"any of: more ranks\n"});
    // The message's advice leads to a run that fits, including the weights and gradients that
    // diloco and --no-sync off hold besides the model's.
    for (const char* way : {"--sync diloco", "--no-sync off --grad-accum 2"}) {
        const std::string arguments =
            fmt::format("--steps 2 --seq 32 --peak-tflops 1 --no-verify {} --device-memory", way);
        Outcome refused =
            run_ranks(2, data_parallel, fmt::format("{} 0.06 --micro-batch 64", arguments), 60);
        expect_one_error_line(refused, {"these options would: --micro-batch",
                                        way[2] == 's' ? "another --sync" : "--no-sync on"});
        const std::string fits = refused.err.substr(refused.err.find("--micro-batch"));
        if (!on_gpu) {
            EXPECT_EQ(run_ranks(2, data_parallel,
                                fmt::format("{} 0.06 {}", arguments,
                                            fits.substr(0, fits.find_first_of(",;"))))
                          .exit_code,
                      0);
        }
    }
    // The limit is one byte less than rank 0 needs. The other ranks need less, as their shards end
    // in padding; still there is one message for all ranks.
    const std::string odd = "--stage 1 --seq 16 --micro-batch 1 --layers 1 --steps 1 --no-verify";
    const double needed =
        train(7, zero, odd).summary.at("memory").at("peak").at("predicted").get<double>();
    expect_one_error_line(
        run_ranks(7, zero,
                  fmt::format("{} --device-memory {}", odd, (needed - 1) / double(1 << 30)), 60),
        {"out of memory: predicted"});
    // --verify's plain run needs memory beyond the prediction, on rank 0 only. MPI's launcher adds
    // its own line.
    const Outcome outcome = run_ranks(2, zero,
                                      "--steps 2 --seq 32 --peak-tflops 1 --stage 3 --micro-batch "
                                      "1 --recompute full --verify --device-memory 0.02",
                                      60);
    EXPECT_EQ(outcome.exit_code, 2) << outcome.err;
    EXPECT_TRUE(outcome.err.starts_with("error: rank 0: out of memory")) << outcome.err;
    EXPECT_EQ(outcome.err.rfind("error: "), 0u) << outcome.err;
    EXPECT_TRUE(contains(outcome.err, "held: parameters") && contains(outcome.err, "--no-verify"))
        << outcome.err;
}

class ParallelBadCheckpoint : public ParallelBadInput {
protected:
    void SetUp() override {
        for (const char* file : {"config.json", "model.safetensors"})
            fs::copy(reference("gqa_untied") + "/" + file, dir.path());
    }
    // Tries every kind of sharding, since each loads different pieces.
    void expect_all(const std::vector<std::string>& telling, const std::string& others = "") {
        const std::string arguments = fmt::format("--load {} --data {}/tokens.bin {}", dir.path(),
                                                  reference("gqa_untied"), others);
        expect(data_parallel, arguments, telling);
        for (int stage : {0, 1, 2, 3})
            expect(zero, fmt::format("--stage {} {}", stage, arguments), telling);
    }
    TempDir dir;
};

TEST_F(ParallelBadCheckpoint, WeightsOfAnotherModel) {
    Json config = Json::parse(slurp(dir / "config.json"));
    config["intermediate_size"] = 96;
    put(dir / "config.json", config.dump());
    expect_all({"model.safetensors", "mlp.gate_proj.weight", "(88, 48)", "(96, 48)"});
}

TEST_F(ParallelBadCheckpoint, WeightsThatAreMissingOrCutOff) {
    const std::string weights = slurp(dir / "model.safetensors");
    put(dir / "model.safetensors", weights.substr(0, weights.size() - 1));
    expect_all({"model.safetensors"});
    fs::remove(dir / "model.safetensors");
    expect_all({"model.safetensors"});
}

TEST_F(ParallelBadCheckpoint, TrainingStateOfAnotherModel) {
    const SmallModel other;
    train(2, zero,
          fmt::format("--model {} --seq 40 --micro-batch 1 --steps 1 --no-verify --save {}",
                      other.path(), dir / "other"));
    for (const char* file : {"optimizer.safetensors", "trainer_state.json"})
        fs::copy(dir / "other/" + file, dir.path());
    expect_all({"optimizer.safetensors", "shape"});
}

TEST_F(ParallelBadCheckpoint, TrainingStateOfAnotherKind) {
    const std::string load =
        fmt::format("--load {} --data {}/tokens.bin", dir.path(), reference("gqa_untied"));
    train(2, zero,
          fmt::format("{} --seq 40 --micro-batch 1 --steps 1 --no-verify --save {}", load,
                      dir.path()));
    expect_all({"--dtype bf16", "goes on with --dtype fp32"}, "--dtype bf16");
    expect_all({"--shuffle", "goes on without it"}, "--shuffle");
    // A state that was written before states recorded the options.
    Json state = Json::parse(slurp(dir / "trainer_state.json"));
    state.erase("options");
    put(dir / "trainer_state.json", state.dump());
    expect_all({"optimizer.safetensors", "no master weights"}, "--dtype bf16");
    expect_all({"in order", "without --shuffle"}, "--shuffle");
    put(dir / "trainer_state.json", "{\"step\": 1}");
    expect_all({"trainer_state.json", "next_sample"});
    fs::remove(dir / "optimizer.safetensors");
    expect_all({"trainer_state.json"});
}

}  // namespace
}  // namespace ultrascale::test
