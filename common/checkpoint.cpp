#include "checkpoint.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <ranges>

#include "gather_parts.h"
#include "strict_json.h"

namespace ultrascale {
namespace {

using json = nlohmann::json;
using nlohmann::ordered_json;
namespace fs = std::filesystem;

// The fields of one JSON object; a field that is null counts as absent, as in transformers.
class Fields {
public:
    Fields(const json& object, std::string where) : object_(object), where_(std::move(where)) {}

    const json* find(const char* field) const {
        auto found = object_.find(field);
        return found == object_.end() || found->is_null() ? nullptr : &*found;
    }
    int64_t integer(const char* field) const {
        const json* value = find(field);
        if (!value) user_error("{}: lacks the field \"{}\"", where_, field);
        if (!value->is_number_integer()) user_error("{}: {} = {} is not an integer", where_, field, printable(value->dump()));
        if (value->is_number_unsigned() && value->get<uint64_t>() > uint64_t(INT64_MAX))
            user_error("{}: {} = {} is too large", where_, field, printable(value->dump()));
        return value->get<int64_t>();
    }
    int64_t integer(const char* field, int64_t otherwise) const { return find(field) ? integer(field) : otherwise; }
    double number(const char* field) const {
        const json* value = find(field);
        if (!value) user_error("{}: lacks the field \"{}\"", where_, field);
        if (!value->is_number()) user_error("{}: {} = {} is not a number", where_, field, printable(value->dump()));
        return value->get<double>();
    }
    double number(const char* field, double otherwise) const { return find(field) ? number(field) : otherwise; }
    bool flag(const char* field) const {  // absent: false
        const json* value = find(field);
        if (value && !value->is_boolean()) user_error("{}: {} = {} is not true or false", where_, field, printable(value->dump()));
        return value && value->get<bool>();
    }
    // Throws unless the field is absent or equal to the one value that is supported.
    void only(const char* field, const json& supported) const {
        const json* value = find(field);
        if (value && *value != supported)
            user_error("{}: {} = {} is not supported; {} is", where_, field, printable(value->dump()), supported.dump());
    }
    const std::string& where() const { return where_; }

private:
    const json& object_;
    std::string where_;
};

// transformers 4: rope_theta beside rope_scaling (null, or an object whose "rope_type" was once "type"); 5: one object
// rope_parameters with both. Where both are there, rope_scaling counts, as in transformers 5.
void read_rope(const Fields& fields, LlamaConfig& config) {
    config.rope_theta = fields.number("rope_theta", 10000);
    fields.only("partial_rotary_factor", 1.0);
    const char* field = "rope_scaling";
    const json* found = fields.find(field);
    if (!found || found->empty()) found = fields.find(field = "rope_parameters");
    if (!found) return;
    std::string where = fmt::format("{}: {}", fields.where(), field);
    if (!found->is_object()) user_error("{} = {} is not an object", where, printable(found->dump()));

    Fields rope(*found, where);
    config.rope_theta = rope.number("rope_theta", config.rope_theta);
    rope.only("partial_rotary_factor", 1.0);
    const json* type = rope.find("rope_type") ? rope.find("rope_type") : rope.find("type");
    if (!type || *type == "default") return;
    if (*type != "llama3") user_error("{}: rope_type {} is not supported; \"default\" and \"llama3\" are", where, printable(type->dump()));
    RopeScaling& s = config.rope_scaling;
    s.type = RopeScaling::Type::llama3;
    s.factor = rope.number("factor");
    s.low_freq_factor = rope.number("low_freq_factor");
    s.high_freq_factor = rope.number("high_freq_factor");
    s.original_max_positions = rope.integer("original_max_position_embeddings", config.max_positions);
    if (!(s.factor > 0 && s.low_freq_factor > 0 && s.high_freq_factor > s.low_freq_factor && s.original_max_positions > 0))
        user_error("{}: needs factor > 0, high_freq_factor > low_freq_factor > 0 and original_max_position_embeddings > 0", where);
}

std::string config_json(const LlamaConfig& c, DType dtype) {
    const char* torch_name = dtype == DType::bf16 ? "bfloat16" : dtype == DType::fp16 ? "float16" : "float32";
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
        {"architectures", {"LlamaForCausalLM"}},
        {"model_type", "llama"},
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
        {"rope_theta", c.rope_theta},  // this and the next for transformers 4, rope_parameters for 5
        {"rope_scaling", scaling},
        {"rope_parameters", rope},
        {"bos_token_id", nullptr},  // we know of no special tokens
        {"eos_token_id", nullptr},
        {"torch_dtype", torch_name},  // transformers 4
        {"dtype", torch_name},
        {"use_cache", true},
    };
    return config.dump(2) + "\n";
}

// Whether an earlier save, or Hugging Face, may have left a file of this name for the same purpose.
bool is_checkpoint_file(const std::string& name) {
    if (name == "optimizer.safetensors" || name == "trainer_state.json" || name == "model.safetensors.index.json") return true;
    return name.starts_with("model") && name.ends_with(".safetensors") && (name == "model.safetensors" || name[5] == '-');
}

}  // namespace

