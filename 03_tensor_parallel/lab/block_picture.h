// --svg: block.svg, the playbook's picture of a layer under tensor (and sequence) parallelism, with
// the shapes that rank 0 recorded (shapes.h) and the bytes that it counted
// (common/lab/measure/layer_communication.h).
#pragma once

#include <fmt/format.h>

#include <string>

#include "../tensor_options.h"
#include "lab/measure/layer_communication.h"
#include "lab/pictures/charts.h"
#include "shapes.h"

namespace ultrascale::tensor_parallel {

class BlockPicture {
public:
    BlockPicture(const ShapeTable& shapes, const LayerCommunication& sent, const TensorOptions& o,
                 int64_t tokens)
        : shapes_(shapes), sent_(sent), options_(o), tokens_(tokens) {}

    void draw(const std::string& directory) {
        const bool sp = options_.sequence_parallel;
        Svg svg(900, 508,
                fmt::format("A layer on {} ranks: {}", options_.tp,
                            sp ? "tensor and sequence parallelism" : "tensor parallelism"),
                "The layer's attention and its feed-forward part from left to right: a region with "
                "whole rows, communication, the tensor-parallel region, communication. "
                "In forward " +
                    sent_.in_words(0) + "; in backward " + sent_.in_words(1));
        svg.text(20, 52,
                 fmt::format("What rank 0 had in forward, in (tokens, features). A micro-batch has "
                             "{} tokens.",
                             tokens_),
                 {.size = 13});
        draw_legend(svg, 20, 66,
                    {{rows_, sp ? fmt::format("sequence-parallel: 1/{} of the tokens", options_.tp)
                                : "the same on every rank"},
                     {columns_, fmt::format("tensor-parallel: all tokens, 1/{} of heads and "
                                            "features",
                                            options_.tp)},
                     {Role::communication, "communication"}});
        draw_half(svg, 104, "Attention", {"self_attn.q_proj", "q, k, v"}, "attention",
                  {"self_attn.o_proj", "o"});
        draw_half(svg, 278, "Feed-forward", {"mlp.gate_proj", "gate, up"}, "SwiGLU",
                  {"mlp.down_proj", "down"});
        const char* first = sp ? "g" : "f";
        svg.text(20, 452,
                 fmt::format("Each of {0} and {0}* is the other's backward. Rank 0 counted in this "
                             "layer, in bytes of whole tensors:",
                             first),
                 {.size = 13});
        for (int pass = 0; pass < 2; ++pass) {
            svg.text(20, 474 + 20 * pass, pass == 0 ? "forward" : "backward", {.size = 13});
            svg.text(94, 474 + 20 * pass, sent_.in_words(pass), {.size = 13});
        }
        write_picture(directory, "block.svg", svg);
    }

private:
    struct Part {
        std::string region, name;  // as the shapes are recorded, and as they are called here
    };
    // From the norm to the residual sum.
    void draw_half(Svg& svg, double top, const std::string& name, const Part& in,
                   const std::string& core, const Part& out) {
        constexpr double height = 100, gap = 13, rows = 112, calls = 110, columns = 112;
        const double y = top + 34, middle = y + height / 2;
        svg.text(20, top + 14, name, {.size = 15, .bold = true});
        double x = 36;
        const auto next = [&](double width) {
            x += width;
            return Box{x - width, y, width, height};
        };
        const auto on = [&] {
            svg.arrow({{x, middle}, {x + gap, middle}});
            x += gap;
        };
        svg.arrow({{x - 26, middle}, {x, middle}});
        put(svg, next(rows), rows_, "RMSNorm", in.region, "norm's output");
        on();
        collective(svg, next(calls), true);
        on();
        const double inside = x;
        put(svg, next(columns), columns_, in.name, in.region, "output");
        put(svg, next(columns), columns_, core, out.region, "input");
        put(svg, next(columns), columns_, out.name, out.region, "partial sum");
        svg.outline({inside, y, x - inside, height}, {.width = 2});
        on();
        collective(svg, next(calls), false);
        on();
        const Box sum = next(rows);
        put(svg, sum, rows_, "+ residual", out.region, "output + residual");
        on();
        svg.arrow({{22, middle}, {22, y - 12}, {sum.center().x, y - 12}, {sum.center().x, y}});
    }

    // A step of the layer, and the tensor that comes of it.
    void put(Svg& svg, const Box& box, Role role, const std::string& name,
             const std::string& region, const char* tensor) {
        const ShapeTable::Row* row = shapes_.find(region, tensor);
        check(row != nullptr, "the picture is of a layer that ran");
        svg.rect(box, role, fmt::format("{}, {}: {}", region, tensor, to_string(row->shape)));
        svg.outline(box);
        const auto line = [&](int number, const std::string& words, Text style = {}) {
            style.role = Role::on_fill;
            svg.label({box.x, box.y + 8 + 21 * number, box.width, 21}, words, style);
        };
        line(0, name, {.size = 15, .bold = true});
        line(1, to_string(row->shape), {.size = 13});
        const bool summand = std::string_view(tensor) == "partial sum";
        line(2, share(row->shape[0], tokens_, "tokens"), {.size = 12});
        line(3, summand ? "a summand" : share(row->shape[1], row->whole_width, "features"),
             {.size = 12});
    }
    static std::string share(int64_t part, int64_t whole, const char* of) {
        return part == whole ? fmt::format("all {}", of)
                             : fmt::format("1/{:.4g} of {}", double(whole) / double(part), of);
    }

    // What stands between the regions: on the way in, or on the way out.
    void collective(Svg& svg, const Box& box, bool in) {
        const bool sp = options_.sequence_parallel;
        const Collective kind = !sp  ? Collective::all_reduce
                                : in ? Collective::all_gather
                                     : Collective::reduce_scatter;
        // Of forward; the layer has two of each. Without sequence parallelism nothing is sent on
        // the way in.
        const CommunicationCount c = in && !sp ? CommunicationCount{} : sent_.forward(kind);
        const std::string name = fmt::format("{}{}", sp ? "g" : "f", in ? "" : "*");
        const Box head = {box.x, box.y, box.width, 28};
        svg.rect(head, c.calls > 0 ? Role::communication : Role::faint,
                 fmt::format("{}: {} bytes, {:.0f} sent", name, c.bytes / 2, c.sent / 2));
        svg.outline(box);
        svg.label(head, name,
                  {.size = 15, .bold = true, .role = c.calls > 0 ? Role::on_fill : Role::ink});
        const auto line = [&](int number, const std::string& words, double size) {
            svg.label({box.x, box.y + 8 + 21 * number, box.width, 21}, words,
                      {.size = size, .role = Role::ink});
        };
        if (c.calls == 0) return line(1, "sends nothing", 13);
        line(1, collective_names[size_t(kind)], 13);
        line(2, format_bytes(double(c.bytes) / 2), 12);
        line(3, "sends " + format_bytes(c.sent / 2), 12);
    }

    const Role rows_ = role_of_rank(4), columns_ = Role::forward;
    const ShapeTable& shapes_;
    const LayerCommunication& sent_;
    const TensorOptions& options_;
    int64_t tokens_;
};

}  // namespace ultrascale::tensor_parallel
