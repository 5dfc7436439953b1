// A program's options, to which each chapter adds its own. It wraps CLI11, whose header would add
// seconds to the compilation of every file that includes it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "lab/report/json_lines.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace ultrascale {

// One option and its rules:
//
//     options.add("--chunks", chunks, "Parts of a GEMM").between(2, 64).show_default();
class OneOption {
public:
    OneOption between(double least, double most) const;  // a number in [least, most], not NaN
    OneOption at_least(double least) const { return between(least, largest); }
    OneOption one_of(const std::vector<std::string>& words) const;
    OneOption split_at(char delimiter) const;       // --size 1024,1024
    OneOption needs(const OneOption& other) const;  // an error without the other one
    OneOption excludes(
        const std::vector<std::string>& others) const;  // an error together with any of them
    OneOption show_default() const;  // in --help: the value when the option was added
    // If the option is given but `condition` does not hold once all options are read, it would be
    // ignored. That is an error: "--name has no effect: reason".
    OneOption only_if(std::function<bool()> condition, std::string reason) const;
    // The option selects a mode of the program, like --estimate, that reads only these options, or
    // all but these. Any other given option is an error: "--seed has no effect with --estimate:
    // reason". `when`: the rule holds only if this is true once all options are read.
    OneOption reads(std::vector<std::string> names, std::string reason,
                    std::function<bool()> when = {}) const;
    OneOption ignores(std::vector<std::string> names, std::string reason,
                      std::function<bool()> when = {}) const;

    struct Rule {
        CLI::Option* option;
        std::function<bool()> condition;
        std::string reason;
    };
    struct Mode {
        CLI::Option* option;
        bool reads;  // it reads these names; else all but these
        std::vector<std::string> names;
        std::string reason;
        std::function<bool()> when;
    };
    struct Rules {
        std::vector<Rule> conditions;
        std::vector<Mode> modes;
    };
    OneOption(CLI::Option* option, Rules* rules) : option_(option), rules_(rules) {}

    static constexpr double largest = double(int64_t(1) << 40);  // the upper limit of counts

private:
    CLI::Option* option_;
    Rules* rules_;
};

// How an option is treated whose value differs from that of the resumed run: it is refused;
// accepted with a note; accepted without a note (how a batch is cut).
enum class Another { refused, told, allowed };

// Options by name, with their values as on a command line; "true" for a flag.
using OptionTexts = std::map<std::string, std::string>;

// Cuts the line at spaces, or in a list after commas, into lines of at most 100 columns; all but
// the first are indented.
std::string wrapped(std::string line, size_t indent = 6);

class OptionList {
public:
    OptionList(const std::string& program, const std::string& description);  // has --help
    ~OptionList();

    // Reads the command line into the values. Returns false if it asks for --help. Throws UserError
    // for an unknown option or an invalid value. If an option is given twice, the last value
    // counts.
    bool parse(int argc, char** argv);
    // Declares options that change what a training computes: a checkpoint records them, and a run
    // that resumes has the same values without being told again.
    void training_options(const std::vector<std::string>& names, Another another);
    // Takes over what the run in `dir` recorded, for options that are not on the command line.
    // Throws UserError if the command line contradicts it. Returns notes for the user. `begun`: the
    // run has done a step; before that nothing contradicts it.
    std::vector<std::string> resume(const OptionTexts& recorded, const std::string& dir,
                                    bool begun = true);
    bool given(const std::string& name) const;  // on the command line
    // Throws UserError if an option was given that would have no effect (only_if, reads, ignores).
    void check_effects() const;
    // The options that a checkpoint records: those of training that differ from their defaults.
    OptionTexts texts_of_training() const;
    // An option that was added before, to give it more rules.
    OneOption option(const std::string& name);
    std::vector<std::string> names() const;  // of all: "--model", ...
    std::vector<std::string> given() const;  // of those on the command line
    std::string help() const;                // no line is longer than 100 columns
    JsonFields values() const;               // the present values of all options

    // --name VALUE. If the option is not given, the value stays as it is. T: int, int64_t,
    // uint64_t, double, std::string, or a std::vector of int, int64_t or std::string.
    template <class T>
    OneOption add(const std::string& name, T& value, const std::string& what);
    // --name. "--verify,!--no-verify" defines both; `set` is called if either is given.
    OneOption flag(const std::string& name, bool& value, const std::string& what);
    OneOption flag(const std::string& name, const std::function<void(bool)>& set,
                   const std::string& what);
    // --name TEXT, for `read`, which throws UserError if the text means nothing; `now`: what was
    // read, or the default.
    OneOption text(const std::string& name, const std::function<void(const std::string&)>& read,
                   const std::function<std::string()>& now, const std::string& what);
    // Adds options that have no effect unless `condition` holds: only_if() applies to all options
    // that `add` adds, before rules of their own.
    void only_if(const std::function<bool()>& condition, const std::string& reason,
                 const std::function<void()>& add);
    // Declares that an option that was added before never has an effect.
    void has_no_effect(const std::string& name, const std::string& reason);
    // --name ONE|OF|THESE, each with its meaning. --help shows the current `value` as the default.
    template <class T>
    OneOption choice(const std::string& name, T& value,
                     const std::map<std::string, std::type_identity_t<T>>& meanings,
                     const std::string& what) {
        std::string now;
        std::vector<std::string> words;
        for (const auto& [word, meaning] : meanings) {
            words.push_back(word);
            if (meaning == value) now = word;
        }
        values_.emplace_back(name, [&value, meanings]() -> JsonValue {
            for (const auto& [word, meaning] : meanings)
                if (meaning == value) return word;
            return std::string();
        });
        return choice(
            name, words, now,
            [&value, meanings](const std::string& word) { value = meanings.at(word); }, what);
    }

private:
    OneOption choice(const std::string& name, const std::vector<std::string>& words,
                     const std::string& now, const std::function<void(const std::string&)>& set,
                     const std::string& what);
    OneOption one(CLI::Option* option) { return OneOption(option, &rules_); }
    bool has_effect(const CLI::Option* option) const;
    [[noreturn]] void refuse_unexpected(const std::vector<std::string>& words) const;
    std::unique_ptr<CLI::App> app_;
    OneOption::Rules rules_;
    std::vector<std::pair<CLI::Option*, Another>> training_options_;
    std::vector<const CLI::Option*> taken_over_;  // by resume()
    JsonFields defaults_;
    std::vector<std::pair<std::string, std::function<JsonValue()>>> values_;
};

}  // namespace ultrascale
