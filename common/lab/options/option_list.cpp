#include "option_list.h"

#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <ranges>
#include <sstream>
#include <utility>

#include "core/error.h"
#include "other_chapters.h"

namespace ultrascale {

// The exit codes of error.h: Exit. The README shows the same lines.
static const char* const exit_codes = R"(
Exit codes:
  0   all is well
  1   --verify or a prediction missed
  2   wrong input: an option, a file, a size; too little memory, a full disk
  3   a bug in the program
  4   a rank died, or a link between ranks failed
  5   a loss, a gradient norm or weights are not finite
  6   --plan found no layout that divides the model and fits
  85  SIGTERM or SIGUSR1 stopped the run; what --save has written resumes
)";

// Whether the text is a plain decimal int64_t: CLI11 would read 010 as 8.
static bool is_decimal(const std::string& text) {
    int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    return error == std::errc() && fmt::format("{}", value) == text;
}

// Unlike CLI::Range it refuses NaN, and its message says whether a whole number is needed.
OneOption OneOption::between(double least, double most) const {
    const bool whole = option_->get_type_name().find("INT") != std::string::npos;  // INT, UINT
    const auto range = [=](const char* from, const char* between, const char* and_) {
        if (most >= largest) return fmt::format("{} {:.10g}", from, least);
        return fmt::format("{}{}{:.10g} {} {:.10g}", between, *between ? " " : "", least, and_,
                           most);
    };
    option_->check(CLI::Validator(
        [=](std::string& text) -> std::string {
            double value = 0;
            const bool ok = CLI::detail::lexical_cast(text, value) && value >= least &&
                            value <= most && (!whole || is_decimal(text));
            const char* kind = whole ? "whole number" : "number";
            if (ok) return "";
            if (most >= largest && value > most)
                return fmt::format("{} is more than {:.0f}, the most that is counted", text, most);
            return fmt::format("{} is not a {} {}", text, kind,
                               range("of at least", "between", "and"));
        },
        range("at least", "", "to")));
    return *this;
}

OneOption OneOption::one_of(const std::vector<std::string>& words) const {
    option_->check(CLI::IsMember(words));
    return *this;
}
OneOption OneOption::split_at(char delimiter) const {
    option_->delimiter(delimiter);
    return *this;
}
OneOption OneOption::needs(const OneOption& other) const {
    option_->needs(other.option_);
    return *this;
}
OneOption OneOption::excludes(const std::vector<std::string>& others) const {
    for (const std::string& other : others) option_->excludes(other);
    return *this;
}
OneOption OneOption::only_if(std::function<bool()> condition, std::string reason) const {
    rules_->conditions.push_back({option_, std::move(condition), std::move(reason)});
    return *this;
}
OneOption OneOption::reads(std::vector<std::string> names, std::string reason,
                           std::function<bool()> when) const {
    rules_->modes.push_back({option_, true, std::move(names), std::move(reason), std::move(when)});
    return *this;
}
OneOption OneOption::ignores(std::vector<std::string> names, std::string reason,
                             std::function<bool()> when) const {
    rules_->modes.push_back({option_, false, std::move(names), std::move(reason), std::move(when)});
    return *this;
}
OneOption OneOption::show_default() const {
    option_->capture_default_str();
    return *this;
}

OptionList::OptionList(const std::string& program, const std::string& description)
    : app_(std::make_unique<CLI::App>(description, program)) {
    app_->option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
}
OptionList::~OptionList() = default;

void OptionList::only_if(const std::function<bool()>& condition, const std::string& reason,
                         const std::function<void()>& add) {
    std::vector<OneOption::Rule>& all = rules_.conditions;
    const size_t options = app_->get_options().size(), rules = all.size();
    add();
    std::vector<OneOption::Rule> more;
    for (CLI::Option* option : app_->get_options() | std::views::drop(options))
        more.push_back({option, condition, reason});
    all.insert(all.begin() + int64_t(rules), more.begin(), more.end());
}

