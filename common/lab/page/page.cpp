#include "page.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include "comm/comm.h"
#include "core/memory.h"
#include "core/trace.h"
#include "files/file.h"
#include "lab/pictures/svg.h"

namespace ultrascale {
namespace {

using Json = nlohmann::ordered_json;

std::string template_file(const std::string& name) {
    // build/<backend>/<chapter> -> common/, as for the text that comes with the project
    const auto folder =
        std::filesystem::canonical("/proc/self/exe").parent_path() / "../../common/lab/page";
    return std::string(MappedFile((folder / name).lexically_normal()).text());
}

// `page` with the only occurrence of `mark` replaced.
void put(std::string& page, const std::string& mark, const std::string& text) {
    page.replace(page.find(mark), mark.size(), text);
}

// Numbers names in the order in which they are first asked for.
class Numbers {
public:
    int64_t of(const std::string& name) {
        const auto [found, is_new] = numbers_.try_emplace(name, int64_t(numbers_.size()));
        if (is_new) names_.push_back(name);
        return found->second;
    }
    const Json& names() const { return names_; }

private:
    std::map<std::string, int64_t> numbers_;
    Json names_ = Json::array();
};

double tenths(double value) { return std::round(10 * value) / 10; }

Json spans_between(double since, double until, double later) {
    constexpr size_t most = 20'000;
    std::vector<Span> spans;
    for (const Span& span : trace_spans())
        if (span.begin >= since && span.begin < until) spans.push_back(span);
    std::ranges::sort(spans, {}, &Span::begin);
    const size_t kept = std::min(spans.size(), most);
    Json rank = {{"left_out", spans.size() - kept}}, rows = Json::array();
    Numbers lanes, names;
    for (const Span& span : std::vector<Span>(spans.begin(), spans.begin() + int64_t(kept))) {
        const std::string group =
            span.ranks > 0 ? " (" + span.group + ", " + format_count(span.ranks, "rank") + ")" : "";
        rows.push_back({lanes.of(span.lane), names.of(full_name(span) + group),
                        tenths((span.begin + later) * 1e6), tenths((span.end - span.begin) * 1e6),
                        std::round(span.flops / 1e3) / 1e6, span.bytes, span.ranks});
    }
    rank["lanes"] = lanes.names(), rank["names"] = names.names(), rank["spans"] = rows;
    return rank;
}

Json memory_between(double since, double until, double later) {
    constexpr double most = 2000;
    std::map<int64_t, MemoryPoint> highest;
    for (const MemoryPoint& point : memory_timeline()) {
        if (point.seconds < since || point.seconds > until) continue;
        const auto part = int64_t(most * (point.seconds - since) / (until - since));
        const auto [found, is_new] = highest.try_emplace(part, point);
        if (!is_new && total(point.bytes) > total(found->second.bytes)) found->second = point;
    }
    Json points = Json::array();
    for (const auto& [part, point] : highest) {
        Json row = {tenths((point.seconds + later) * 1e6)};
        for (const int64_t bytes : point.bytes) row.push_back(bytes);
        points.push_back(row);
    }
    return points;
}

}  // namespace

void open_page(const std::string& path) {
    AtomicFile probe(path);  // fails now rather than after the training
    template_file("page.html");
    keep_pictures();
}

std::string page_timeline(double since, double until) {
    const Communicator& world = Communicator::world();
    const double later = world.clock_offsets()[size_t(world.rank())];
    Json mine = spans_between(since, until, later);
    mine["memory"] = memory_between(since, until, later);
    std::string all;
    for (const std::string& rank : world.gather_strings(mine.dump()))
        all += (all.empty() ? "" : ",\n") + rank;
    return "[" + all + "]";
}

void write_page(const std::string& path, const std::string& json_lines, const std::string& timeline,
                const std::string& formulas) {
    if (path.empty() || Communicator::world().rank() != 0) return;
    std::string lines = json_lines;
    if (!lines.empty()) lines.pop_back();  // the end of the last line
    for (size_t at = 0; (at = lines.find('\n', at)) != std::string::npos; at += 2)
        lines.replace(at, 1, ",\n");
    Json pictures = Json::array();
    for (const auto& [name, document] : kept_pictures())
        pictures.push_back({{"name", name}, {"svg", document}});
    std::string data =
        "{\"lines\":[" + lines + "],\n\"timeline\":" + timeline + ",\n\"formulas\":" + formulas +
        ",\n\"pictures\":" + pictures.dump(-1, ' ', false, Json::error_handler_t::replace) + "}";
    for (size_t at = 0; (at = data.find('<', at)) != std::string::npos;)
        data.replace(at, 1, "\\u003c");  // so no text can end the element that holds the data
    std::string page = template_file("page.html");
    put(page, "{{page.css}}", template_file("page.css"));
    put(page, "{{page.js}}",
        template_file("draw.js") + template_file("timeline.js") + template_file("memory.js") +
            template_file("page.js"));
    put(page, "{{data}}", data);
    write_file(path, page);
    fmt::print("\npage written to {} (open it in a browser)\n", path);
}

}  // namespace ultrascale
