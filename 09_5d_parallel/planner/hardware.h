// What a step's time depends on besides the layout: a device and its links, in a few numbers, and
// the seconds that these give for one operation.
//
//     product (M, K) x (K, N)   2 M N K / (peak * share) * (1 + half/M) (1 + half/N) (1 + half/K)
//     attention                 FLOPs / (peak * its own share), forward and backward
//     all else                  bytes read and written / memory_rate, and `operation` for each call
//     communication             links.h
//
// A product of small matrices is slow because its tiles do not fill the device: one with a side of
// `half`, and two long ones, takes twice as long as its FLOPs would.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "files/json_fields.h"
#include "files/strict_json.h"
#include "links.h"

namespace ultrascale {

struct Hardware {
    std::string name;
    double peak = 0;           // FLOP/s in the dtype, dense, by the data sheet
    double product_share = 0;  // of the peak: what large products reach
    double product_half = 0;   // rows or columns, see above
    double fp8_times = 0;      // how many times as fast products in fp8 are; 0: it has none
    double attention_forward = 0, attention_backward = 0;  // shares of the peak
    double memory_rate = 0, update_rate = 0;  // bytes/s, read and written; of AdamW's update
    double operation = 0;                     // seconds that any call costs besides
    Nodes nodes = {.ranks = 8, .crossing = Crossing::rings};
    LinkRate inside = {}, between = {};  // in a node; from node to node
    double memory = 0;                   // bytes of a device
    double process = 0;  // bytes that a process holds besides its tensors: contexts, libraries
    // Of the program rather than the device: the part of tensor parallelism's communication that
    // is hidden, from 0 to 1; and the bytes that the loss reads and writes for each logit.
    double tensor_hidden = 0, logit_bytes = 10;

