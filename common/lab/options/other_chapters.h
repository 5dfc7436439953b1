// The options that only some chapters have, for the error message when one is given to another
// chapter.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <utility>

namespace ultrascale {

// "02_zero" for "--stage"; "00_single_gpu and 01_data_parallel" if several have it; "" if none or
// every chapter has it. After adding an option: `make options`.
inline std::string chapters_with_option(std::string_view name) {
    static constexpr std::pair<const char*, const char*> table[] = {
#include "other_chapters.inc"
    };
    for (const auto& [options, chapters] : table)
        if (fmt::format(" {} ", options).find(fmt::format(" {} ", name)) != std::string::npos)
            return chapters;
    return "";
}

}  // namespace ultrascale