bool OptionList::parse(int argc, char** argv) {
    defaults_ = values();
    try {
        app_->parse(argc, argv);
    } catch (const CLI::CallForHelp&) {
        return false;
    } catch (const CLI::ExtrasError&) {
        const std::vector<std::string> unexpected = app_->remaining();
        std::vector<std::string> in_order;
        for (int i = 1; i < argc; ++i)
            if (std::ranges::count(unexpected, argv[i])) in_order.push_back(argv[i]);
        refuse_unexpected(in_order.empty() ? unexpected : in_order);
    } catch (const CLI::ParseError& error) {
        std::string text = error.what();
        std::ranges::replace(text, '\n', ' ');
        user_error("{}; --help lists the options", text);
    }
    return true;
}

OneOption OptionList::option(const std::string& name) { return one(app_->get_option(name)); }
std::vector<std::string> OptionList::names() const {
    std::vector<std::string> names;
    for (const CLI::Option* option : app_->get_options()) names.push_back(option->get_name());
    return names;
}
std::vector<std::string> OptionList::given() const {
    std::vector<std::string> given_names = names();
    std::erase_if(given_names, [&](const std::string& name) { return !given(name); });
    return given_names;
}

bool OptionList::given(const std::string& name) const {
    const CLI::Option* const option = app_->get_option(name);
    return option->count() > 0 && !std::ranges::count(taken_over_, option);
}
void OptionList::check_effects() const {
    for (const OneOption::Mode& mode : rules_.modes) {
        const std::string name = mode.option->get_name();
        if (!given(name) || (mode.when && !mode.when())) continue;
        for (const std::string& other : given())
            if (other != name && mode.reads != (std::ranges::count(mode.names, other) > 0))
                user_error("{} has no effect with {}: {}", other, name, mode.reason);
    }
    for (const auto& [option, condition, reason] : rules_.conditions)
        if (given(option->get_name()) && !condition())
            user_error("{} has no effect: {}", option->get_name(), reason);
}
void OptionList::has_no_effect(const std::string& name, const std::string& reason) {
    rules_.conditions.push_back({app_->get_option(name), [] { return false; }, reason});
}
bool OptionList::has_effect(const CLI::Option* option) const {
    return std::ranges::all_of(rules_.conditions, [&](const OneOption::Rule& rule) {
        return rule.option != option || rule.condition();
    });
}

// The number of characters to insert, remove or replace to turn one word into the other
// (Levenshtein distance).
static size_t distance(const std::string& a, const std::string& b) {
    std::vector<size_t> row(b.size() + 1);
    for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
    for (size_t i = 1; i <= a.size(); ++i) {
        size_t diagonal = std::exchange(row[0], i);
        for (size_t j = 1; j <= b.size(); ++j)
            diagonal = std::exchange(
                row[j], std::min({row[j] + 1, row[j - 1] + 1, diagonal + (a[i - 1] != b[j - 1])}));
    }
    return row.back();
}

// "--stag 3 is not expected; did you mean --stage?"
// Options that have another name than in earlier versions.
static constexpr std::pair<const char*, const char*> renamed[] = {{"--tails", "--bidirectional"}};

// Why a chapter that has the second option does not have the first.
static constexpr const char* impossible[][3] = {
    {"--optimizer", "--tp",
     "Muon needs whole matrices, and tensor parallelism would have to gather them"}};

void OptionList::refuse_unexpected(const std::vector<std::string>& words) const {
    std::string all, hints;
    for (const std::string& word : words) {
        all += (all.empty() ? "" : " ") + word;
        const std::string name = word.substr(0, word.find('='));
        if (!name.starts_with("--")) continue;
        const std::string owners = chapters_with_option(name);
        std::string nearest;
        for (const CLI::Option* option : app_->get_options())
            for (const std::string& known : option->get_lnames())
                if (nearest.empty() || distance("--" + known, name) < distance(nearest, name))
                    nearest = "--" + known;
        const auto former = std::ranges::find(renamed, name, [](const auto& r) { return r.first; });
        if (former != std::end(renamed))
            hints += fmt::format("; {} is called {} now", name, former->second);
        else if (!owners.empty()) {
            hints += fmt::format("; {} is an option of {}", name, owners);
            for (const auto& [option, given, reason] : impossible)
                if (name == option && app_->get_option_no_throw(given))
                    hints += fmt::format(": {}", reason);
        } else if (distance(nearest, name) <= std::max<size_t>(2, name.size() / 3))
            hints += fmt::format("; did you mean {}?", nearest);
    }
    user_error("{}: not expected{}{} --help lists the options", all, hints,
               hints.ends_with('?') ? "" : ";");
}

