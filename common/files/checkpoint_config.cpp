// config.json: reads and writes the model's configuration in the formats of transformers 4 and 5.
#include <algorithm>
#include <filesystem>

#include "checkpoint.h"
#include "checkpoint_experts.h"
#include "checkpoint_gpt2.h"
#include "checkpoint_latent.h"
#include "json_fields.h"
#include "strict_json.h"

namespace ultrascale {

using json = nlohmann::json;
using nlohmann::ordered_json;
namespace fs = std::filesystem;

// transformers 4 has rope_theta and rope_scaling (null, or an object whose "rope_type" used to be
// called "type"); 5 has one object rope_parameters with both. If both forms are present,
// rope_scaling counts, as in transformers 5. original_max_position_embeddings counts at the top
// level first. Names of fields that are not understood are added to `unknown`.
static void read_rope(const Fields& fields, LlamaConfig& config, double default_theta,
                      std::vector<std::string>* unknown) {
    config.rope_theta = fields.number("rope_theta", default_theta);
    fields.only("partial_rotary_factor", 1.0);
    const char* const original = "original_max_position_embeddings";
    const int64_t at_top = fields.integer(original, 0);
    const json *old = fields.find("rope_scaling"), *found = fields.find("rope_parameters");
    const char* field = "rope_parameters";
    if (old && !old->empty()) found = old, field = "rope_scaling";
    if (!found) return;
    std::string where = fmt::format("{}: {}", fields.where(), field);
    if (!found->is_object())
        user_error("{} = {} is not an object", where, printable(found->dump()));

    Fields rope(*found, where);
    config.rope_theta = rope.number("rope_theta", config.rope_theta);
    rope.only("partial_rotary_factor", 1.0);
    const json* type = rope.find("rope_type") ? rope.find("rope_type") : rope.find("type");
    rope.understands({"type", "factor", "low_freq_factor", "high_freq_factor", original});
    if (unknown)
        for (const std::string& name : rope.not_understood())
            unknown->push_back(fmt::format("{}.{}", field, name));
    if (!type || *type == "default") return;
    if (*type != "llama3")
        user_error("{}: rope_type {} is not supported; \"default\" and \"llama3\" are", where,
                   printable(type->dump()));
    RopeScaling& s = config.rope_scaling;
    s.type = RopeScaling::Type::llama3;
    s.factor = rope.number("factor");
    s.low_freq_factor = rope.number("low_freq_factor");
    s.high_freq_factor = rope.number("high_freq_factor");
    s.original_max_positions = at_top != 0 ? at_top : rope.integer(original, config.max_positions);
    if (!(s.factor > 0 && s.low_freq_factor > 0 && s.high_freq_factor > s.low_freq_factor &&
          s.original_max_positions > 0))
        user_error(
            "{}: needs factor > 0, high_freq_factor > low_freq_factor > 0 and "
            "original_max_position_embeddings > 0",
            where);
}

std::string config_json(const LlamaConfig& c, DType dtype) {
    const char* torch_name = dtype == DType::bf16   ? "bfloat16"
                             : dtype == DType::fp16 ? "float16"
                                                    : "float32";
    if (c.gpt) return gpt2_config_json(c, torch_name);
    ordered_json scaling, rope = {{"rope_theta", c.rope_theta}, {"rope_type", "default"}};
    if (c.rope_scaling.type == RopeScaling::Type::llama3) {
        const RopeScaling& s = c.rope_scaling;
        scaling = {{"rope_type", "llama3"},
                   {"factor", s.factor},
                   {"low_freq_factor", s.low_freq_factor},
                   {"high_freq_factor", s.high_freq_factor},
                   {"original_max_position_embeddings", s.original_max_positions}};
        rope = scaling;
        rope["rope_theta"] = c.rope_theta;
    }
    ordered_json config = {
        {"architectures", {c.window > 0 ? "MistralForCausalLM" : "LlamaForCausalLM"}},
        {"model_type", c.window > 0 ? "mistral" : "llama"},
        {"vocab_size", c.vocab},
        {"hidden_size", c.hidden},
        {"intermediate_size", c.ffn},
        {"num_hidden_layers", c.layers},
        {"num_attention_heads", c.heads},
        {"num_key_value_heads", c.kv_heads},
        {"head_dim", c.head_dim},
        {"hidden_act", "silu"},
        {"max_position_embeddings", c.max_positions},
        {"rms_norm_eps", c.norm_eps},
        {"initializer_range", c.init_std},
        {"tie_word_embeddings", c.tied},
        {"attention_bias", false},
        {"attention_dropout", 0.0},
        {"mlp_bias", false},
        {"rope_theta", c.rope_theta},  // this and rope_scaling: transformers 4; rope_parameters: 5
        {"rope_scaling", scaling},
        {"rope_parameters", rope},
        {"bos_token_id", nullptr},  // there are no special tokens
        {"eos_token_id", nullptr},
        {"torch_dtype", torch_name},  // transformers 4
        {"dtype", torch_name},
        {"use_cache", true},
    };
    if (c.latent) write_latent(config, c);
    if (c.window > 0) config["sliding_window"] = c.window;
    if (c.experts.count > 0) write_experts(config, c);
    return config.dump(2) + "\n";
}

static std::string read_model_type(const Fields& fields) {
    static constexpr std::pair<const char*, const char*> supported[] = {
        {"llama", "LlamaForCausalLM"},
        {"mistral", "MistralForCausalLM"},
        {"gpt2", "GPT2LMHeadModel"},
        {"mixtral", "MixtralForCausalLM"},
        {"qwen3_moe", "Qwen3MoeForCausalLM"},
        {"deepseek", "DeepseekForCausalLM"},
        {"deepseek_v2", "DeepseekV2ForCausalLM"},
        {"deepseek_v3", "DeepseekV3ForCausalLM"}};
    const json *type = fields.find("model_type"), *architectures = fields.find("architectures");
    if (!type && !architectures) user_error("{}: lacks the field \"model_type\"", fields.where());
    for (const auto& [name, architecture] : supported) {
        if (type ? *type != name : *architectures != json::array({architecture})) continue;
        fields.only("architectures", json::array({architecture}));
        return name;
    }
    if (!type)
        user_error("{}: architectures = {} is not supported", fields.where(),
                   printable(architectures->dump()));
    user_error(
        "{}: model_type = {} is not supported; \"llama\", \"mistral\", \"gpt2\", \"mixtral\", "
        "\"qwen3_moe\", \"deepseek\", \"deepseek_v2\" and \"deepseek_v3\" are",
        fields.where(), printable(type->dump()));
}

// transformers' values for fields that a config.json lacks.
struct ModelDefaults {
    const char* model_type;
    int64_t kv_heads;  // 0: as many as heads
    int64_t max_positions;
    double norm_eps, rope_theta;
};
static const ModelDefaults& defaults_of(const std::string& model_type) {
    static constexpr ModelDefaults all[] = {
        {"llama", 0, 2048, 1e-6, 10000},       {"mistral", 8, 131072, 1e-6, 10000},
        {"deepseek", 0, 2048, 1e-6, 10000},    {"deepseek_v2", 0, 2048, 1e-6, 10000},
        {"deepseek_v3", 0, 4096, 1e-6, 10000}, {"mixtral", 8, 131072, 1e-5, 1e6},
        {"qwen3_moe", 4, 32768, 1e-6, 10000}};
    return *std::ranges::find(all, model_type, &ModelDefaults::model_type);
}

// Fields that cannot change the computation here: the origin of the file, how text becomes tokens,
// how a model generates text or returns its results.
static void understand_harmless(const Fields& fields) {
    fields.understands({"_name_or_path",
                        "transformers_version",
                        "dtype",
                        "torch_dtype",
                        "auto_map",
                        "is_llama_config",
                        "transformers.js_config",
                        "tokenizer_class",
                        "bos_token_id",
                        "eos_token_id",
                        "pad_token_id",
                        "sep_token_id",
                        "cls_token_id",
                        "decoder_start_token_id",
                        "pretraining_tp",
                        "ep_size",
                        "use_cache",
                        "return_dict",
                        "torchscript",
                        "output_attentions",
                        "output_hidden_states",
                        "return_dict_in_generate",
                        "output_scores",
                        "id2label",
                        "label2id",
                        "num_labels",
                        "finetuning_task",
                        "task_specific_params",
                        "problem_type",
                        "max_length",
                        "min_length",
                        "do_sample",
                        "temperature",
                        "top_k",
                        "top_p",
                        "typical_p",
                        "num_beams",
                        "num_return_sequences",
                        "repetition_penalty",
                        "prefix"});
    // These could change it, if they had other values.
    const auto unless = [&](const char* field, const json& harmless) {
        if (const auto* value = fields.peek(field); value && *value == harmless)
            fields.understands({field});
    };
    unless("rope_interleaved", false), unless("is_decoder", false);
    unless("is_encoder_decoder", false), unless("add_cross_attention", false);
    unless("pruned_heads", json::object()), unless("chunk_size_feed_forward", 0);
}

// All layers have the window, or if it is null none has one. Where it is absent, transformers takes
// 4096. layer_types may say it again, layer by layer.
static void read_window(const Fields& fields, const json& object, LlamaConfig& config) {
    const bool is_absent = !object.contains("sliding_window");
    config.window = fields.integer("sliding_window", is_absent ? 4096 : 0);
    const json all = json::array_t(size_t(std::clamp<int64_t>(config.layers, 0, 100'000)),
                                   config.window > 0 ? "sliding_attention" : "full_attention");
    if (const json* types = fields.find("layer_types"); types && *types != all)
        user_error("{}: layer_types: layers with different windows are not supported",
                   fields.where());
}

// Reads what the model_types other than "gpt2" have.
static LlamaConfig read_llama(const Fields& fields, const json& object,
                              const std::string& model_type, std::vector<std::string>* unknown) {
    fields.only("hidden_act", "silu");
    fields.only("attention_bias", false);
    fields.only("mlp_bias", false);
    fields.only("attention_dropout", 0.0);
    LlamaConfig config{};
    config.layers = fields.integer("num_hidden_layers");
    config.hidden = fields.integer("hidden_size");
    config.heads = fields.integer("num_attention_heads");
    const ModelDefaults& defaults = defaults_of(model_type);
    const bool says_kv_heads = object.contains("num_key_value_heads");  // null: as many as heads
    config.kv_heads =
        fields.integer("num_key_value_heads",
                       says_kv_heads || defaults.kv_heads == 0 ? config.heads : defaults.kv_heads);
    config.ffn = fields.integer("intermediate_size");
    config.vocab = fields.integer("vocab_size");
    if (is_latent(model_type)) {
        read_latent(fields, config);
    } else if (fields.find("head_dim")) {
        config.head_dim = fields.integer("head_dim");
    } else {
        if (config.heads > 0 && config.hidden % config.heads != 0)
            user_error(
                "{}: hidden_size = {} is not a multiple of num_attention_heads = {}, and head_dim "
                "is not given",
                fields.where(), config.hidden, config.heads);
        config.head_dim = config.heads > 0 ? config.hidden / config.heads : 1;
    }
    config.tied = fields.flag("tie_word_embeddings");
    config.norm_eps = fields.number("rms_norm_eps", defaults.norm_eps);
    config.max_positions = fields.integer("max_position_embeddings", defaults.max_positions);
    if (model_type == "mistral") read_window(fields, object, config);
    if (model_type != "llama" && model_type != "mistral") read_experts(fields, model_type, config);
    read_rope(fields, config, defaults.rope_theta, unknown);
    return config;
}

LlamaConfig load_config(const std::string& path, std::vector<std::string>* unknown) {
    std::error_code ignored;
    const bool is_directory = fs::is_directory(path, ignored);
    if (is_directory) StagedFiles::recover(path);
    const std::string file_name = is_directory ? path + "/config.json" : path;
    MappedFile file(file_name);
    json object = parse_json_object(file.text(), file_name, "config", 16);
    Fields fields(object, file_name);

    const std::string model_type = read_model_type(fields);
    LlamaConfig config =
        model_type == "gpt2" ? read_gpt2(fields) : read_llama(fields, object, model_type, unknown);
    if (fields.find("quantization_config"))
        user_error("{}: quantization_config: quantised weights are not supported", file_name);
    config.init_std = fields.number("initializer_range", 0.02);
    if (config.max_positions < 1)
        user_error("{}: {} = {} is not positive", file_name,
                   config.gpt ? "n_positions" : "max_position_embeddings", config.max_positions);
    if (!(config.init_std >= 0))
        user_error("{}: initializer_range = {} is negative", file_name, config.init_std);
    config.default_seq = std::min<int64_t>(config.max_positions, 2048);
    understand_harmless(fields);
    if (unknown)
        for (const std::string& name : fields.not_understood()) unknown->push_back(name);
    try {
        validate(config);
    } catch (const UserError& e) {
        user_error("{}: {}", file_name, e.what());
    }
    return config;
}

}  // namespace ultrascale