LlamaConfig load_config(const std::string& path) {
    std::error_code ignored;
    const bool is_directory = fs::is_directory(path, ignored);
    if (is_directory) StagedFiles::recover(path);
    const std::string file_name = is_directory ? path + "/config.json" : path;
    MappedFile file(file_name);
    json object = parse_json_object(file.text(), file_name, "config", 16);
    Fields fields(object, file_name);

    fields.only("model_type", "llama");
    fields.only("architectures", json::array({"LlamaForCausalLM"}));
    if (!fields.find("model_type") && !fields.find("architectures")) user_error("{}: lacks the field \"model_type\"", file_name);
    fields.only("hidden_act", "silu");
    fields.only("attention_bias", false);
    fields.only("mlp_bias", false);
    fields.only("attention_dropout", 0.0);
    if (fields.find("quantization_config")) user_error("{}: quantization_config: quantised weights are not supported", file_name);

    LlamaConfig config{};
    config.layers = fields.integer("num_hidden_layers");
    config.hidden = fields.integer("hidden_size");
    config.heads = fields.integer("num_attention_heads");
    config.kv_heads = fields.integer("num_key_value_heads", config.heads);
    config.ffn = fields.integer("intermediate_size");
    config.vocab = fields.integer("vocab_size");
    config.head_dim = fields.integer("head_dim", 0);
    if (!fields.find("head_dim")) {
        if (config.heads > 0 && config.hidden % config.heads != 0)
            user_error("{}: hidden_size = {} is not a multiple of num_attention_heads = {}, and head_dim is not given", file_name,
                       config.hidden, config.heads);
        config.head_dim = config.heads > 0 ? config.hidden / config.heads : 1;
    }
    config.tied = fields.flag("tie_word_embeddings");
    config.norm_eps = fields.number("rms_norm_eps", 1e-6);
    config.init_std = fields.number("initializer_range", 0.02);
    config.max_positions = fields.integer("max_position_embeddings", 2048);
    if (config.max_positions < 1) user_error("{}: max_position_embeddings = {} is not positive", file_name, config.max_positions);
    if (!(config.init_std >= 0)) user_error("{}: initializer_range = {} is negative", file_name, config.init_std);
    config.default_seq = std::min<int64_t>(config.max_positions, 2048);
    read_rope(fields, config);
    try {
        validate(config);
    } catch (const UserError& e) {
        user_error("{}: {}", file_name, e.what());
    }
    return config;
}

void load_parameters(const std::string& dir, const ParameterList& parameters) {
    StagedFiles::recover(dir);
    Safetensors file = Safetensors::directory(dir);
    for (const auto& p : parameters) {
        check(bool(p->value), "load_parameters: values have no storage yet");
        const bool second_copy = !p->owner && !file.contains(p->name);
        file.read(second_copy ? "model.embed_tokens.weight" : p->name, p->shape, p->slice, p->value);
    }
}

void load_parameters(const std::string& dir, const std::vector<TensorPart>& parts) {
    StagedFiles::recover(dir);
    Safetensors file = Safetensors::directory(dir);
    for (const TensorPart& part : parts) file.read(part);
}

void check_can_save(const std::string& dir) {
    make_directories(dir);
    AtomicFile probe(dir + "/.can_save");  // vanishes, for it is not committed
    probe.write("x");
}

namespace {

// Writes what all ranks hold of `parts`, tensor after tensor; `dtype` converts, none keeps each tensor's own. Rank 0 has `dir`.
void write_tensors(const std::string* dir, const std::string& stem, std::vector<TensorPart> parts, const SaveOptions& options,
                   std::optional<DType> dtype, int64_t max_shard_bytes) {
    const GatherParts gather(options.spread_over, std::move(parts));
    std::vector<SafetensorsWriter::Item> items;
    for (const auto& tensor : gather.tensors()) items.push_back({tensor.name, tensor.shape, dtype.value_or(tensor.dtype)});
    std::optional<SafetensorsWriter> writer;
    if (dir) writer.emplace(*dir, stem, std::move(items), max_shard_bytes);
    for (size_t i = 0; i < gather.tensors().size(); ++i) {
        const Tensor whole = gather.gather(i);
        if (writer) writer->write(whole);
    }
    if (writer) writer->finish();
}

}  // namespace

