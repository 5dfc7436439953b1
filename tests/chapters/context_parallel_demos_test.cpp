// 04_context_parallel's demos and --compare print the right figures.
#include <cmath>
#include <regex>

#include "compare_runs.h"
#include "tests/picture_checks.h"

namespace ultrascale::test {
namespace {

const char* const chapter = "04_context_parallel";

std::string demo(int ranks, const std::string& name) {
    const Outcome outcome = run_ranks(ranks, chapter, "--demo " + name);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
    EXPECT_FALSE(contains(outcome.out, "WRONG")) << outcome.out;
    return outcome.out;
}

// The demo's attention of query i over the keys from `first` on, by the definition.
struct Row {
    double most = -1e9, sum = 0, out[2] = {};
};
Row plain_row(int i, int first) {
    const auto query = [](int t, int d) { return double(d == 0 ? (t + 1) % 3 : t * 5 % 4) - 1; };
    const auto key = [](int t, int d) { return double(d == 0 ? t % 4 : t * 3 % 5) - 2; };
    Row row;
    double weights = 0;
    for (int j = first; j <= i; ++j) {
        const double score = (query(i, 0) * key(j, 0) + query(i, 1) * key(j, 1)) / std::sqrt(2),
                     weight = std::exp(score);
        row.most = std::max(row.most, score);
        weights += weight, row.out[0] += weight * j / 10, row.out[1] += weight * (j % 2);
    }
    row.sum = weights / std::exp(row.most);
    for (double& out : row.out) out /= weights;
    return row;
}

// With four ranks the messages are real; one rank plays all four. Both show the same.
TEST(ContextParallelDemo, TheRingEndsWithPlainAttention) {
    const std::string real = demo(4, "ring"), played = demo(1, "ring");
    for (int i = 0; i < 16; ++i) {
        const Row all = plain_row(i, 0);
        const std::string row = fmt::format("{:.3f} {:.3f}", all.out[0], all.out[1]);
        EXPECT_TRUE(contains(real, fmt::format("q{:02} ring {}  plain {}  ok", i, row, row)))
            << row << "\n"
            << real;
        // After each hop the keys come from the rank itself, then from the one before it, ...
        for (int first = i / 4 * 4; first >= 0; first -= 4) {
            const Row some = plain_row(i, first);
            const std::string shown =
                fmt::format("q{:02}{:>5.1f}{:>#5.3g} {:.2f} {:.2f}", i, some.most + 0.0, some.sum,
                            some.out[0], some.out[1]);
            EXPECT_TRUE(contains(real, shown)) << shown << "\n" << real;
        }
    }
    for (const char* telling :
         {"really send", "hop 0: meanwhile go k0 v0 from 0 to 1, k1 v1 from 1 to 2",
          "hop 2: meanwhile go k2 v2 from 0 to 1, k3 v3 from 1 to 2", "hop 3: nothing is sent"})
        EXPECT_TRUE(contains(real, telling)) << telling;
    EXPECT_FALSE(contains(played, "really send"));
    EXPECT_EQ(real.substr(real.find("hop 0")), played.substr(played.find("hop 0")));
}

// Returns the numbers of the first line that begins with `begin`.
std::vector<double> numbers_after(const std::string& text, const std::string& begin) {
    std::vector<double> numbers;
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
        if (!line.starts_with(begin)) continue;
        std::istringstream rest(
            std::regex_replace(line.substr(begin.size()), std::regex("%"), " "));
        for (double number; rest >> number;) numbers.push_back(number);
        return numbers;
    }
    ADD_FAILURE() << "no line " << begin << "\n" << text;
    return numbers;
}

TEST(ContextParallelDemo, BalanceIsThatOfTheFormulas) {
    TempDir dir;
    const std::string text = demo(1, "balance --svg " + dir.path());
    // For each layout: the pairs of each rank, and the duration of the hop. 16 tokens on 4 ranks
    // have 136 pairs.
    EXPECT_EQ(numbers_after(text, "  hop 0"), (std::vector<double>{10, 10, 10, 10, 10,  //
                                                                   10, 10, 10, 10, 10,  //
                                                                   10, 10, 10, 10, 10}));
    EXPECT_EQ(numbers_after(text, "  hop 1"), (std::vector<double>{0, 16, 16, 16, 16,  //
                                                                   8, 8, 8, 8, 8,      //
                                                                   6, 10, 10, 10, 10}));
    EXPECT_EQ(numbers_after(text, "  hop 2"), (std::vector<double>{0, 0, 16, 16, 16,  //
                                                                   8, 8, 8, 8, 8,     //
                                                                   6, 6, 10, 10, 10}));
    EXPECT_EQ(numbers_after(text, "  pairs"), (std::vector<double>{10, 26, 42, 58, 58,  //
                                                                   34, 34, 34, 34, 34,  //
                                                                   28, 32, 36, 40, 40}));
    EXPECT_EQ(numbers_after(text, "  idle"), (std::vector<double>{83, 55, 28, 0,  //
                                                                  0, 0, 0, 0,     //
                                                                  30, 20, 10, 0}));
    // The efficiency is n / (2n - 1), exactly n (s + 1) / ((2n - 1) s + n), and for striped (s + 1)
    // / (s + n).
    const double s = 4096;
    for (const int n : {2, 4, 8}) {
        const auto efficiency = [&](const char* layout) {
            return numbers_after(text, fmt::format("  {:>5}   {:<10} ", n, layout)).at(0);
        };
        EXPECT_NEAR(efficiency("contiguous"), n * (s + 1) / ((2 * n - 1) * s + n), 5e-5);
        EXPECT_NEAR(efficiency("contiguous"), n / (2. * n - 1), 2e-4);
        EXPECT_EQ(efficiency("zigzag"), 1);
        EXPECT_NEAR(efficiency("striped"), (s + 1) / (s + n), 5e-5);
    }
    // In a document of 6144 tokens the sixth rank has the most pairs of all contiguous pieces.
    // Their mean is an eighth of all pairs.
    const double all = 6144. * 6145 / 2 + 8 * 256. * 257 / 2, L = 1024,
                 most = 5 * L * L + L * (L + 1) / 2;
    const auto document_balance = [&](const char* layout) {
        return numbers_after(text.substr(text.find("documents of 6144")), layout).at(0);
    };
    EXPECT_NEAR(document_balance("  contiguous"), all / 8 / most, 5e-5);
    EXPECT_NEAR(document_balance("  zigzag    "), 0.5704, 5e-5);
    EXPECT_NEAR(document_balance("  striped"), 0.9985, 5e-5);
    EXPECT_EQ(document_balance("  zigzag within each document"), 1);

    // The picture has a cell for each pair of each layout.
    const std::vector<Drawn> picture = read_picture(slurp(dir / "balance.svg"));
    expect_readable(picture);
    const auto cells = [&](const char* begin) {
        return std::ranges::count_if(
            picture, [&](const Drawn& d) { return d.name == "rect" && d.hint.starts_with(begin); });
    };
    EXPECT_EQ(cells("query "), 3 * 16 * 17 / 2);
    EXPECT_EQ(cells("zigzag, rank 3: 34 pairs"), 1);
    EXPECT_EQ(cells("contiguous, rank 3: 58 pairs"), 1);
}

TEST(ContextParallelDemo, MergingInBf16LosesMoreAsTheRingGrows) {
    const std::string text = demo(1, "merge");
    double before = 0, first = 0;
    for (const int blocks : {1, 2, 4, 8, 16, 32, 64}) {
        const std::vector<double> errors = numbers_after(text, fmt::format("  {:>6}   ", blocks));
        ASSERT_EQ(errors.size(), 2u);
        EXPECT_LE(errors[0], blocks == 1 ? 0 : 5e-6);
        EXPECT_GT(errors[1], before) << blocks;
        before = errors[1];
        if (blocks == 2) first = errors[1];
    }
    EXPECT_GT(first, 1e-3);  // rounding to 8 bits
    EXPECT_LT(first, 4e-3);
    EXPECT_GT(before / first, 3);
}

// A hop is hidden if a sequence has enough tokens; the number of sequences does not matter.
TEST(ContextParallelReport, TellsWhenAHopHides) {
    const Outcome run = train(4, chapter,
                              "--layers 1 --seq 64 --micro-batch 3 --steps 1 --no-verify --report "
                              "full --variant usp --ulysses 2");
    const Json figures = run.summary.at("overlap_condition");
    EXPECT_GT(figures.at("formula_tokens"), 0);
    EXPECT_GE(figures.at("measured_tokens"), 0);
    EXPECT_TRUE(contains(run.out, fmt::format("= {:.0f} tokens a rank; this run has 32\n",
                                              figures.at("formula_tokens").get<double>())))
        << run.out;
    EXPECT_TRUE(contains(run.out, "GB/s * 2 * 4 / 4\n")) << run.out;  // K e / H of a rank
}

// Returns the rows of --compare by variant.
std::map<std::string, Json> compared(const std::string& arguments) {
    std::map<std::string, Json> rows;
    for (const Json& row :
         train(4, chapter, "--compare --layers 2 --seq 64 --steps 3 " + arguments).rows)
        rows[row.at("variant")] = row;
    const Json& zigzag = rows["ring, zigzag"];
    for (const auto& [name, row] : rows) {
        EXPECT_EQ(row.at("as_predicted"), true) << name;
        EXPECT_NEAR(row.at("loss").get<double>(), zigzag.at("loss").get<double>(), 1e-5) << name;
    }
    return rows;
}

// With documents a ring's backward is always restarted, so there are two rows fewer; the plain ring
// knows no documents. With contiguous chunks rank 0 receives no keys, but the table shows what the
// busiest rank holds.
TEST(ContextParallelCompare, WithDocuments) {
    std::map<std::string, Json> rows = compared("--micro-batch 2 --document-token 10");
    EXPECT_EQ(rows.size(), 7u);
    EXPECT_FALSE(rows.contains("ring, zigzag, own keys kept"));
    EXPECT_GT(rows["ring, contiguous"].at("peak_communication_bytes").get<double>(), 0);
}

TEST(ContextParallelCompare, HasARowForEachVariant) {
    std::map<std::string, Json> rows = compared("--micro-batch 1");
    EXPECT_EQ(rows.size(), 10u);
    // The keys and values of a rank and layer, as in ContextParallelCosts.
    const double K = 2 * 16 * 4 * 16 * 4 * 2;
    const auto sent = [&](const char* variant, const char* which) {
        return rows[variant].at(fmt::format("sent_in_attention_{}", which)).get<double>();
    };
    for (const char* which : {"mean", "most"}) {
        EXPECT_EQ(sent("ring, zigzag", which), 9 * K);
        EXPECT_EQ(sent("ring, striped", which), 9 * K);
        EXPECT_EQ(sent("plain ring, contiguous", which), 10 * K);
        EXPECT_EQ(sent("ring, zigzag, backward restarted", which), 10 * K);
        EXPECT_EQ(sent("ring, zigzag, own keys kept", which), 8 * K);
        EXPECT_EQ(sent("all-gather, zigzag", which), 9 * K);
        EXPECT_EQ(sent("ulysses", which), 4.5 * K);
    }
    // Keys and values: heads 3/2, and tails 0, 3/2, 2/2, 1/2 by rank; twice. Gradients: heads 4/2,
    // and tails as far, and home from rank 0, where three of the four end.
    EXPECT_EQ(sent("ring, zigzag, bidirectional", "most"), (2 * 6. / 2 + (4 + 3) / 2.) * K);
    EXPECT_EQ(sent("ring, zigzag, bidirectional", "mean"),
              (2 * 4.5 / 2 + (4 * 4 + 6 + 3) / 8.) * K);
}

}  // namespace
}  // namespace ultrascale::test
