// The file that describes a device and its links.
#include "hardware.h"

#include <fmt/ranges.h>

#include "files/json_fields.h"
#include "files/strict_json.h"

namespace ultrascale::five_d {
namespace {

nlohmann::ordered_json json_of(const Hardware& h) {
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

std::vector<std::string> keys_of(const nlohmann::json& object) {
    std::vector<std::string> keys;
    for (const auto& [key, value] : object.items()) keys.push_back(key);
    return keys;
}

// Throws UserError if the file is not a description, has a field that nobody reads, or a number out
// of bounds: a slip of a thousand in a unit is mostly out of bounds.
Hardware read_hardware(const std::string& path) {
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
    const auto rate = [&](const Fields& of, const char* field) {  // in bytes a second
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

}  // namespace

std::string file_of(const Hardware& hardware) { return json_of(hardware).dump(2) + "\n"; }

Hardware find_hardware(const std::string& name) {
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

}  // namespace ultrascale::five_d
