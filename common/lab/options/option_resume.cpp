// A resumed run's options: those it takes over from the run so far.
#include <CLI/CLI.hpp>
#include <algorithm>

#include "core/error.h"
#include "files/file.h"
#include "option_list.h"

namespace ultrascale {

static std::string text_of(const JsonValue& value) {
    return std::visit([](const auto& plain) { return fmt::format("{}", plain); }, value);
}
static std::string text_of(const JsonFields& values, const std::string& name) {
    const auto found = std::ranges::find(values, name, &JsonFields::value_type::first);
    return found == values.end() ? "" : text_of(found->second);
}

void OptionList::training_options(const std::vector<std::string>& names, Another another) {
    for (const std::string& name : names)
        training_options_.emplace_back(app_->get_option(name), another);
}

OptionTexts OptionList::texts_of_training() const {
    OptionTexts texts;
    const JsonFields now = values();
    for (const auto& [option, another] : training_options_) {
        const std::string name = option->get_name(), text = text_of(now, name);
        if (text != text_of(defaults_, name)) texts[name] = text;
    }
    return texts;
}

std::vector<std::string> OptionList::resume(const OptionTexts& recorded, const std::string& dir,
                                            bool begun) {
    std::vector<std::string> notes;
    OptionTexts lost = recorded;  // the options that this program does not have
    std::string same;
    const auto word = [](const std::string& name, const std::string& text) {
        return " " + printable(name) + (text == "true" ? "" : " " + printable(text));
    };
    const auto with = [&](const std::string& name, const std::string& then) {
        const bool none = then.empty() || then == "false" || then == "0" || then == "-1";
        return none && then == text_of(defaults_, name) ? "without it" : "with" + word(name, then);
    };
    const auto is_given = [&](const CLI::Option* option) { return given(option->get_name()); };
    const auto take_over = [&](CLI::Option* option, const std::string& text) {
        const std::string name = option->get_name();
        if (!has_effect(option) || std::ranges::any_of(option->get_excludes(), is_given)) {
            lost[name] = text;
            return;
        }
        try {
            option->add_result(text);
            option->run_callback();
        } catch (const CLI::ParseError&) {  // a value that this program does not have
            option->clear();
            lost[name] = text;
            return;
        }
        taken_over_.push_back(option);
        same += word(name, text);
    };
    // Options with rules come last: --gamma has an effect once --balance bias is taken over.
    std::ranges::stable_partition(training_options_, [&](const auto& of) {
        return !std::ranges::count(rules_.conditions, of.first, &OneOption::Rule::option);
    });
    for (const auto& [option, another] : training_options_) {
        const std::string name = option->get_name(), now = text_of(values(), name);
        const auto found = recorded.find(name);
        const std::string then = found == recorded.end() ? text_of(defaults_, name) : found->second;
        lost.erase(name);
        if (then == now) continue;
        if (!given(name)) {
            take_over(option, then);
        } else if (!begun) {
            continue;
        } else if (another == Another::refused) {
            user_error("{}: the run in {} goes on {}", word(name, now).substr(1), dir,
                       with(name, then));
        } else if (another == Another::told) {
            notes.push_back(fmt::format("{} from here on; so far {}", word(name, now).substr(1),
                                        with(name, then)));
        }
    }
    if (!same.empty()) notes.push_back(fmt::format("as the run in {}:{}", dir, same));
    std::string words;
    for (const auto& [name, text] : lost) words += word(name, text);
    if (!words.empty())
        notes.push_back(fmt::format("the run in {} had{}; this does not apply here", dir, words));
    return notes;
}

}  // namespace ultrascale
