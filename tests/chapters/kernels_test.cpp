// 07_kernels: every kernel is correct at every size, the tables show the lesson of each rung, and a
// student's kernel is ranked.
#include <algorithm>
#include <map>
#include <sstream>

#include "refused.h"

namespace ultrascale::test {
namespace {

Outcome kernels(const std::string& arguments) { return run("07_kernels", arguments); }

// Returns --json's rows by kernel, and by size if the kernel has several.
std::map<std::string, Json> rows_of(const std::string& arguments) {
    TempDir dir;
    const Outcome run = kernels(arguments + " --json " + (dir / "rows.json"));
    EXPECT_EQ(run.exit_code, 0) << run.out << run.err;
    std::map<std::string, Json> rows;
    std::istringstream lines(slurp(dir / "rows.json"));
    for (std::string line; std::getline(lines, line);) {
        const Json object = Json::parse(line);
        if (!object.contains("row")) continue;
        const Json& row = object["row"];
        EXPECT_EQ(row.at("wrong"), "") << row;
        const std::string name = row.at("kernel").get<std::string>();
        rows[rows.contains(name) ? fmt::format("{} {}", name, row.at("size").dump()) : name] = row;
    }
    return rows;
}

class KernelFamilies : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Family, KernelFamilies, testing::Range(1, 7),
                         testing::PrintToStringParamName());

TEST_P(KernelFamilies, EqualFloat64) {
    // On the CPU this also checks for races, and prints every table.
    const Outcome run =
        kernels(fmt::format("{} --family {}", on_gpu ? "--check" : "--microscope", GetParam()));
    EXPECT_EQ(run.exit_code, 0) << run.out << run.err;
    if (GetParam() == 6 && contains(run.out, "skipped: it needs Hopper"))
        EXPECT_TRUE(contains(run.out, "nothing was checked")) << run.out;
    else
        EXPECT_TRUE(contains(run.out, "all right: ") && !contains(run.out, "all right: 0 "))
            << run.out;
}

TEST(KernelsMicroscope, ShowsWhatEachRungTeaches) {
    if (on_gpu) GTEST_SKIP() << "the microscope is for the CPU";
    const std::map<std::string, Json> rows = rows_of("--family 2");
    const auto mean = [&](const std::string& kernel, const std::string& sum,
                          const std::string& of) {
        return rows.at(kernel).at(sum).get<double>() / rows.at(kernel).at(of).get<double>();
    };
    const auto sectors = [&](const std::string& kernel, const std::string& access) {
        return mean(kernel, access + "_sectors", access + "_requests");
    };
    EXPECT_EQ(sectors("copy_strided", "load"), 4);
    EXPECT_EQ(sectors("copy_strided [8192,2]", "load"), 8);
    EXPECT_EQ(sectors("copy_strided [8192,8]", "load"), 32);
    EXPECT_EQ(sectors("transpose_naive", "load"), 4);
    EXPECT_EQ(sectors("transpose_naive", "store"), 32);
    for (const char* kernel : {"transpose_shared", "transpose_padded"})
        EXPECT_EQ(sectors(kernel, "store"), 4);
    EXPECT_EQ(mean("transpose_shared", "shared_load_wavefronts", "shared_load_requests"), 32);
    EXPECT_EQ(mean("transpose_padded", "shared_load_wavefronts", "shared_load_requests"), 1);
    EXPECT_EQ(sectors("transpose_float4", "load"), 16);
    EXPECT_EQ(rows.at("transpose_float4").at("traffic"), 1);
    EXPECT_EQ(rows.at("transpose_shared").at("traffic"), 1);
    EXPECT_EQ(rows.at("transpose_padded").at("cost"), 1);
    EXPECT_GT(rows.at("transpose_shared").at("cost").get<double>(), 2);
    EXPECT_EQ(rows.at("branches_divergent").at("active_threads"), 16);
    EXPECT_EQ(rows.at("branches_predicated").at("active_threads"), 32);
    // ELU as PyTorch runs it: 42 bytes an element, of which 8 are needed.
    const std::map<std::string, Json> elu = rows_of("--kernel elu_unfused elu");
    EXPECT_EQ(elu.at("elu_unfused").at("traffic"), 42 / 8.0);
    EXPECT_EQ(elu.at("elu").at("traffic"), 1);
    const Outcome lines = kernels("--kernel transpose_naive --microscope");
    EXPECT_TRUE(contains(lines.out, "2_transpose_naive.cu:") &&
                contains(lines.out, "out[column * rows + row] = in[row"))
        << lines.out;
}

// Estimates from the counts: the slow unit of a product, and attention's bytes.
TEST(KernelsEstimates, StallsAndTraffic) {
    if (on_gpu) GTEST_SKIP() << "they need the microscope";
    const Outcome stalls = kernels("--kernel product_shared --kernel product_8x8 --stalls");
    EXPECT_EQ(stalls.exit_code, 0) << stalls.err;
    // A multiply-add takes a quarter of a clock, but two turns of shared memory; loading the tiles
    // comes on top.
    for (const char* line : {"product_shared                0.48      0.25     2.06     0.08      "
                             "12.1 %       8.1  mio_",
                             "product_8x8                   3.76      0.25     0.27     0.03      "
                             "94.1 %      63.1  mio_"})
        EXPECT_TRUE(contains(stalls.out, line)) << stalls.out;
    const Outcome traffic = kernels("--traffic");
    EXPECT_EQ(traffic.exit_code, 0) << traffic.err;
    for (const char* line :
         {"824.6  40.27    >= 25.9   >= 8.4  66.6  40.3  41.7",
          "962.1   4.43     >= 3.1   >= 1.0  75.2   4.4   7.3",
          "0.6963      0.7178        -  1.031 times", "0.1638      0.1638        -  1.000 times"})
        EXPECT_TRUE(contains(traffic.out, line)) << traffic.out;
}

TEST(KernelsMine, IsCheckedAndRanked) {
    const Outcome run = kernels("--kernel mine");
    EXPECT_EQ(run.exit_code, 0) << run.out << run.err;
    const std::string why =
        on_gpu ? ""
               : "4 of 5 by cost, level with transpose_naive, behind transpose_padded:\n"
                 "        it moves 4.50 times the least instead of 1.00\n";
    EXPECT_TRUE(contains(run.out, "mine: number " + why)) << run.out;
    EXPECT_FALSE(contains(kernels("--list").out, " mine"));
}

TEST(KernelsOutput, FitsAProjector) {
    for (const char* mode :
         {"--list", "--primer", "--check --family 3", "--kernel mine",
          "--kernel product_two_consumers product_fp8_blocks flash_attention_3 copy_strided"}) {
        // On GPUs these modes measure every rung, and --check runs the slowest ones at full size.
        // That takes minutes, and a dozen tests share the GPU. PrimerAndSizes prints one family's.
        if (on_gpu && mode != std::string("--list")) continue;
        const Outcome run = kernels(mode);
        EXPECT_EQ(run.exit_code, 0) << run.err;
    }
}

TEST(KernelsOutput, PrimerAndSizes) {
    const Outcome primer = kernels("--primer --family 2");
    EXPECT_EQ(primer.exit_code, 0) << primer.err;
    for (const char* part : {"SMs", "warps", "shared memory", "L2", "transpose_padded", "limit"})
        EXPECT_TRUE(contains(primer.out, part)) << part;
    const Outcome wide = kernels("--primer --kernel cross_entropy_fused --size 2,10000");
    EXPECT_TRUE(on_gpu || contains(wide.out, " 20000 "))
        << wide.out;  // bytes: the row is in shared memory
    const Outcome sized = kernels("--kernel transpose_naive --size 40,70");
    EXPECT_EQ(sized.exit_code, 0) << sized.err;
    EXPECT_TRUE(contains(sized.out, "rows 40, columns 70")) << sized.out;
}

TEST(KernelsBadInput, IsRefusedInOneLine) {
    for (const auto& [arguments, told] : std::vector<std::pair<std::string, std::string>>{
             {"--kernel vektor_add", "no such kernel"},
             {"--family 7", "--family"},
             {"--family 1 --kernel transpose_naive", "--family has no effect: --kernel names"},
             {"--size 3", "--size is for one problem"},
             {"--kernel transpose_naive --size 3", "transpose has 2 dimensions: rows,columns"},
             {"--kernel transpose_naive --size 3,0", "--size"},
             {"--kernel flash_attention --size 1,8,1,32", "D is 64 or 128"},
             {"--primer --json x.json", "--json has no effect: --primer"},
             {"--primer --check", "--check has no effect: --primer"},
             {"--list --json x.json", "--json has no effect: --list"},
             {"--list --size 3", "--size has no effect: --list"},
             {"--list --seed 3", "--seed has no effect: --list"},
             {"--primer --seed 3", "--seed has no effect: --primer"},
             {"--list --primer", "--primer has no effect: --list"},
             {"--check --microscope", "--microscope has no effect: --check"},
             {"--check --stalls", "--stalls has no effect: --check"},
             {"--traffic --family 5", "--traffic"},
             {"--kernel elu --json /nowhere/x.json", "/nowhere"},
             {"--steps 3", "--steps"},
         }) {
        SCOPED_TRACE(arguments);
        expect_one_error_line(kernels(arguments), {told});
    }
    for (const char* option : {"--microscope", "--stalls"})
        if (on_gpu) expect_one_error_line(kernels(option), {"BACKEND=cpu"});
    if (!on_gpu) expect_one_error_line(kernels("--family 1 --stalls"), {"--family 3"});
}

}  // namespace
}  // namespace ultrascale::test
