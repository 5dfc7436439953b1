// Wrong input to 00_single_gpu: exit code 2, one line on stderr that says what is wrong, and no
// output file touched.
#include <sys/stat.h>

#include <cstring>

#include "refused.h"

namespace ultrascale::test {
namespace {

TEST(BadInput, Options) {
    expect_refused("--learning-rate 1", {"--learning-rate", "--help"});
    expect_refused("nano", {"nano"});
    expect_refused("--model nona", {"--model nona", "presets: nano, small", "llama-3-405b"});
    expect_refused("--steps many", {"--steps", "many"});
    expect_refused("--steps -1", {"--steps", "-1"});
    for (const char* number : {"1.5", "010", "0x10", "1e3"})
        expect_refused(fmt::format("--steps {}", number), {"--steps", number, "whole number"});
    for (const char* option : {"--load", "--data", "--json", "--model"})
        expect_one_error_line(
            run_ranks(1, "00_single_gpu", std::vector<std::string>{option, ""}, 60),
            {option, "empty"});
    expect_refused("--seq 0", {"--seq"});
    expect_refused("--seq 2000000000000", {"--seq", "more than 1099511627776"});
    expect_refused("--micro-batch 1000000000000 --seq 1000000000000", {"at most 10^15"});
    expect_refused("--grad-accum 1000000000000", {"a step of", "at most 10^7"});
    expect_refused("--micro-batch 0", {"--micro-batch"});
    expect_refused("--grad-accum 0", {"--grad-accum"});
    expect_refused("--layers 0", {"--layers"});
    expect_refused("--lr -1", {"--lr"});
    expect_refused("--lr nan", {"--lr"});
    expect_refused("--clip -1", {"--clip"});
    expect_refused("--dtype fp64", {"--dtype", "fp64", "bf16"});
    expect_refused("--recompute some", {"--recompute", "some", "selective"});
    expect_refused("--recompute full:99", {"--recompute full:99", "the model has only 8 layers"});
    expect_refused("--memory-budget 0.01",
                   {"--memory-budget 0.01", "the least", "--recompute full:"});
    expect_refused("--memory-budget 1 --recompute full", {"--memory-budget", "--recompute"});
    expect_refused("--attention fast", {"--attention", "fast", "flash"});
    expect_refused("--lr-schedule linear", {"--lr-schedule", "linear", "cosine"});
    expect_refused("--loss-chunk -1", {"--loss-chunk"});
    expect_refused("--fp32-grads", {"--fp32-grads", "--dtype fp32"});
    expect_refused("--noise-scale", {"--noise-scale", "--grad-accum 2"});
    expect_refused("--noise-scale --batch-ramp 8:1,8", {"--noise-scale", "16 in --batch-ramp"});
    expect_refused("--document-token 256", {"--document-token 256", "256"});
    expect_refused("--ignore-token 300", {"--ignore-token 300", "256"});
    expect_refused("--compare memory", {"--compare", "memory", "attention"});
    expect_refused("--copy-engines some", {"--copy-engines", "some", "off"});
    expect_refused("--temperature 0 --sample 3", {"--temperature"});
    for (const char* ramp :
         {"8:100", "x", "8:1,,8", "8:1;16", "0:1,8", "-8:1,8", "8:0,8", "8:1:2,8", "8:1,16:2",
          "8,16", "8.5:1,8", "99999999999999999999:1,8", "8:1,8x"})
        expect_refused(fmt::format("--batch-ramp {}", ramp), {"--batch-ramp", ramp});
    expect_refused("--batch-ramp 8:1,12", {"--batch-ramp", "12", "--micro-batch 8"});
}

TEST(BadInput, AbsurdSizes) {
    expect_refused("--seq 1000000000000", {"out of memory", "--micro-batch 1 --seq "});
    expect_refused("--seq 99999999999999999999999", {"--seq"});
    expect_refused("--layers 1000000000", {"num_hidden_layers = 1000000000"});
    expect_refused("--micro-batch 1000000000", {"out of memory", "--micro-batch "});
    expect_refused("--micro-batch 1099511627776 --grad-accum 1099511627776",
                   {"out of memory", "--micro-batch "});
    expect_refused("--grad-accum 9999999999999", {"--grad-accum"});
    expect_refused("--grad-accum 10000000 --ignore-token 3",
                   {"80000000 sequences", "--grad-accum"});
    expect_refused("--batch-ramp 8:9000000000000000000,8:9000000000000000000,8", {"--batch-ramp"});
    expect_refused("--batch-ramp 9000000000000000000:1,8", {"--batch-ramp"});
    expect_refused("--steps 9999999999999999999999", {"--steps"});
    TempDir dir;  // each size is in its range, but not their product
    put(dir / "config.json", config_json({{"num_hidden_layers", 100000},
                                          {"hidden_size", 10000000},
                                          {"intermediate_size", 100000000}}));
    expect_refused("--model " + dir.path(), {"parameters"});
}

TEST(BadInput, OutOfMemory) {
    expect_refused("--device-memory 0.01",
                   {"out of memory",
                    "parameters 6.26 MiB, gradients 6.26 MiB, optimizer 12.5 MiB, activations",
                    "10.2 MiB", "--model", "--layers"});
    expect_refused("--device-memory 0.03 --no-verify --micro-batch 64",
                   {"activations", "30.7 MiB", "these options would: --micro-batch 2"});
    if (!on_gpu) {  // on the CPU they do fit; on a GPU cuBLAS may need workspace, too
        EXPECT_EQ(run("00_single_gpu",
                      "--steps 2 --seq 32 --peak-tflops 1 --device-memory 0.03 --no-verify "
                      "--micro-batch 2")
                      .exit_code,
                  0);
    }
    // --verify's plain run needs memory beyond the prediction. The message has a table of what is
    // held at that moment.
    expect_refused("--device-memory 0.05 --verify --recompute full",
                   {"out of memory", "held: parameters", "--no-verify"});
}

TEST(BadInput, Data) {
    TempDir dir;
    const std::string file = dir / "tokens.txt", tokens = dir / "tokens.bin";
    expect_refused("--data " + file, {file, "No such file"});
    expect_refused("--data " + dir.path(), {dir.path(), "directory"});
    put(file, "");
    expect_refused("--data " + file, {file});
    put(file, std::string(32, 'a'));
    expect_refused("--data " + file, {file, "32 tokens", "--seq 32"});
    put(tokens, std::string(101, '\0'));
    expect_refused("--data " + tokens, {tokens, "101 bytes"});
    std::string high(200, '\0');
    high[120] = 1, high[121] = 1;  // token 60 is 257
    put(tokens, high);
    expect_refused("--data " + tokens, {tokens, "257", "60", "256"});
    std::string header(1024, '\0');
    const int32_t magic[3] = {20240520, 1, 1000};
    std::memcpy(header.data(), magic, sizeof magic);
    put(tokens, header + std::string(100, '\0'));
    expect_refused("--data " + tokens, {tokens, "1000 tokens"});
    put(file, std::string(200, 'a'));
    expect_refused("--data " + file + " --ignore-token 97", {"every target is ignored"});
}

TEST(BadInput, ValidationData) {
    TempDir dir;
    const std::string file = dir / "validation.txt";
    expect_refused("--val-every 10", {"--val-every", "--val-data"});
    expect_refused("--val-data " + file, {file, "No such file"});
    put(file, std::string(32, 'a'));
    expect_refused("--val-data " + file, {file, "32 tokens", "--seq 32"});
    put(file, std::string(33, 'a'));
    for (const char* every : {"0", "-1", "often"})
        expect_refused(fmt::format("--val-data {} --val-every {}", file, every), {"--val-every"});
    expect_refused(fmt::format("--val-data {} --ignore-token 97", file),
                   {file, "every target is ignored"});
}

// Paths where even root cannot write: under a regular file, and under /proc.
TEST(BadInput, UnwritableOutputs) {
    TempDir dir;
    put(dir / "file", "before\n");
    for (const char* option : {"--json", "--trace", "--save"})
        for (const std::string& path : {dir / "file/below", std::string("/proc/nowhere/below")})
            expect_one_error_line(
                run("00_single_gpu", fmt::format("--steps 1000000 {} {}", option, path)),
                {path});  // before the training, not after
    for (const char* option : {"--json", "--trace"})
        expect_one_error_line(
            run("00_single_gpu", fmt::format("--steps 1000000 {} {}", option, dir.path())),
            {dir.path(), "directory"});
    expect_one_error_line(
        run("00_single_gpu", fmt::format("--steps 1000000 --save {}", dir / "file")),
        {dir / "file"});
    EXPECT_EQ(files_in(dir.path()), (std::map<std::string, std::string>{{"file", "before\n"}}));
    ASSERT_EQ(mkfifo((dir / "pipe").c_str(), 0600), 0);
    expect_one_error_line(
        run("00_single_gpu", fmt::format("--steps 1000000 --json {}", dir / "pipe")),
        {dir / "pipe", "regular file"});
    expect_one_error_line(
        run("00_single_gpu", fmt::format("--steps 1000000 --json {0} --trace {0}", dir / "new")),
        {"--json", "--trace", dir / "new"});
}

TEST(Outputs, ReplaceWhatALinkPointsTo) {
    TempDir dir;
    put(dir / "file", "before\n");
    fs::create_symlink(dir / "file", dir / "link");
    train("00_single_gpu",
          fmt::format("--layers 1 --seq 16 --steps 1 --no-verify --trace {}", dir / "link"));
    EXPECT_TRUE(fs::is_symlink(dir / "link"));
    EXPECT_TRUE(contains(slurp(dir / "file"), "traceEvents"));
}

TEST(Outputs, ThatCannotBePrinted) {
    TempDir dir;
    const std::string command =
        fmt::format("{} --layers 1 --seq 16 --steps 1 --no-verify > /dev/full 2> {}",
                    program("00_single_gpu"), dir / "err");
    EXPECT_EQ(WEXITSTATUS(std::system(command.c_str())), 2);
    EXPECT_EQ(slurp(dir / "err"),
              "error: the standard output cannot be written: No space left on device\n");
}

TEST(BadInput, TwoRanks) {
    expect_one_error_line(run_ranks(2, "00_single_gpu", "--steps 1", 60), {"one rank"});
    expect_one_error_line(run_ranks(2, "00_single_gpu", "--modle nano", 60), {"--modle"});
}

}  // namespace
}  // namespace ultrascale::test
