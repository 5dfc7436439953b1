#include "option_list.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>

#include "error.h"

namespace ultrascale {

// An integer of int64_t as one writes it: CLI11 would take 010 for 8.
static bool is_decimal(const std::string& text) {
    int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    return error == std::errc() && fmt::format("{}", value) == text;
}

// Unlike CLI::Range it refuses NaN, and says so where a whole number is wanted.
OneOption OneOption::between(double least, double most) const {
    const bool whole = option_->get_type_name().find("INT") != std::string::npos;  // INT, UINT
    option_->check(CLI::Validator(
        [=](std::string& text) -> std::string {
            double value = 0;
            const bool ok = CLI::detail::lexical_cast(text, value) && value >= least && value <= most && (!whole || is_decimal(text));
            return ok ? "" : fmt::format("{} is not a {} between {} and {}", text, whole ? "whole number" : "number", least, most);
        },
        most == largest ? fmt::format("at least {:.10g}", least) : fmt::format("{:.10g} to {:.10g}", least, most)));
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
OneOption OneOption::show_default() const {
    option_->capture_default_str();
    return *this;
}

OptionList::OptionList(const std::string& program, const std::string& description)
    : app_(std::make_unique<CLI::App>(description, program)) {
    app_->option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
}
OptionList::~OptionList() = default;

bool OptionList::parse(int argc, char** argv) {
    try {
        app_->parse(argc, argv);
        return true;
    } catch (const CLI::CallForHelp&) {
        return false;
    } catch (const CLI::ParseError& error) {
        std::string text = error.what();
        std::ranges::replace(text, '\n', ' ');
        user_error("{}; --help lists the options", text);
    }
}
std::string OptionList::help() const { return app_->help(); }

template <class T>
OneOption OptionList::add(const std::string& name, T& value, const std::string& what) {
    CLI::Option* const option = app_->add_option(name, value, what);
    if constexpr (std::is_same_v<T, std::string>)  // --load "$UNSET" is not a run without --load
        option->check(CLI::Validator([](std::string& text) { return std::string(text.empty() ? "is empty" : ""); }, ""));
    return OneOption(option);
}
template OneOption OptionList::add(const std::string&, int&, const std::string&);
template OneOption OptionList::add(const std::string&, int64_t&, const std::string&);
template OneOption OptionList::add(const std::string&, uint64_t&, const std::string&);
template OneOption OptionList::add(const std::string&, double&, const std::string&);
template OneOption OptionList::add(const std::string&, std::string&, const std::string&);
template OneOption OptionList::add(const std::string&, std::vector<int>&, const std::string&);
template OneOption OptionList::add(const std::string&, std::vector<int64_t>&, const std::string&);
template OneOption OptionList::add(const std::string&, std::vector<std::string>&, const std::string&);

OneOption OptionList::flag(const std::string& name, bool& value, const std::string& what) {
    return OneOption(app_->add_flag(name, value, what));
}
OneOption OptionList::flag(const std::string& name, const std::function<void(bool)>& set, const std::string& what) {
    return OneOption(app_->add_flag_function(
                             name, [set](int64_t on) { set(on > 0); }, what)
                         ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast));
}

OneOption OptionList::choice(const std::string& name, const std::vector<std::string>& words, const std::string& now,
                             const std::function<void(const std::string&)>& set, const std::string& what) {
    return OneOption(app_->add_option_function<std::string>(name, set, what)->check(CLI::IsMember(words))->default_str(now));
}

}  // namespace ultrascale
