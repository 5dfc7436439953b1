// JSON of files that may be wrong: no key twice, no endless nesting, and errors that name the file.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace ultrascale {

// The JSON object that `text` is. Throws UserError "PATH: the WHAT is not JSON ..." otherwise.
nlohmann::json parse_json_object(std::string_view text, const std::string& path, const char* what,
                                 int max_depth);

}  // namespace ultrascale
