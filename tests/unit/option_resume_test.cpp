// The options that a resumed run takes over from the run so far.
#include <gtest/gtest.h>

#include "lab/options/option_list.h"
#include "tests/test_files.h"

namespace ultrascale {
namespace {

using Lines = std::vector<std::string>;

// A program with options like those of the chapters.
struct Program {
    double lr = 0.001, gamma = 0.5, coefficient = -1;
    int64_t token = -1;
    bool shuffle = false, mean = false;
    std::string balance = "loss", ramp;
    int64_t accum = 1;
    OptionList list{"program", "trains"};

    explicit Program(std::vector<std::string> words) {
        list.add("--lr", lr, "");
        list.add("--token", token, "").at_least(0);
        list.flag("--shuffle", shuffle, "");
        list.flag("--mean", mean, "");
        list.add("--gamma", gamma, "").only_if([this] { return balance == "bias"; }, "no bias");
        list.add("--balance", balance, "").one_of({"loss", "bias"});
        list.add("--coef", coefficient, "").between(0, 1);
        list.add("--accum", accum, "").at_least(1);
        list.add("--ramp", ramp, "").excludes({"--accum"});
        list.training_options({"--gamma", "--token", "--shuffle", "--balance", "--coef"},
                              Another::refused);
        list.training_options({"--lr", "--ramp", "--mean"}, Another::told);
        list.training_options({"--accum"}, Another::allowed);
        words.insert(words.begin(), "program");
        std::vector<char*> argv;
        for (std::string& word : words) argv.push_back(word.data());
        EXPECT_TRUE(list.parse(int(argv.size()), argv.data()));
    }
};

TEST(OptionResume, RecordsWhatDiffersFromTheDefaults) {
    EXPECT_EQ(Program({}).list.texts_of_training(), OptionTexts());
    EXPECT_EQ(Program({"--lr", "1e-3"}).list.texts_of_training(), OptionTexts());
    EXPECT_EQ(Program({"--lr", "3e-3", "--shuffle", "--token", "10"}).list.texts_of_training(),
              (OptionTexts{{"--lr", "0.003"}, {"--shuffle", "true"}, {"--token", "10"}}));
}

TEST(OptionResume, TakesOverWhatIsNotGiven) {
    Program run({"--lr", "0.01"});
    const OptionTexts recorded{{"--gamma", "0.25"}, {"--balance", "bias"}, {"--shuffle", "true"},
                               {"--lr", "0.003"},   {"--coef", "0"},       {"--token", "10"}};
    EXPECT_EQ(run.list.resume(recorded, "DIR"),
              (Lines{"--lr 0.01 from here on; so far with --lr 0.003",
                     "as the run in DIR: --token 10 --shuffle --balance bias --coef 0 --gamma "
                     "0.25"}));
    run.list.check_effects();
    EXPECT_EQ(run.token, 10);
    EXPECT_TRUE(run.shuffle);
    EXPECT_EQ(run.balance, "bias");
    EXPECT_EQ(run.gamma, 0.25);
    EXPECT_EQ(run.coefficient, 0);
    EXPECT_EQ(run.lr, 0.01);
    // The checkpoints of the resumed run record the same options.
    OptionTexts now = recorded;
    now["--lr"] = "0.01";
    EXPECT_EQ(run.list.texts_of_training(), now);
    // An option may depend on one that was taken over.
    Program again({"--gamma", "0.25"});
    again.list.resume(recorded, "DIR");
    again.list.check_effects();
}

TEST(OptionResume, RefusesWhatContradicts) {
    const auto refuse = [](const Lines& words, const OptionTexts& recorded,
                           const std::string& message) {
        Program run(words);
        EXPECT_EQ(test::error_of([&] { run.list.resume(recorded, "DIR"); }), message);
    };
    refuse({"--token", "11"}, {{"--token", "10"}},
           "--token 11: the run in DIR goes on with --token 10");
    refuse({"--token", "11"}, {{"--lr", "1"}}, "--token 11: the run in DIR goes on without it");
    refuse({"--shuffle"}, {{"--lr", "1"}}, "--shuffle: the run in DIR goes on without it");
    refuse({"--balance", "bias"}, {{"--lr", "1"}},
           "--balance bias: the run in DIR goes on with --balance loss");
    Program before_its_first_step({"--token", "11"});
    EXPECT_EQ(before_its_first_step.list.resume({{"--token", "10"}}, "DIR", false), Lines());
    EXPECT_EQ(before_its_first_step.token, 11);
    Program same({"--token", "10", "--balance", "loss"});
    EXPECT_EQ(same.list.resume({{"--token", "10"}}, "DIR"), Lines());
}

// As on a command line, an option that was not given has no value in the recorded options.
TEST(OptionResume, TellsWhatIsOtherFromHereOn) {
    const auto told = [](const Lines& words, const OptionTexts& recorded) {
        return Program(words).list.resume(recorded, "DIR");
    };
    EXPECT_EQ(told({"--mean"}, {{"--lr", "0.002"}}),
              (Lines{"--mean from here on; so far without it", "as the run in DIR: --lr 0.002"}));
    EXPECT_EQ(told({"--ramp", "4:2,8"}, {{"--lr", "0"}}),
              (Lines{"--ramp 4:2,8 from here on; so far without it", "as the run in DIR: --lr 0"}));
    EXPECT_EQ(told({"--lr", "0.5"}, {{"--lr", "0"}}),
              Lines{"--lr 0.5 from here on; so far with --lr 0"});
}

// Another program's options, an option that has no effect, one that another excludes, a value that
// this program does not have: nothing is lost without a word.
TEST(OptionResume, NamesWhatDoesNotApply) {
    Program run({"--accum", "2"});
    EXPECT_EQ(run.list.resume({{"--accum", "3"},
                               {"--gamma", "0.25"},
                               {"--ramp", "4:2,8"},
                               {"--balance", "other"},
                               {"--sync", "x"}},
                              "DIR"),
              (Lines{"the run in DIR had --balance other --gamma 0.25 --ramp 4:2,8 --sync x; this "
                     "does not apply here"}));
    EXPECT_EQ(run.gamma, 0.5);
    EXPECT_EQ(run.ramp, "");
    EXPECT_EQ(run.balance, "loss");
}

}  // namespace
}  // namespace ultrascale