std::string wrapped(std::string line, size_t indent) {
    constexpr size_t widest = 100;
    std::string text;
    while (line.size() > widest) {
        size_t end = line.rfind(' ', widest), next = end + 1;
        if (end == std::string::npos || end <= indent)  // a list of words, or one long word
            end = next = line.rfind(',', widest - 1) + 1;
        if (end <= indent) end = line.find(' ', widest), next = end + 1;
        if (end == std::string::npos) break;
        text += line.substr(0, end) + "\n";
        line = std::string(indent, ' ') + line.substr(next);
    }
    return text + line;
}

std::string OptionList::help() const {
    constexpr size_t description_column = 30;
    std::istringstream lines(app_->help());
    std::string text;
    for (std::string line; std::getline(lines, line);)
        text += wrapped(line, line.starts_with("  ") ? description_column : 0) + "\n";
    return text + exit_codes;
}

JsonFields OptionList::values() const {
    JsonFields all;
    for (const auto& [name, value] : values_) all.emplace_back(name, value());
    return all;
}

template <class T>
OneOption OptionList::add(const std::string& name, T& value, const std::string& what) {
    CLI::Option* const option = app_->add_option(name, value, what);
    values_.emplace_back(name, [&value]() -> JsonValue {
        if constexpr (std::is_same_v<T, double> || std::is_same_v<T, std::string>)
            return value;
        else if constexpr (std::is_integral_v<T>)
            return int64_t(value);
        else
            return fmt::format("{}", fmt::join(value, ","));
    });
    if constexpr (std::is_same_v<T, std::string>)  // --load "$UNSET" must not run as if without
                                                   // --load
        option->check(CLI::Validator(
            [](std::string& text) { return std::string(text.empty() ? "is empty" : ""); }, ""));
    return one(option);
}
template OneOption OptionList::add(const std::string&, int&, const std::string&);
template OneOption OptionList::add(const std::string&, int64_t&, const std::string&);
template OneOption OptionList::add(const std::string&, uint64_t&, const std::string&);
template OneOption OptionList::add(const std::string&, double&, const std::string&);
template OneOption OptionList::add(const std::string&, std::string&, const std::string&);
template OneOption OptionList::add(const std::string&, std::vector<int>&, const std::string&);
template OneOption OptionList::add(const std::string&, std::vector<int64_t>&, const std::string&);
template OneOption OptionList::add(const std::string&, std::vector<std::string>&,
                                   const std::string&);

OneOption OptionList::flag(const std::string& name, bool& value, const std::string& what) {
    values_.emplace_back(name, [&value]() -> JsonValue { return value; });
    return one(app_->add_flag(name, value, what));
}
OneOption OptionList::flag(const std::string& name, const std::function<void(bool)>& set,
                           const std::string& what) {
    return one(app_->add_flag_function(
                       name, [set](int64_t on) { set(on > 0); }, what)
                   ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast));
}

OneOption OptionList::text(const std::string& name,
                           const std::function<void(const std::string&)>& read,
                           const std::function<std::string()>& now, const std::string& what) {
    values_.emplace_back(name, [now]() -> JsonValue { return now(); });
    return one(app_->add_option_function<std::string>(name, read, what)->default_str(now()));
}

OneOption OptionList::choice(const std::string& name, const std::vector<std::string>& words,
                             const std::string& now,
                             const std::function<void(const std::string&)>& set,
                             const std::string& what) {
    return one(app_->add_option_function<std::string>(name, set, what)
                   ->check(CLI::IsMember(words))
                   ->default_str(now));
}

}  // namespace ultrascale
