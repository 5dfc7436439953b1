// An option that is a choice among names: --dtype fp32|bf16.
#pragma once

#include <CLI/CLI.hpp>
#include <map>
#include <string>
#include <type_traits>

namespace ultrascale {

// CLI11 lists the names in --help and in its error. The default, which --help shows, is what `value` holds now.
template <class T>
CLI::Option* add_choice(CLI::App& app, const std::string& flag, T& value, const std::map<std::string, std::type_identity_t<T>>& names,
                        const std::string& what) {
    std::string now;
    for (const auto& [name, meaning] : names)
        if (meaning == value) now = name;
    return app.add_option(flag, value, what)->transform(CLI::CheckedTransformer(names))->default_str(now);
}

}  // namespace ultrascale
