// Chapter 07: kernels. Every file in the numbered folders is one kernel with one idea; this program
// checks them all against float64 and measures them: on a GPU it times them, without one it counts
// their memory accesses (the microscope).
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>
#include <set>

#include "core/device.h"
#include "files/file.h"
#include "lab/options/cli.h"
#include "lab/page/page.h"
#include "lab/pictures/svg.h"
#include "lab/report/json_lines.h"
#include "measure.h"
#include "primer.h"
#include "stalls.h"
#include "tiling.h"
#include "traffic.h"

using namespace ultrascale;
using namespace ultrascale::kernels;

namespace {

struct Chapter {
    std::vector<int> families;
    std::vector<std::string> kernels;
    LadderOptions ladder{.seed = std::random_device{}()};
    bool primer = false, list = false, stalls = false, traffic = false;
    std::string json, html, svg;

    void add_options(OptionList& options) {
        const auto runs = [this] { return !list; };
        const auto measures = [this] { return !primer; };
        const char *lists = "--list runs no kernel",
                   *primes = "--primer neither checks nor measures";
        options
            .add("--family", families,
                 "1 first steps, 2 memory, 3 matrix product, 4 fusion, 5 attention, 6 matrix "
                 "product on Hopper. Default: all")
            .between(1, 6)
            .only_if([this] { return kernels.empty(); }, "--kernel names the kernels");
        options.add("--kernel", kernels,
                    "Only these kernels (--list shows their names); mine: your kernel in mine.cu, "
                    "beside those of its problem");
        options
            .add("--size", ladder.size,
                 "The problem's dimensions, e.g. 1024,1024. Default: each problem's own")
            .split_at(',')
            .between(1, int64_t(1) << 32)
            .only_if(runs, lists);
        options.flag("--check", ladder.check_only, "Only compare the results with float64")
            .only_if(runs, lists)
            .only_if(measures, primes);
        options
            .flag("--microscope", ladder.by_line,
                  "Sectors, bank conflicts and threads of each line that loads or stores (without "
                  "a GPU)")
            .only_if(runs, lists)
            .only_if(measures, primes)
            .only_if([this] { return !ladder.check_only; }, "--check looks at the results only");
        options
            .flag("--primer", primer,
                  "Show the GPU's units and memories, and each kernel's occupancy")
            .only_if(runs, lists);
        options.flag("--list", list, "List all kernels and what each adds");
        options
            .add("--seed", ladder.seed, "Seed of the random inputs. Default: a new one each time")
            .only_if(runs, lists)
            .only_if(measures, primes);
        options
            .add("--json", json,
                 "Write the tables to this file: one JSON object per kernel, then a summary")
            .only_if(runs, lists)
            .only_if(measures, primes);
        options.add("--html", html, "Write a page with the tables for a browser to this file")
            .only_if(runs, lists)
            .only_if(measures, primes);
        options
            .add("--svg", svg,
                 "Directory to write tiles.svg to: how the last kernel of the fp32 product cuts "
                 "its work (CPU only)")
            .only_if(runs, lists)
            .only_if(measures, primes)
            .only_if([this] { return ladder.size.empty(); }, "--svg draws the problem's own size");
        options
            .flag("--stalls", stalls,
                  "What the warps of the fp32 product wait for, and how fast it can be "
                  "(without a GPU)")
            .only_if(runs, lists)
            .only_if(measures, primes)
            .only_if([this] { return !ladder.check_only; }, "--check looks at the results only");
        options
            .flag("--traffic", traffic,
                  "Attention's FLOPs and bytes, naive and FlashAttention, at the paper's size by "
                  "formula; our kernels' counted or timed")
            .only_if(runs, lists)
            .only_if(measures, primes)
            .only_if([this] { return !ladder.check_only; }, "--check looks at the results only")
            .excludes({"--family", "--kernel", "--stalls", "--svg"});
    }
};

std::vector<Problem> all_problems() {
    std::vector<Problem> all;
    for (const auto& family : {first_steps, memory, product, fusion, attention})
        for (Problem& problem : family()) all.push_back(std::move(problem));
    return all;
}

std::vector<Kernel> chosen(const Chapter& chapter) {
    const auto has = [](const auto& list, const auto& x) {
        return std::ranges::find(list, x) != list.end();
    };
    for (const std::string& name : chapter.kernels)
        if (std::ranges::none_of(all_kernels(), [&](const Kernel& k) { return k.name == name; }))
            user_error("--kernel {}: there is no such kernel; --list shows them", name);
    std::set<std::string> problems_of_mine;
    for (const Kernel& k : all_kernels())
        if (k.family == 0 && has(chapter.kernels, k.name)) problems_of_mine.insert(k.problem);
    std::vector<Kernel> kernels;
    for (const Kernel& k : all_kernels()) {
        const bool on_ladder = k.family > 0;
        const bool wanted =
            chapter.kernels.empty()
                ? on_ladder && (chapter.families.empty() || has(chapter.families, k.family))
                : has(chapter.kernels, k.name) ||
                      (on_ladder && problems_of_mine.contains(k.problem));
        if (wanted) kernels.push_back(k);
    }
    return kernels;
}

// The kernel whose tiles --svg draws: the last of the fp32 product's kernels that run here, or the
// student's.
const Kernel& to_draw(const std::vector<Kernel>& kernels) {
    const Kernel* last = nullptr;
    for (const Kernel& k : kernels)
        if (k.problem == "product" && k.run && (last == nullptr || last->family > 0)) last = &k;
    if (last == nullptr)
        user_error("--svg: the picture is of a kernel of the problem \"product\"; --family 3");
    return *last;
}

bool run(Chapter& chapter) {
    if (chapter.traffic) {
        chapter.families = {5};
        if (on_gpu && chapter.ladder.size.empty()) chapter.ladder.size = size_of_slides;
    }
    if (chapter.stalls && on_gpu)
        user_error(
            "--stalls estimates on the CPU: build it with make BACKEND=cpu 07_kernels; on a GPU, "
            "ncu measures them (WAITING.md)");
    if (chapter.ladder.by_line && on_gpu)
        user_error(
            "--microscope executes kernels on the CPU: build it with make BACKEND=cpu 07_kernels; "
            "on a GPU, ncu counts the same (MEASURED.md)");
    const std::vector<Kernel> kernels = chosen(chapter);
    if (!chapter.svg.empty()) {
        if (on_gpu) user_error("--svg watches a kernel on the CPU: make BACKEND=cpu 07_kernels");
        to_draw(kernels), check_can_draw(chapter.svg);
    }
    if (chapter.list) {
        fmt::print("  {:<27} {:<19} {}\n", "kernel", "problem", "adds");
        for (const Kernel& k : kernels)
            fmt::print("{} {:<27} {:<19} {}\n", k.family, k.name, k.problem, k.idea);
        return true;
    }
    const std::vector<Problem> problems = all_problems();
    if (chapter.stalls &&
        std::ranges::none_of(kernels, [](const Kernel& k) { return k.problem == "product"; }))
        user_error("--stalls is for the kernels of the problem \"product\": --family 3");
    std::set<std::string> problem_names;
    for (const Kernel& k : kernels) {
        if (std::ranges::none_of(problems, [&](const Problem& p) { return p.name == k.problem; }))
            user_error("{}: there is no problem \"{}\"; --list shows them", k.file, k.problem);
        problem_names.insert(k.problem);
    }
    if (!chapter.ladder.size.empty() && problem_names.size() > 1)
        user_error("--size is for one problem: name its kernels with --kernel");
    if (!chapter.json.empty())
        AtomicFile probe(chapter.json);  // fails now rather than after the kernels
    if (!chapter.html.empty()) open_page(chapter.html);
    JsonLines json(chapter.json, !chapter.html.empty());
    fmt::print("{}; seed {}\n", device_description(), chapter.ladder.seed);
    if (!on_gpu && !chapter.ladder.check_only && !chapter.primer)
        fmt::print(
            "cost: estimated time, the longer of global and shared memory's; 1 = memory moves the "
            "least bytes\n");
    bool ok = true;
    int checked = 0;
    std::vector<std::pair<Kernel, std::vector<LaunchNote>>> launched;
    for (const Problem& problem : problems) {
        std::vector<Kernel> problem_kernels;
        std::ranges::copy_if(kernels, std::back_inserter(problem_kernels),
                             [&](const Kernel& k) { return k.problem == problem.name; });
        if (problem_kernels.empty()) continue;
        if (!chapter.ladder.size.empty() && chapter.ladder.size.size() != problem.dimensions.size())
            user_error("--size: {} has {} dimensions: {}", problem.name, problem.dimensions.size(),
                       fmt::join(problem.dimensions, ","));
        if (const std::string why =
                chapter.ladder.size.empty() ? "" : problem.refuses(chapter.ladder.size);
            !why.empty())
            user_error("--size: {}: {}", problem.name, why);
        if (chapter.primer) {
            for (const Kernel& kernel : problem_kernels) {
                if (!why_skipped(kernel).empty()) continue;
                take_launches();
                const Sizes& own = (on_gpu ? problem.timed : problem.observed)[0];
                const Sizes& size = chapter.ladder.size.empty() ? own : chapter.ladder.size;
                kernel.run(make_trial(problem, size, 1).arguments);
                launched.emplace_back(kernel, take_launches());
            }
            continue;
        }
        const std::vector<KernelResult> results =
            measure_kernels(problem, problem_kernels, chapter.ladder);
        for (const KernelResult& result : results)
            if (result.kernel->family == 0) fmt::print("{}", ranking(result, results));
        if (chapter.stalls && problem.name == "product") fmt::print("{}", stalls(problem, results));
        if (chapter.traffic) {
            fmt::print("{}", traffic(results));
            ok = ok && counted_as_by_formula(results);
        }
        for (const KernelResult& result : results) {
            ok = ok && result.wrong.empty();
            checked += result.checked;
            nlohmann::ordered_json row = {{"kernel", result.kernel->name},
                                          {"problem", problem.name},
                                          {"size", result.size},
                                          {"error", result.error},
                                          {"wrong", result.wrong}};
            row[on_gpu ? "seconds" : "traffic"] = on_gpu ? result.seconds : result.traffic;
            for (const auto& [name, value] : result.seen) row[name] = value;
            json.write(nlohmann::ordered_json{{"row", row}}.dump());
        }
    }
    if (chapter.primer) print_primer(launched);
    if (!chapter.svg.empty() && ok) {
        const Kernel& kernel = to_draw(kernels);
        const Problem& its = *std::ranges::find(problems, kernel.problem, &Problem::name);
        const Trial trial = make_trial(its, its.observed[0], 1);
        draw_tiles(chapter.svg, kernel, observe_tiling(kernel, trial.arguments));
    }
    const nlohmann::ordered_json configuration = {
        {"chapter", "07_kernels"}, {"device", device_description()}, {"seed", chapter.ladder.seed}};
    json.write(nlohmann::ordered_json{{"summary",
                                       {{"configuration", configuration},
                                        {"comparisons", checked},
                                        {"result", ok ? "ok" : "wrong"}}}}
                   .dump());
    write_page(chapter.html, json.kept());
    if (!chapter.primer)
        fmt::print("\n{}\n", !ok ? "WRONG, see above"
                             : checked == 0
                                 ? "nothing was checked"
                                 : fmt::format("all right: {} comparisons with float64", checked));
    return ok;
}

}  // namespace

int main(int argc, char** argv) {
    return run_program([&] {
        Chapter chapter;
        parse_command_line(argc, argv, "07_kernels", "Check and measure this chapter's kernels.",
                           [&](OptionList& list) { chapter.add_options(list); });
        return run(chapter);
    });
}
