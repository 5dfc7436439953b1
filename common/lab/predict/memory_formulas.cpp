#include "memory_formulas.h"

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "estimate.h"

namespace ultrascale {

void MemorySettings::set(const std::string& name, double value) {
#define SETTING(group, setting, ...) \
    if (name == #setting) {          \
        setting = value;             \
        return;                      \
    }
#include "memory_formulas.inc"
    std::string names;
#define SETTING(group, setting, ...) names += " " #setting;
#include "memory_formulas.inc"
    user_error("--settings: {} is none of{}", name, names);
}

void MemorySettings::set(const std::string& text) {
    for (size_t at = 0; at < text.size();) {
        const size_t end = std::min(text.find(',', at), text.size()), is = text.find('=', at);
        size_t read = 0;
        double value = 0;
        try {
            if (is < end) value = std::stod(text.substr(is + 1, end - is - 1), &read);
        } catch (const std::logic_error&) {
            read = 0;
        }
        if (is >= end || read == 0 || read < end - is - 1 || !(value >= 0 && value <= 1e12) ||
            value != std::floor(value))
            user_error("--settings {}: give names with whole numbers, like h=8192,tp=8",
                       text.substr(at, end - at));
        set(text.substr(at, is - at), value);
        at = end + 1;
    }
}

void MemorySettings::set(const LlamaConfig& c) {
    L = double(c.layers), h = double(c.hidden), a = double(c.heads), K = double(c.kv_heads);
    D = c.head_dim * c.heads == c.hidden ? 0 : double(c.head_dim), h_ff = double(c.ffn),
    v = double(c.vocab), tied = c.tied, matrices = 3;
    E = double(c.experts.count), shared = double(c.experts.shared);
    dense = double(c.experts.first_dense);
    if (E > 0) top = double(c.experts.router.top_k), h_e = double(c.experts.ffn);
}

void MemorySettings::set(const StepShape& shape) {
    set(shape.config);
    s = double(shape.seq), b = double(shape.micro_batch);
    recompute = double(shape.model.recompute.of(0));
    naive = shape.model.attention == AttentionKind::naive;
    e = double(dtype_bytes(shape.model.dtype)), g = double(dtype_bytes(shape.grad_dtype));
    k = double(optimizer_bytes(shape.model.dtype));
    if (shape.muon)  // on average
        k -= double(muon_saves * muon_numel(shape.config)) / double(parameter_count(shape.config));
}

std::string why_refused(const MemorySettings& settings) {
    struct Refused : MemorySettings {
        std::string why() const {
#define REFUSED(condition, sentence) \
    if (condition) return sentence;
#include "memory_formulas.inc"
            return "";
        }
    };
    return Refused(settings).why();
}

std::vector<FormulaRow> formula_rows(const MemorySettings& settings) {
    const MemoryFormulas f(settings);
    return {
#define FORMULA(unit, name, what, ...) {unit, #name, what, #__VA_ARGS__, f.name},
#include "memory_formulas.inc"
    };
}

LlamaConfig deepseek_v3_by_formula() {
    LlamaConfig config{.layers = 61,
                       .hidden = 7168,
                       .heads = 128,
                       .kv_heads = 1,
                       .head_dim = 102,
                       .ffn = 18432,
                       .vocab = 129280};
    config.experts = {.count = 256, .ffn = 2048, .shared = 1, .first_dense = 3};
    config.experts.router.top_k = 8;
    return config;
}

std::string memory_page_data(const MemorySettings& start) {
    using Json = nlohmann::ordered_json;
    Json settings, refused, formulas, models;
#define SETTING(group, name, value, choices, what) \
    settings.push_back({group, #name, start.name, choices, what});
#define REFUSED(condition, sentence) refused.push_back({#condition, sentence});
#define FORMULA(unit, name, what, ...) formulas.push_back({unit, #name, what, #__VA_ARGS__});
#include "memory_formulas.inc"
    const auto model = [&](const char* model_name, const LlamaConfig& config, const char* rest) {
        MemorySettings all;
        all.set(config), all.set(rest);
#define SETTING(group, name, ...) \
    if (group != std::string("numbers")) models[model_name][#name] = all.name;
#include "memory_formulas.inc"
    };
    model("Llama-3-8B", preset("llama-3-8b"), "s=4096,m=4,dp=8,zero=1");
    model("Llama-3-70B", preset("llama-3-70b"), "s=4096,m=16,dp=16,tp=8,pp=2,zero=1");
    model("Llama-3-405B", preset("llama-3-405b"), "s=8192,m=16,dp=128,tp=8,pp=16,zero=1");
    model("DeepSeek-V3", deepseek_v3_by_formula(), "s=4096,m=120,dp=2,ep=64,pp=16,zero=1");
    const Json formats = {{"fp32", {{"e", 4}, {"g", 4}, {"k", 8}, {"fp8", 0}}},
                          {"bf16", {{"e", 2}, {"g", 2}, {"k", 12}, {"fp8", 0}}},
                          {"bf16, fp32 gradients", {{"e", 2}, {"g", 4}, {"k", 12}, {"fp8", 0}}},
                          {"products in fp8", {{"e", 2}, {"g", 2}, {"k", 12}, {"fp8", 1}}}};
    return Json{{"settings", settings},
                {"refused", refused},
                {"formulas", formulas},
                {"presets", {{"model", models}, {"numbers", formats}}}}
        .dump();
}

}  // namespace ultrascale
