// The pictures of 03_tensor_parallel and 07_kernels (--svg) show the sizes of the runs.
#include <regex>
#include <set>

#include "refused.h"
#include "tests/picture_checks.h"

namespace ultrascale::test {
namespace {

std::vector<Drawn> picture_of(const std::string& path) {
    const std::string svg = slurp(path);
    EXPECT_FALSE(svg.empty()) << path;
    const std::vector<Drawn> all = read_picture(svg);
    expect_readable(all);
    return all;
}

// Finds the one rectangle whose hint begins with `begin`, and returns the rest of the hint.
std::string hint(const std::vector<Drawn>& all, const std::string& begin) {
    std::vector<std::string> found;
    for (const Drawn& d : all)
        if (d.name == "rect" && d.hint.starts_with(begin))
            found.push_back(d.hint.substr(begin.size()));
    EXPECT_EQ(found.size(), 1u) << begin;
    return found.empty() ? "" : found[0];
}

// A layer on two ranks, with preset nano's L 8, h 128, H 8, K 4, D 16, F 384.
class BlockPicture : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(SequenceParallel, BlockPicture, testing::Bool(),
                         testing::PrintToStringParamName());

TEST_P(BlockPicture, HasTheShapesAndBytesOfTheRun) {
    const bool sp = GetParam();
    TempDir dir;
    const Outcome run =
        train(2, "03_tensor_parallel",
              fmt::format("--steps 1 --no-verify --layers 2 --seq 64 --micro-batch 3 {}--svg {}",
                          sp ? "--sequence-parallel " : "", dir.path()));
    const std::vector<Drawn> all = picture_of(dir / "block.svg");
    const Json configuration = run.summary.at("configuration");
    const int64_t tp = configuration.at("layout").at("tp");
    EXPECT_EQ(tp, 2);
    const int64_t tokens =
        configuration.at("micro_batch").get<int64_t>() * configuration.at("seq").get<int64_t>();
    const auto shape = [](int64_t rows, int64_t columns) {
        return fmt::format("({}, {})", rows, columns);
    };
    const std::string outside = shape(sp ? tokens / tp : tokens, 128);
    EXPECT_EQ(hint(all, "self_attn.q_proj, norm's output: "), outside);
    EXPECT_EQ(hint(all, "self_attn.q_proj, output: "), shape(tokens, (8 + 4 + 4) * 16 / tp));
    EXPECT_EQ(hint(all, "self_attn.o_proj, input: "), shape(tokens, 8 * 16 / tp));
    EXPECT_EQ(hint(all, "self_attn.o_proj, partial sum: "), shape(tokens, 128));
    EXPECT_EQ(hint(all, "self_attn.o_proj, output + residual: "), outside);
    EXPECT_EQ(hint(all, "mlp.gate_proj, norm's output: "), outside);
    EXPECT_EQ(hint(all, "mlp.gate_proj, output: "), shape(tokens, 2 * 384 / tp));
    EXPECT_EQ(hint(all, "mlp.down_proj, input: "), shape(tokens, 384 / tp));
    EXPECT_EQ(hint(all, "mlp.down_proj, output + residual: "), outside);
    EXPECT_TRUE(has_words(all, outside));

    // Bytes: there are two collectives of each kind, one in each half of the layer.
    const Json sent = run.summary.at("layer_forward");
    const auto collective = [&](const char* name, const char* kind) {
        const double bytes = sent.at(kind).get<double>() / 2;
        const double share = std::string_view(kind) == "all-reduce" ? 2. * (tp - 1) / tp
                                                                    : double(tp - 1) / double(tp);
        const std::string expected =
            fmt::format("{}: {:.0f} bytes, {:.0f} sent", name, bytes, share * bytes);
        EXPECT_EQ(drawn_as(all, "rect", "communication", expected).size(), 2u) << expected;
        EXPECT_EQ(bytes, double(tokens * 128 * 4));
    };
    if (sp)
        collective("g", "all-gather"), collective("g*", "reduce-scatter");
    else
        collective("f*", "all-reduce");
    EXPECT_EQ(has_words(all, "sends nothing"), !sp);
}

TEST(BlockPictureRefused, WhereNoLayerIsShared) {
    TempDir dir;
    const std::string svg = " --svg " + dir.path();
    expect_one_error_line(run_ranks(2, "03_tensor_parallel", "--steps 1 --tp 1" + svg),
                          {"--tp 2 or more"});
    expect_one_error_line(run_ranks(2, "03_tensor_parallel", "--compare" + svg), {"--svg"});
    expect_one_error_line(run_ranks(2, "03_tensor_parallel", "--demo linear" + svg), {"--svg"});
    EXPECT_FALSE(std::filesystem::exists(dir / "block.svg"));
}

// One rank rehearses, so nothing is measured, and every run draws the same.
TEST(LayoutPictures, SayWhatEveryRankHas) {
    TempDir dir;
    const Outcome run = train(
        "09_5d_parallel",
        "--rehearse 0/32 --model nano-moe --tp 2 --sequence-parallel --cp 2 --ep 2 --pp 2 --dp 2 "
        "--zero 1 --micro-batch 1 --grad-accum 2 --steps 1 --svg " +
            dir.path());
    for (const char* name : {"/grid.svg", "/layer.svg"})
        EXPECT_EQ(slurp(dir.path() + name), slurp(std::string("09_5d_parallel/pictures") + name))
            << "make pictures";
    const std::vector<Drawn> grid = picture_of(dir / "grid.svg"),
                             layer = picture_of(dir / "layer.svg");
    std::set<std::string> shares;
    for (int rank = 0; rank < 32; ++rank) shares.insert(hint(grid, fmt::format("rank {}: ", rank)));
    EXPECT_EQ(shares.size(), 32u) << "no two ranks have the same";
    EXPECT_EQ(hint(grid, "rank 0: "),
              "layers 0 to 3, heads 0 to 3, experts 0 to 3, chunks 0 and 3, part 0 of batch");
    EXPECT_EQ(hint(grid, "rank 31: "),
              "layers 4 to 7, heads 4 to 7, experts 4 to 7, chunks 1 and 2, part 3 of batch");
    for (const auto& [rank, axis] :
         {std::pair(1, "tp"), {2, "cp"}, {4, "ep"}, {8, "dp"}, {16, "pp"}})
        EXPECT_TRUE(has_words(grid, fmt::format("rank {}: {}", rank, axis)));
    EXPECT_FALSE(has_words(grid, "rank 3: tp"));
    // 128 tokens of a micro-batch, h 128, 8 heads of 16, 4 of keys, 8 experts of 96 with top 2.
    EXPECT_EQ(hint(layer, "stream, into the layer: "), "(32, 128) of (128, 128)");
    EXPECT_EQ(hint(layer, "self_attn.k_proj: "), "(32, 128) of (64, 128)");
    EXPECT_EQ(hint(layer, "self_attn.o_proj: "), "(128, 64) of (128, 128)");
    EXPECT_EQ(hint(layer, "attention's output: "), "(64, 64) of (128, 128)");
    EXPECT_EQ(hint(layer, "rows for experts: "), "(64, 128) of (256, 128)");
    EXPECT_EQ(hint(layer, "8 experts.w2: "), "4 x (128, 96) of 8 x (128, 96)");
    EXPECT_EQ(hint(layer, "post_attention_layernorm: "), "(128) of (128)");
    // All parameters of a layer are in it, with the bytes that the run held.
    int64_t held = 0;
    for (const Drawn& d : layer) {
        int64_t count = 1, rows = 0, columns = 1;
        if (d.name != "rect" || !d.is("parameters") || d.hint.find(" of ") == std::string::npos)
            continue;
        const std::string own = d.hint.substr(d.hint.find(": ") + 2);
        if (std::sscanf(own.c_str(), "%ld x (%ld, %ld)", &count, &rows, &columns) < 2)
            count = 1, std::sscanf(own.c_str(), "(%ld, %ld)", &rows, &columns);
        held += 4 * count * rows * columns;
    }
    const int64_t embedding = 4 * 256 / 2 * 128;
    EXPECT_EQ(4 * held + embedding, run.summary.at("memory").at("parameters").at("measured"));
}

// Reads a constant from the kernel's source, "constexpr int tile = 128, k_step = 16, ...". The
// picture does not read the source; it records which thread computes what.
int64_t constant(const std::string& source, const std::string& name) {
    std::smatch found;
    EXPECT_TRUE(std::regex_search(source, found, std::regex("\\b" + name + " = (\\d+)"))) << name;
    return found.empty() ? 0 : std::stoll(found[1]);
}

TEST(TilesPicture, IsWhatTheKernelsConstantsSay) {
    if (on_gpu) GTEST_SKIP() << "who stores what is seen on the CPU";
    TempDir dir;
    const Outcome done =
        run("07_kernels", "--check --kernel product_warp_tiles --svg " + dir.path());
    EXPECT_EQ(done.exit_code, 0) << done.out << done.err;
    const std::vector<Drawn> all = picture_of(dir / "tiles.svg");
    const std::string source = slurp("07_kernels/3_product/8_product_warp_tiles.cu");
    const int64_t tile = constant(source, "tile"), k_step = constant(source, "k_step"),
                  threads = constant(source, "threads"), rows = constant(source, "warp_rows"),
                  columns = constant(source, "warp_columns"),
                  down = constant(source, "squares_down"),
                  across = constant(source, "squares_across");
    const auto text = [](int64_t rows, int64_t columns) {
        return fmt::format("{} x {}", rows, columns);
    };
    EXPECT_EQ(hint(all, "block: "), text(tile, tile));
    EXPECT_EQ(hint(all, "a: "), text(tile, k_step));
    EXPECT_EQ(hint(all, "b: "), text(k_step, tile));
    EXPECT_TRUE(has_words(all, "a warp: " + text(rows, columns)));
    EXPECT_TRUE(has_words(all, fmt::format("{} warps of 32 threads", threads / 32)));
    EXPECT_EQ(hint(all, "thread: "), text(4 * down, 4 * across));
    EXPECT_EQ(drawn_as(all, "rect", "rank7", "lane 0: 4 x 4").size(), size_t(down * across));
    EXPECT_TRUE(has_words(all, fmt::format("for each k: {} numbers of A, {} of B", rows, columns)));
}

TEST(TilesPicture, OfAnotherRung) {
    if (on_gpu) GTEST_SKIP() << "who stores what is seen on the CPU";
    TempDir dir;
    run("07_kernels", "--check --kernel product_shared --svg " + dir.path());
    const std::vector<Drawn> all = picture_of(dir / "tiles.svg");
    EXPECT_EQ(hint(all, "block: "), "32 x 32");
    EXPECT_EQ(hint(all, "a: "), "32 x 32");
    EXPECT_TRUE(has_words(all, "a warp: 1 x 32") && has_words(all, "a thread: 1 x 1"));
}

TEST(TilesPicture, RefusedWithoutAProduct) {
    TempDir dir;
    const std::string svg = " --svg " + dir.path();
    expect_one_error_line(run("07_kernels", "--family 2" + svg), {"--svg"});
    expect_one_error_line(run("07_kernels", "--list" + svg), {"--svg"});
    expect_one_error_line(run("07_kernels", "--kernel product_shared --size 64,64,64" + svg),
                          {"--svg"});
}

}  // namespace
}  // namespace ultrascale::test
