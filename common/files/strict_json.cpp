#include "strict_json.h"

#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "core/error.h"
#include "file.h"

namespace ultrascale {

using json = nlohmann::json;

json parse_json_object(std::string_view text, const std::string& path, const char* what,
                       int max_depth) {
    std::vector<std::set<std::string>> keys;  // of the currently open objects
    auto watch = [&](int depth, json::parse_event_t event, json& parsed) {
        if (depth > max_depth) user_error("{}: the {} is nested too deeply", path, what);
        if (event == json::parse_event_t::object_start) keys.emplace_back();
        if (event == json::parse_event_t::object_end) keys.pop_back();
        if (event == json::parse_event_t::key &&
            !keys.back().insert(parsed.get<std::string>()).second)
            user_error("{}: the {} names \"{}\" twice", path, what,
                       printable(parsed.get<std::string>()));
        return true;
    };
    json value;
    try {
        value = json::parse(text, watch);
    } catch (const json::parse_error& e) {
        user_error("{}: the {} is not JSON (wrong from byte {} on)", path, what, e.byte);
    } catch (const json::exception&) {
        user_error("{}: the {} is not JSON (a number is out of range)", path, what);
    }
    if (!value.is_object()) user_error("{}: the {} is not a JSON object", path, what);
    return value;
}

}  // namespace ultrascale
