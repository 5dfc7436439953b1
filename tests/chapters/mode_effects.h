// An option that a mode of 09 reads changes its exit code, its output or a file.
// (unit/mode_options_test.cpp tests that the other options are refused.)
#pragma once

#include <map>
#include <sstream>

#include "run_program.h"
#include "tests/mode_options.h"

namespace ultrascale::test {

class ModeEffects {
public:
    // `ranks` is the number of ranks, or 0 without the launcher; `always` holds the mode's own
    // options.
    ModeEffects(std::string always, int ranks = 0) : ranks_(ranks), always_(std::move(always)) {
        const std::string save = "--layers 2 --steps 0 --no-verify --save " + directory_.path();
        EXPECT_EQ(run("00_single_gpu", save).exit_code, 0);
    }
    // Expects that the option is refused, or changes something.
    void expect(const OneOfAll& option) {
        std::string with = option.with, value = option.value;
        // A plan always has sequence parallelism.
        if (const size_t at = with.find("--sequence-parallel");
            at != with.npos && always_.starts_with("--plan"))
            with.erase(at, 19);
        // These two need each other, so they get another value.
        if (option.name == "--node-size") with += " --node-size 4";
        if (option.name == "--inter-gbps") with += " --inter-gbps 300";
        if (option.name == "--load") value = directory_.path();
        if (option.name == "--keep-masks") with.clear();  // 09 has no --dropout for it to go with
        for (const char* file : {"--json", "--html", "--trace", "--svg"})
            if (option.name == file) value = directory_ / value;
        const std::string all = fmt::format("{} {} {} {}", always_, with, option.name, value);
        SCOPED_TRACE(all);
        const Outcome outcome = run_once(all);
        if (!value.empty() && value.starts_with(directory_.path()) && option.name != "--load") {
            EXPECT_TRUE(std::filesystem::exists(value) || refused(outcome)) << outcome.err;
            return;
        }
        if (refused(outcome)) return;
        // An error does not count as an effect, with two exceptions: if --dp follows from the ranks
        // and the other axes, it can only contradict them; and for dropout 09 refers to the chapter
        // that shows it.
        const bool follows = option.name == "--dp" && !always_.starts_with("--plan");
        const bool may_err = follows || option.name == "--dropout";
        EXPECT_TRUE(outcome.exit_code != 2 || may_err) << outcome.err;
        const Outcome& without = run_once(fmt::format("{} {}", always_, with));
        EXPECT_TRUE(said(outcome) != said(without)) << outcome.out << outcome.err;
    }

private:
    static bool refused(const Outcome& outcome) {
        return outcome.exit_code == 2 && contains(outcome.err, " has no effect");
    }
    // Returns the output without the parts that differ from run to run, the times.
    static std::string said(const Outcome& outcome) {
        std::string text = fmt::format("{}\n{}{}", outcome.exit_code, outcome.out, outcome.err);
        const size_t planned = text.find("; planned in ");
        if (planned != text.npos) text.erase(planned, text.find('\n', planned) - planned);
        for (const Json& row : outcome.rows) text += row.dump();  // rows have more digits
        return text;
    }
    const Outcome& run_once(const std::string& arguments) {
        const auto known = outcomes_.find(arguments);
        if (known != outcomes_.end()) return known->second;
        const std::string json = directory_ / "rows.jsonl", chapter = "09_5d_parallel",
                          all = fmt::format("--json {} {}", json, arguments);
        std::filesystem::remove(json);
        Outcome outcome = ranks_ == 0 ? run(chapter, all) : run_ranks(ranks_, chapter, all);
        std::istringstream lines(slurp(json));
        for (std::string line; std::getline(lines, line);)
            if (const Json entry = Json::parse(line, nullptr, false); entry.contains("row"))
                outcome.rows.push_back(entry["row"]);
        return outcomes_[arguments] = outcome;
    }

    int ranks_;
    std::string always_;
    TempDir directory_;
    std::map<std::string, Outcome> outcomes_;  // by command line
};

}  // namespace ultrascale::test
