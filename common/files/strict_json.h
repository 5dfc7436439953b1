// Parses JSON from files that may be invalid: duplicate keys and deep nesting are refused, and
// errors name the file.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace ultrascale {

// Parses `text` as a JSON object, or throws UserError "PATH: the WHAT is not JSON ...".
nlohmann::json parse_json_object(std::string_view text, const std::string& path, const char* what,
                                 int max_depth);

}  // namespace ultrascale
