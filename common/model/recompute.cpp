#include "recompute.h"

#include <fmt/format.h>

#include <charconv>

namespace ultrascale {

std::optional<Recompute> Recompute::parse(const std::string& text) {
    if (text == "none") return none;
    Recompute found;
    for (size_t at = 0; at <= text.size();) {
        const size_t end = std::min(text.find(',', at), text.size()), colon = text.find(':', at);
        const std::string kind = text.substr(at, std::min(colon, end) - at);
        if (kind != "full" && kind != "selective") return {};
        int64_t& layers = kind == "full" ? found.full_layers : found.selective_layers;
        if (layers > 0) return {};  // twice
        layers = all;
        if (colon < end) {
            const char *from = text.data() + colon + 1, *to = text.data() + end;
            const auto [stop, error] = std::from_chars(from, to, layers);
            if (error != std::errc() || stop != to || layers < 1 || layers >= all) return {};
        }
        at = end + 1;
    }
    if (found.full_layers == all && found.selective_layers > 0) return {};  // none are left for it
    return found;
}

std::string Recompute::text() const {
    std::string text;
    const auto add = [&](const char* kind, int64_t layers) {
        if (layers == 0) return;
        text += (text.empty() ? "" : ",") + std::string(kind);
        if (layers < all) text += fmt::format(":{}", layers);
    };
    add("full", full_layers), add("selective", selective_layers);
    return text.empty() ? "none" : text;
}

}  // namespace ultrascale
