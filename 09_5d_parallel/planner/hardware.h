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
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "files/json_fields.h"
#include "files/strict_json.h"
#include "links.h"

namespace ultrascale {

struct Hardware {
    std::string name;
    std::optional<DType> dtype;  // that peak and shares are for; none: a file does not say
    double peak = 0;             // FLOP/s in the dtype, dense, by the data sheet
    double fp32_peak = 0;        // of a preset: the same in fp32, without tensor cores
    double product_share = 0;    // of the peak: what large products reach
    double product_half = 0;     // rows or columns, see above
    double fp8_times = 0;        // how many times as fast products in fp8 are; 0: it has none
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

    // The same device for a training in this dtype. UserError if nothing is known of it in that.
    // In fp32 our products run without tensor cores, not in TF32 (common/cuda/ops_matmul.cpp): they
    // reach three quarters of that peak (07's MEASURED.md). Attention's shares are bf16's: in fp32
    // it has not been measured.
    Hardware in(DType wanted) const {
        if (!dtype || *dtype == wanted) return *this;
        if (wanted != DType::fp32 || fp32_peak == 0)
            user_error("--hardware {}: it was measured in {}; --calibrate it with --dtype {} too",
                       name, dtype_name(*dtype), dtype_name(wanted));
        Hardware h = *this;
        h.dtype = wanted, h.peak = fp32_peak, h.product_share = 0.75, h.fp8_times = 0;
        return h;
    }
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
                  .dtype = DType::bf16,
                  .peak = 989.5e12,
                  .fp32_peak = 66.9e12,
                  .product_share = 0.58,
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
    a100.name = "a100", a100.peak = 312e12, a100.fp32_peak = 19.5e12, a100.fp8_times = 0;
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
            {"dtype", h.dtype ? nlohmann::ordered_json(dtype_name(*h.dtype)) : nullptr},
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

inline std::vector<std::string> keys_of(const nlohmann::json& object) {
    std::vector<std::string> keys;
    for (const auto& [key, value] : object.items()) keys.push_back(key);
    return keys;
}

// UserError if the file is not one, has a field that nobody reads, or a number in it cannot be: a
// slip of a thousand in a unit is in most cases outside of these bounds.
inline Hardware read_hardware(const std::string& path) {
    const nlohmann::json json =
        parse_json_object(MappedFile(path).text(), path, "description of the hardware", 3);
    const Fields fields(json, path);
    const nlohmann::json known = json_of({});
    const auto refuse_unknown = [](const Fields& given, const nlohmann::json& known) {
        for (const std::string& field : given.not_understood())
            user_error("{}: unknown field \"{}\"; --calibrate writes {}", given.where(),
                       printable(field), fmt::join(keys_of(known), ", "));
    };
    const auto number = [](const Fields& of, const char* field, double least, double most) {
        const double value = of.number(field);
        if (!(value >= least && value <= most))
            user_error("{}: {} = {} must be from {} to {}", of.where(), field, value, least, most);
        return value;
    };
    const auto rate = [&](const Fields& of, const char* field) {  // of bytes a second
        return number(of, field, 1e3, 1e15);
    };
    const auto seconds = [&](const Fields& of, const char* field) {
        return number(of, field, 0, 100);
    };
    const auto link = [&](const char* field) {
        const nlohmann::json* object = fields.find(field);
        if (!object || !object->is_object()) user_error("{}: lacks the object {}", path, field);
        const Fields of(*object, path + ": " + field);
        const LinkRate link{
            rate(of, "bytes_per_second"),         seconds(of, "latency_seconds"),
            rate(of, "reduced_bytes_per_second"), seconds(of, "message_latency_seconds"),
            number(of, "collective_slows", 0, 1), number(of, "message_slows", 0, 1)};
        refuse_unknown(of, known.at(field));
        return link;
    };
    Hardware h;
    const nlohmann::json* name = fields.find("name");
    h.name = name && name->is_string() ? name->get<std::string>() : path;
    if (const nlohmann::json* dtype = fields.find("dtype")) {
        for (const DType one : {DType::fp32, DType::bf16})
            if (*dtype == dtype_name(one)) h.dtype = one;
        if (!h.dtype)
            user_error("{}: dtype = {} must be fp32 or bf16", path, printable(dtype->dump()));
    }
    h.peak = number(fields, "peak_flops", 1e6, 1e18);
    h.product_share = number(fields, "product_share", 1e-6, 1);
    h.product_half = number(fields, "product_half", 0, 1e6);
    h.fp8_times = number(fields, "fp8_times", 0, 100);
    h.attention_forward = number(fields, "attention_forward_share", 1e-6, 1);
    h.attention_backward = number(fields, "attention_backward_share", 1e-6, 1);
    h.memory_rate = rate(fields, "memory_bytes_per_second");
    h.update_rate = rate(fields, "update_bytes_per_second");
    h.operation = seconds(fields, "operation_seconds");
    fields.integer("ranks_in_a_node");  // not 1.5
    h.nodes.ranks = int(number(fields, "ranks_in_a_node", 1, 1 << 20));
    const nlohmann::json* collectives = fields.find("collectives");
    if (!collectives || !fields.find("cards_in_a_node"))
        user_error(
            "{}: it does not say how collectives go from node to node, and over how many cards: "
            "--calibrate it again",
            path);
    fields.integer("cards_in_a_node");
    h.nodes.cards = int(number(fields, "cards_in_a_node", 1, h.nodes.ranks));
    const auto way = std::ranges::find_if(crossing_names,
                                          [&](const char* name) { return *collectives == name; });
    if (way == crossing_names.end())
        user_error("{}: collectives = {} must be one of rings, ring and exchange", path,
                   printable(collectives->dump()));
    h.nodes.crossing = Crossing(way - crossing_names.begin());
    h.inside = link("inside"), h.between = link("between");
    h.memory = number(fields, "memory_bytes", 1e6, 1e15);
    h.process = number(fields, "process_bytes", 0, 1e15);
    h.tensor_hidden = number(fields, "tensor_hidden", 0, 1);
    h.logit_bytes = number(fields, "logit_bytes", 1e-3, 1e4);
    refuse_unknown(fields, known);
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