    // Seconds of a product (M, K) x (K, N); `grouped`: of so many experts, each with M rows.
    double product(double M, double N, double K, double grouped = 1) const {
        return grouped * 2 * M * N * K / (peak * product_share) * (1 + product_half / M) *
               (1 + product_half / N) * (1 + product_half / K);
    }
    // Seconds of so many calls that read and write so many bytes in all.
    double moved(double bytes, double calls) const {
        return bytes / memory_rate + calls * operation;
    }
    Links links() const { return {nodes, inside, between}; }
};

// Per device: peaks and memory by the data sheets (H100, H200 and A100 SXM; H800: NVLink cut to 400
// GB/s). product_share of h100 is fitted by --published (published.h): it is what products reach in
// a whole training at a power limit, and less than what one reaches alone. What products in fp8,
// attention, copies and the loss reach is one H200's (MEASURED.md of 02, 04 and 07), and the other
// chips get the same shares of their own peaks; nothing has been fitted to them. Nothing of tensor
// parallelism is hidden, as in a run without --tp-overlap. What communication costs the products
// under it is in h100's product_share.
inline std::vector<Hardware> hardware_presets() {
    Hardware h100{.name = "h100",
                  .peak = 989.5e12,
                  .product_share = 0.57,
                  .product_half = 260,
                  .fp8_times = 1.9,
                  .attention_forward = 0.45,
                  .attention_backward = 0.38,
                  .memory_rate = 0.85 * 3.35e12,
                  .update_rate = 0.85 * 3.35e12,
                  .operation = 5e-6,
                  .inside = {360e9, 3e-6, 360e9, 3e-6},
                  .between = {48e9, 8e-6, 48e9, 8e-6},
                  .memory = 80e9,
                  .process = 1.37 * 1024 * 1024 * 1024,
                  .logit_bytes = 56};
    Hardware h200 = h100;
    h200.name = "h200", h200.memory = 141e9;
    h200.memory_rate = h200.update_rate = 4.25e12;
    Hardware a100 = h100;
    a100.name = "a100", a100.peak = 312e12, a100.fp8_times = 0;
    a100.memory_rate = a100.update_rate = 0.85 * 2.04e12;
    a100.inside = {230e9, 3e-6, 230e9, 3e-6}, a100.between = {22e9, 8e-6, 22e9, 8e-6};
    Hardware h800 = h100;
    h800.name = "h800", h800.inside = {160e9, 3e-6, 160e9, 3e-6};
    return {h100, h200, a100, h800};
}

// ---- the file that --calibrate writes, and --hardware reads -------------------------------------

inline nlohmann::ordered_json json_of(const Hardware& h) {
    const auto link = [](const LinkRate& rate) {
        return nlohmann::ordered_json{{"bytes_per_second", rate.bytes_per_second},
                                      {"latency_seconds", rate.latency},
                                      {"reduced_bytes_per_second", rate.reduced_per_second},
                                      {"message_latency_seconds", rate.message_latency},
                                      {"collective_slows", rate.collective_slows},
                                      {"message_slows", rate.message_slows}};
    };
    return {{"name", h.name},
            {"peak_flops", h.peak},
            {"product_share", h.product_share},
            {"product_half", h.product_half},
            {"fp8_times", h.fp8_times},
            {"attention_forward_share", h.attention_forward},
            {"attention_backward_share", h.attention_backward},
            {"memory_bytes_per_second", h.memory_rate},
            {"update_bytes_per_second", h.update_rate},
            {"operation_seconds", h.operation},
            {"ranks_in_a_node", h.nodes.ranks},
            {"cards_in_a_node", h.nodes.cards_of_node()},
            {"collectives", crossing_names[size_t(h.nodes.crossing)]},
            {"inside", link(h.inside)},
            {"between", link(h.between)},
            {"memory_bytes", h.memory},
            {"process_bytes", h.process},
            {"tensor_hidden", h.tensor_hidden},
            {"logit_bytes", h.logit_bytes}};
}

// UserError if the file is not one, or a number in it cannot be.
inline Hardware read_hardware(const std::string& path) {
    const nlohmann::json json =
        parse_json_object(MappedFile(path).text(), path, "description of the hardware", 3);
    const Fields fields(json, path);
    const auto positive = [](const Fields& of, const char* field) {
        const double value = of.number(field);
        if (!(value > 0) || !(value < 1e30))
            user_error("{}: {} = {} must be above 0", of.where(), field, value);
        return value;
    };
    const auto at_least_0 = [](const Fields& of, const char* field) {
        const double value = of.number(field);
        if (!(value >= 0) || !(value < 1e30))
            user_error("{}: {} = {} must not be below 0", of.where(), field, value);
        return value;
    };
    const auto part = [&](const Fields& of, const char* field) {
        const double value = at_least_0(of, field);
        if (value > 1) user_error("{}: {} is a part, from 0 to 1", of.where(), field);
        return value;
    };
    const auto link = [&](const char* field) {
        const nlohmann::json* object = fields.find(field);
        if (!object || !object->is_object()) user_error("{}: lacks the object {}", path, field);
        const Fields of(*object, path + ": " + field);
        return LinkRate{positive(of, "bytes_per_second"),
                        at_least_0(of, "latency_seconds"),
                        positive(of, "reduced_bytes_per_second"),
                        at_least_0(of, "message_latency_seconds"),
                        part(of, "collective_slows"),
                        part(of, "message_slows")};
    };
    Hardware h;
    const nlohmann::json* name = fields.find("name");
    h.name = name && name->is_string() ? name->get<std::string>() : path;
    h.peak = positive(fields, "peak_flops");
    h.product_share = positive(fields, "product_share");
    h.product_half = at_least_0(fields, "product_half");
    h.fp8_times = at_least_0(fields, "fp8_times");
    h.attention_forward = positive(fields, "attention_forward_share");
    h.attention_backward = positive(fields, "attention_backward_share");
    h.memory_rate = positive(fields, "memory_bytes_per_second");
    h.update_rate = positive(fields, "update_bytes_per_second");
    h.operation = at_least_0(fields, "operation_seconds");
    const int64_t node = fields.integer("ranks_in_a_node");
    if (node < 1 || node > 1 << 20)
        user_error("{}: ranks_in_a_node = {} is no number of ranks", path, node);
    h.nodes.ranks = int(node);
    const int64_t cards = fields.find("collectives") ? fields.integer("cards_in_a_node") : 0;
    if (cards < 1)
        user_error(
            "{}: it does not say how collectives go from node to node, and over how many cards: "
            "--calibrate it again",
            path);
    if (cards > node)
        user_error("{}: cards_in_a_node = {}: at most one for each of {} ranks", path, cards, node);
    h.nodes.cards = int(cards);
    const std::string collectives = fields.find("collectives")->dump();
    const auto way = std::ranges::find_if(crossing_names, [&](const char* name) {
        return collectives == fmt::format("\"{}\"", name);
    });
    if (way == crossing_names.end())
        user_error("{}: collectives = {} must be one of rings, ring and exchange", path,
                   printable(collectives));
    h.nodes.crossing = Crossing(way - crossing_names.begin());
    h.inside = link("inside"), h.between = link("between");
    h.memory = positive(fields, "memory_bytes");
    h.process = at_least_0(fields, "process_bytes");
    h.tensor_hidden = part(fields, "tensor_hidden");
    h.logit_bytes = positive(fields, "logit_bytes");
    return h;
}

// The hardware that --hardware names: a preset, or a file.
inline Hardware find_hardware(const std::string& name) {
    std::string known;
    for (const Hardware& h : hardware_presets()) {
        if (h.name == name) return h;
        known += h.name + ", ";
    }
    if (name.find('.') == name.npos && name.find('/') == name.npos)
        user_error(
            "--hardware {}: there is no such hardware; there are {}and FILE.json, which "
            "--calibrate writes",
            name, known);
    return read_hardware(name);
}

}  // namespace ultrascale
