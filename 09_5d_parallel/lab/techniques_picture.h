// --svg: draws techniques.svg, what a rank holds and sends according to --compare.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "core/memory.h"
#include "lab/pictures/charts.h"

namespace ultrascale::five_d {

class TechniquesPicture {
public:
    explicit TechniquesPicture(int ranks) : ranks_(ranks) {}
    // Adds a rank's bytes: held, peaks included; sent in a step.
    void add(const std::string& name, const MemoryByCategory& held, double sent) {
        bars_.push_back({name, held, sent});
    }
    void draw(const std::string& directory) const {
        if (!draws(directory)) return;
        constexpr double top = 118, pitch = 40, height = 24;
        double most_held = 0, most_sent = 0;
        std::string figures;
        for (const Bar& bar : bars_) {
            most_held = std::max(most_held, bar.total());
            most_sent = std::max(most_sent, bar.sent);
            figures += fmt::format("{}: holds {}, sends {}. ", bar.name, format_bytes(bar.total()),
                                   format_bytes(bar.sent));
        }
        Svg svg(980, top + pitch * double(bars_.size()) + 8,
                fmt::format("The same step by {}: what each rank holds and sends",
                            format_count(ranks_, "rank")),
                "Measured bars, stacked by category. " + figures);
        draw_legend(svg, 20, 52,
                    {{Role::parameters, "parameters"},
                     {Role::gradients, "gradients"},
                     {Role::optimizer, "optimizer states"},
                     {Role::activations, "activations"},
                     {Role::communication, "communication"}});
        const Axis held = {0, most_held, 230, 620}, sent = {0, most_sent, 750, 880};
        svg.text(held.begin, top - 14, "holds at most", {.bold = true});
        svg.text(sent.begin, top - 14, "sends in a step", {.bold = true});
        double y = top;
        for (const Bar& bar : bars_) {
            const bool begins = !bar.name.starts_with(" ");
            svg.text(begins ? 20 : 36, y + 17, bar.name, {.bold = begins});
            std::vector<Part> parts;
            for (const Memory category : shown)
                parts.push_back(
                    {role_of(category), double(bar.held[size_t(category)]),
                     fmt::format("{}, {}: {} bytes", bar.name, memory_names[size_t(category)],
                                 bar.held[size_t(category)])});
            const double right = draw_stacked_bar(svg, held, y, height, parts);
            svg.text(right + 8, y + 17, format_bytes(bar.total()));
            const double end =
                draw_stacked_bar(svg, sent, y, height,
                                 {{Role::communication, bar.sent,
                                   fmt::format("{}, sent: {:.0f} bytes", bar.name, bar.sent)}});
            svg.text(end + 8, y + 17, format_bytes(bar.sent));
            y += pitch;
        }
        write_picture(directory, "techniques.svg", svg);
    }

private:
    static constexpr Memory shown[] = {Memory::parameter, Memory::gradient, Memory::optimizer,
                                       Memory::activation, Memory::communication};
    struct Bar {
        std::string name;
        MemoryByCategory held;
        double sent;
        double total() const {
            double sum = 0;
            for (const Memory category : shown) sum += double(held[size_t(category)]);
            return sum;
        }
    };
    int ranks_;
    std::vector<Bar> bars_;
};

}  // namespace ultrascale::five_d
