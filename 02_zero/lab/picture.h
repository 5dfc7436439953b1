// --svg: draws stages.svg, what a rank holds and sends according to --compare.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "lab/pictures/charts.h"
#include "lab/predict/prediction.h"

namespace ultrascale::zero {

class StagesPicture {
public:
    // `measured`: what the rank held and sent. `gathered`: the most whole parameters and gradients
    // that it held for a while, in bytes.
    void add(const std::string& name, MemoryByCategory measured, int64_t gathered, double sent,
             const MemoryEstimate& predicted) {
        measured[int(Memory::communication)] = gathered;
        measured[int(Memory::activation)] = measured[int(Memory::workspace)] =
            0;  // always the same
        bars_.push_back({name, measured,
                         double(predicted.parameters + predicted.gradients + predicted.optimizer +
                                predicted.peak_communication),
                         sent});
    }

    void draw(const std::string& directory, int64_t ranks) const {
        if (!draws(directory)) return;
        constexpr double top = 124, pitch = 52, height = 30;
        double most_held = 0, most_sent = 0;
        for (const Bar& bar : bars_) {
            most_held = std::max({most_held, double(total(bar.held)), bar.predicted});
            most_sent = std::max(most_sent, bar.sent);
        }
        std::string figures;
        for (const Bar& bar : bars_)
            figures += fmt::format("{}: holds {}, sends {}. ", bar.name,
                                   format_bytes(double(total(bar.held))), format_bytes(bar.sent));
        const double bottom = top + pitch * double(bars_.size());
        Svg svg(
            900, bottom + 12,
            fmt::format("ZeRO on {}: what each rank holds and sends", format_count(ranks, "rank")),
            "Measured bars, stacked by category, with the predicted total marked. " + figures);
        svg.text(20, 52,
                 "Each stage shards one thing more, so a rank holds less. Stage 3 sends most: it "
                 "gathers "
                 "parameters that it does not keep.",
                 {.size = 13});
        const double end =
            draw_legend(svg, 20, 66,
                        {{Role::parameters, "parameters"},
                         {Role::gradients, "gradients"},
                         {Role::optimizer, "optimizer states"},
                         {Role::communication, "communication (gathered for a while)"}});
        draw_mark(svg, end + 4, 63, 20);
        svg.text(end + 14, 78, "predicted total", {.size = 13});
        const Axis held = {0, most_held, 100, 500}, sent = {0, most_sent, 690, 800};
        svg.text(held.begin, top - 14, "holds, beside activations", {.bold = true});
        svg.text(sent.begin, top - 14, "sends in a step", {.bold = true});
        double y = top;
        for (const Bar& bar : bars_) {
            const double bytes = double(total(bar.held)),
                         percent_of_first = 100 * bytes / double(total(bars_[0].held));
            svg.text(20, y + 20, bar.name, {.bold = true});
            std::vector<Part> parts;
            for (int c = 0; c < int(Memory::host); ++c)
                parts.push_back({role_of(Memory(c)), double(bar.held[size_t(c)]),
                                 fmt::format("{}, {}: {} bytes", bar.name, memory_names[size_t(c)],
                                             bar.held[size_t(c)])});
            const double right = draw_stacked_bar(svg, held, y, height, parts);
            draw_mark(svg, held(bar.predicted), y - 6, height + 12);
            std::string words = format_bytes(bytes);
            if (&bar != &bars_[0]) words += fmt::format(", {:.0f} %", percent_of_first);
            if (const int64_t host = bar.held[int(Memory::host)])
                words += fmt::format(", host {}", format_bytes(double(host)));
            svg.text(std::max(right, held(bar.predicted)) + 12, y + 20, words);
            const double sent_end =
                draw_stacked_bar(svg, sent, y, height,
                                 {{Role::communication, bar.sent,
                                   fmt::format("{}, sent: {:.0f} bytes", bar.name, bar.sent)}});
            svg.text(sent_end + 8, y + 20, format_bytes(bar.sent));
            y += pitch;
        }
        svg.line({sent.begin, top - 6}, {sent.begin, y - 12});
        svg.line({held.begin, top - 6}, {held.begin, y - 12});
        write_picture(directory, "stages.svg", svg);
    }

private:
    struct Bar {
        std::string name;
        MemoryByCategory held;   // what is on the host is drawn beside the bar
        double predicted, sent;  // bytes; predicted: held on the device
    };
    static void draw_mark(Svg& svg, double x, double y, double height) {
        svg.line({x, y}, {x, y + height}, {.width = 3});
    }
    std::vector<Bar> bars_;
};

}  // namespace ultrascale::zero
