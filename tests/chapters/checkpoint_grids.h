// Shared by the tests of the chapters' checkpoints: a chapter's layouts, and what each of them must
// do with Hugging Face's checkpoints.
#pragma once

#include <cmath>

#include "compare_runs.h"

namespace ultrascale::test {

inline constexpr const char* references[] = {"gqa_untied", "tied_head_dim", "llama3_bf16"};

struct Grid {
    int ranks;
    const char* arguments;  // a global batch of 8
};

inline Outcome train_grid(const std::string& chapter, const Grid& grid,
                          const std::string& arguments) {
    SCOPED_TRACE(fmt::format("{} ranks {}", grid.ranks, grid.arguments));
    const Outcome run =
        train(grid.ranks, chapter,
              fmt::format("--seq 64 --lr 1e-3 --no-verify {} {}", grid.arguments, arguments));
    expect_as_predicted(run);
    return run;
}

// A loaded checkpoint trains with the losses and gradient norms of transformers.
inline void expect_as_reference(const std::string& chapter, const std::string& name,
                                const Grid& grid) {
    SCOPED_TRACE(fmt::format("{}, {} ranks {}", name, grid.ranks, grid.arguments));
    const Json expected = Json::parse(slurp(reference(name) + "/expected.json"));
    const auto losses = expected.at("float64").at("loss").get<std::vector<double>>(),
               norms = expected.at("float64").at("grad_norm").get<std::vector<double>>();
    const Outcome run = train_grid(
        chapter, grid, fmt::format("{} --steps {}", load(name), expected.at("steps").get<int>()));
    ASSERT_EQ(run.steps.size(), losses.size());
    EXPECT_LE(std::abs(run.of("loss")[0] - losses[0]), on_gpu ? 1e-5 : 1e-6);
    EXPECT_LE(largest_difference(run.of("loss"), losses), on_gpu ? 2e-5 : 5e-6);
    for (size_t i = 0; i < norms.size(); ++i)
        EXPECT_LE(std::abs(run.of("grad_norm")[i] / norms[i] - 1), 1e-4);
}

// Without a step it is saved with the same bytes as by the program for one device.
template <class Grids>
void expect_comes_back_bitwise(const std::string& chapter, const std::string& name,
                               const Grids& grids) {
    const std::string arguments = fmt::format("{} --dtype {} --seq 64 --no-verify", load(name),
                                              name == "llama3_bf16" ? "bf16" : "fp32");
    TempDir dir;
    train("00_single_gpu",
          fmt::format("{} --micro-batch 8 --steps 0 --save {}", arguments, dir / "single"));
    for (const Grid& grid : grids) {
        SCOPED_TRACE(fmt::format("{}, {} ranks {}", name, grid.ranks, grid.arguments));
        train(grid.ranks, chapter,
              fmt::format("{} {} --steps 0 --save {}", arguments, grid.arguments, dir / "shared"));
        expect_same_checkpoints(dir / "shared", dir / "single");
    }
}
template <class Grids>
void expect_comes_back_bitwise(const std::string& chapter, const Grids& grids) {
    for (const char* name : references) expect_comes_back_bitwise(chapter, name, grids);
}

}  // namespace ultrascale::test