void save_checkpoint(const std::string& dir, const LlamaConfig& config, const ParameterList& parameters, const SaveOptions& options) {
    std::vector<TensorPart> owned;
    for (const auto& p : parameters)
        if (p->owner) owned.emplace_back(*p, p->value);
    save_checkpoint(dir, config, owned, options);
}

void save_checkpoint(const std::string& dir, const LlamaConfig& config, const std::vector<TensorPart>& weights,
                     const SaveOptions& options) {
    check(options.state || options.optimizer.empty(), "save_checkpoint: optimizer tensors without a training state");
    std::optional<StagedFiles> staged;  // on the rank that writes
    if (!options.spread_over || options.spread_over->rank() == 0) staged.emplace(dir);
    const std::string* to = staged ? &staged->staging() : nullptr;
    if (to) write_file(*to + "/config.json", config_json(config, options.dtype));
    write_tensors(to, "model", weights, options, options.dtype, options.max_shard_bytes);
    if (options.state) {
        write_tensors(to, "optimizer", options.optimizer, options, std::nullopt, INT64_MAX);
        const TrainingState& s = *options.state;
        ordered_json state = {{"step", s.step}, {"next_sample", s.next_sample}, {"tokens_seen", s.tokens_seen},
                              {"seed", s.seed}, {"shuffled", s.shuffled},       {"seq", s.seq}};
        if (to) write_file(*to + "/trainer_state.json", state.dump(2) + "\n");
    }
    if (staged) {
        std::vector<std::string> stale;
        for (const auto& file : fs::directory_iterator(dir)) {
            std::string name = file.path().filename();
            if (is_checkpoint_file(name) && !fs::exists(*to + "/" + name)) stale.push_back(name);
        }
        staged->commit(stale);
    }
    if (options.spread_over) options.spread_over->barrier();  // when it returns, the checkpoint is there
}

bool has_training_state(const std::string& dir) {
    StagedFiles::recover(dir);
    return fs::exists(dir + "/trainer_state.json");
}

TrainingState load_training_state(const std::string& dir, const std::vector<TensorPart>& optimizer) {
    StagedFiles::recover(dir);
    const std::string path = dir + "/trainer_state.json";
    json object = parse_json_object(MappedFile(path).text(), path, "training state", 4);
    Fields fields(object, path);
    TrainingState state;
    for (auto [name, value] :
         {std::pair{"step", &state.step}, {"next_sample", &state.next_sample}, {"tokens_seen", &state.tokens_seen}, {"seq", &state.seq}}) {
        *value = fields.integer(name);
        if (*value < 0) user_error("{}: {} = {} is negative", path, name, *value);
    }
    const json *seed = fields.find("seed"), *shuffled = fields.find("shuffled");
    if (!seed || !seed->is_number_unsigned()) user_error("{}: \"seed\" is not a non-negative integer", path);
    if (!shuffled || !shuffled->is_boolean()) user_error("{}: \"shuffled\" is not true or false", path);
    state.seed = seed->get<uint64_t>(), state.shuffled = shuffled->get<bool>();

    Safetensors tensors = Safetensors::file(dir + "/optimizer.safetensors");
    const auto is_master = [](const std::string& name) { return name.starts_with("master."); };
    const bool saved = std::ranges::any_of(std::views::keys(tensors.entries()), is_master);
    if (!optimizer.empty() && saved != std::ranges::any_of(optimizer, is_master, &TensorPart::name))
        user_error("{0}: has {1}master weights: the run that saved it was in {2}, and goes on with --dtype {2}", tensors.path(),
                   saved ? "" : "no ", saved ? "bf16" : "fp32");
    for (const TensorPart& part : optimizer) {
        auto found = tensors.entries().find(part.name);
        if (found != tensors.entries().end() && found->second.dtype != safetensors_dtype(part.tensor.dtype()))
            user_error("{}: tensor \"{}\" is {}; this run keeps it as {}", tensors.path(), part.name, found->second.dtype,
                       safetensors_dtype(part.tensor.dtype()));
        tensors.read(part);
    }
    return state;
}

}  // namespace ultrascale
