// A mode of the program refuses every option that it does not read: all options in --help are tried
// in each mode of 09. (chapters/modes_test.cpp shows that the options it reads change its output.)
#include "tests/mode_options.h"

#include <gtest/gtest.h>

#include <ranges>
#include <sstream>

#include "09_5d_parallel/lab/options.h"

namespace ultrascale {
using namespace ultrascale::context_parallel;
using namespace ultrascale::data_parallel;
using namespace ultrascale::expert_parallel;
using namespace ultrascale::five_d;
using namespace ultrascale::mixed_precision;
using namespace ultrascale::pipeline;
using namespace ultrascale::tensor_parallel;
using namespace ultrascale::zero;
namespace {

using test::all_modes;
using test::all_options;

// Parses 09's options on a command line. Returns the error, or "".
struct CommandLine {
    Options shared = Chapter::defaults();
    Chapter chapter;
    OptionList list{"09_5d_parallel", ""};
    CommandLine() {
        add_shared_options(list, shared);
        chapter.add_options(list, shared);
    }
    std::string error_in(const std::string& text) {
        std::vector<std::string> words{"09_5d_parallel"};
        std::istringstream in(text);
        for (std::string word; in >> word;) words.push_back(word);
        std::vector<char*> argv;
        for (std::string& word : words) argv.push_back(word.data());
        try {
            list.parse(int(argv.size()), argv.data());
            list.check_effects();
        } catch (const UserError& error) {
            return error.what();
        }
        return "";
    }
};

bool among(const std::vector<std::string>& names, const std::string& name) {
    return std::ranges::find(names, name) != names.end();
}

TEST(ModeOptions, TheTableHasAll) {
    std::vector<std::string> known, here = CommandLine().list.names();
    for (const auto& option : all_options()) known.push_back(option.name);
    std::erase(here, "--help");
    std::ranges::sort(known), std::ranges::sort(here);
    EXPECT_EQ(known, here);
}

TEST(ModeOptions, WhatAModeDoesNotReadIsRefused) {
    CommandLine commands;  // an option that is refused changes nothing
    for (const auto& mode : all_modes())
        for (const auto& option : all_options()) {
            if (!mode.refuses(option.name)) continue;
            // --save-every needs --save, so the error may name --save.
            const bool needs = option.with.starts_with("--save ") ||
                               option.with.starts_with("--val-data ") ||
                               option.name == "--node-size" || option.name == "--inter-gbps";
            const std::string line = mode.mode + " " + mode.value + " " +
                                     (needs ? option.with + " " : "") + option.name + " " +
                                     option.value;
            SCOPED_TRACE(line);
            const std::string error = commands.error_in(line);
            const std::string end = " has no effect with " + mode.mode + ": ";
            const bool other_mode = std::ranges::any_of(
                all_modes(), [&](const auto& other) { return other.mode == option.name; });
            // With two modes, the error may say of either that it has no effect.
            EXPECT_TRUE(error.starts_with(option.name + end) ||
                        (needs && error.find(end) != std::string::npos) ||
                        (other_mode && error.starts_with(mode.mode + " has no effect with " +
                                                         option.name + ": ")))
                << error;
        }
}

TEST(ModeOptions, WhatAModeReadsIsAccepted) {
    for (const auto& mode : all_modes())
        for (const auto& option : all_options()) {
            if (!among(mode.reads, option.name)) continue;
            const std::string line = mode.mode + " " + mode.value + " " + option.with + " " +
                                     option.name + " " + option.value;
            if (mode.mode == "--plan" && option.with.find("--sequence-parallel") != line.npos)
                continue;                           // a plan always has it
            if (option.name == "--load") continue;  // it needs a folder
            EXPECT_EQ(CommandLine().error_in(line), "") << line;
        }
}

TEST(ModeOptions, AreToldWithTheReason) {
    EXPECT_EQ(CommandLine().error_in("--plan --zero 3 --prefetch 2"),
              "--prefetch has no effect with --plan: no formula of a plan has it");
    EXPECT_EQ(CommandLine().error_in("--plan --tp 2 --chunks 4"), "");
    EXPECT_EQ(CommandLine().error_in("--estimate --seed 3"),
              "--seed has no effect with --estimate: it is about what a rank holds and sends in "
              "any step");
    EXPECT_EQ(CommandLine().error_in("--estimate --document-token 3"),
              "--document-token has no effect with --estimate: the data decide what it saves; an "
              "estimate has none");
}

}  // namespace
}  // namespace ultrascale
