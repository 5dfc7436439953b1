#include "checkpoint.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <ranges>

#include "checkpoint_experts.h"
#include "checkpoint_gpt2.h"
#include "core/trace.h"
#include "json_fields.h"
#include "strict_json.h"

namespace ultrascale {
namespace {

using json = nlohmann::json;
using nlohmann::ordered_json;
namespace fs = std::filesystem;

// Whether an earlier save, or Hugging Face, may have written a file of this name for the same
// purpose.
bool is_checkpoint_file(const std::string& name) {
    for (const char* other : {"optimizer.safetensors", "trainer_state.json",
                              "model.safetensors.index.json", latest_checkpoint})
        if (name == other) return true;
    return name.starts_with("model") && name.ends_with(".safetensors") &&
           (name == "model.safetensors" || name[5] == '-');
}

}  // namespace

// The name under which Hugging Face keeps this state of ours among the weights (a router's bias);
// "" if it does not.
static std::string weight_of(const std::string& state) {
    const std::string prefix = "buffer.";
    const bool kept = state.starts_with(prefix) && state.ends_with(".e_score_correction_bias");
    return kept ? state.substr(prefix.size()) : "";
}

// A checkpoint's weights under the classic names, in both conventions, even if experts are stacked
// in the file.
static Safetensors weights_in(const std::string& dir) {
    StagedFiles::recover(dir);
    Safetensors file = Safetensors::directory(dir);
    const std::map<std::string, Safetensors::Entry> in_file = file.entries();
    for (const auto& [name, entry] : in_file)
        unstack_experts(name, entry.shape, [&](const std::string& part, int64_t first, int64_t n) {
            file.add_rows(part, name, first, n);
        });
    add_gpt2_names(file);
    // Each expert also has the other convention's name: options may turn a Mixtral into a model
    // that is written as DeepSeek's, and if Mixtral's experts are stacked, its router has the new
    // name.
    for (const auto& [name, entry] : in_file)
        if (const std::string other = other_expert_name(name); !other.empty())
            file.add_name(other, name);
    return file;
}

void load_parameters(const std::string& dir, const ParameterList& parameters) {
    const Safetensors file = weights_in(dir);
    for (const auto& p : parameters) {
        check(bool(p->value), "load_parameters: values have no storage yet");
        file.read(p->name, p->shape, p->slice, p->value);
    }
    for (const TensorPart& buffer : parameters.buffers())
        if (const std::string name = weight_of(buffer.name); file.contains(name))
            file.read(name, buffer.shape, buffer.slice, buffer.tensor);
}

void load_parameters(const std::string& dir, const std::vector<TensorPart>& parts) {
    const Safetensors file = weights_in(dir);
    for (const TensorPart& part : parts) file.read(part);
}

void check_can_save(const std::string& dir) {
    make_directories(dir);
    AtomicFile probe(dir + "/.can_save");  // it is removed again, because it is not committed
    probe.write("x");
}

// The weights, and the states that Hugging Face keeps among them.
static std::vector<TensorPart> model_parts(const std::vector<TensorPart>& weights,
                                           const SaveOptions& options) {
    std::vector<TensorPart> model = weights;
    for (const TensorPart& state : options.optimizer)
        if (const std::string name = weight_of(state.name); !name.empty())
            model.push_back(state), model.back().name = name;
    return model;
}

static std::string state_text(const TrainingState& s) {
    ordered_json state = {
        {"step", s.step}, {"next_sample", s.next_sample}, {"tokens_seen", s.tokens_seen},
        {"seed", s.seed}, {"shuffled", s.shuffled},       {"seq", s.seq}};
    if (!s.data.empty()) state["data"] = s.data, state["data_tokens"] = s.data_tokens;
    if (!s.recipe.empty()) state["recipe"] = s.recipe;
    if (!s.options.empty()) state["options"] = s.options;
    // JSON must be UTF-8, but a path need not be: other bytes are replaced, and a resumed run does
    // not find the file.
    return state.dump(2, ' ', false, json::error_handler_t::replace) + "\n";
}

static std::optional<Communicator> group_for(const SaveOptions& options) {
    if (!options.spread_over) return {};
    return options.from_copies ? options.spread_over->between_hosts("saves") : *options.spread_over;
}

CheckpointSave::CheckpointSave(const LlamaConfig& config, const std::vector<TensorPart>& weights,
                               const SaveOptions& options)
    : group_(group_for(options)),
      config_(config_json(config, options.dtype)),
      dtype_(options.dtype),
      max_shard_bytes_(options.max_shard_bytes),
      model_(ranks(), model_parts(weights, options)) {
    check(options.state || options.optimizer.empty(),
          "save_checkpoint: optimizer tensors without a training state");
    if (config.gpt) {
        std::vector<std::string> names;
        for (const auto& tensor : model_.tensors()) names.push_back(tensor.name);
        model_tensors_ = gpt2_tensors(names);
    }
    if (options.state) {
        state_ = state_text(*options.state);
        optimizer_.emplace(ranks(), options.optimizer);
    }
    if (!options.from_copies) return;
    model_.keep_copies();
    if (optimizer_) optimizer_->keep_copies();
}

int64_t CheckpointSave::own_bytes() const {
    return model_.own_bytes() + (optimizer_ ? optimizer_->own_bytes() : 0);
}

void CheckpointSave::copy(const std::vector<TensorPart>& weights, const SaveOptions& options) {
    model_.copy(model_parts(weights, options));
    if (optimizer_) optimizer_->copy(options.optimizer), state_ = state_text(*options.state);
    compute_stream().synchronize();
}

// The transpose of a matrix (rows, cols) of elements of `width` bytes.
static std::vector<char> transposed(const std::vector<char>& from, int64_t rows, int64_t cols,
                                    int64_t width) {
    std::vector<char> to(from.size());
    for (int64_t r = 0; r < rows; ++r)
        for (int64_t c = 0; c < cols; ++c)
            std::memcpy(&to[size_t((c * rows + r) * width)], &from[size_t((r * cols + c) * width)],
                        size_t(width));
    return to;
}

// Writes the tensors one after the other, converted to `dtype` if one is given. Only rank 0 has a
// `dir`. `tensors`: those of the file, if they are not the parts themselves.
static void write_tensors(const std::string* dir, const std::string& stem, const GatherParts& parts,
                          std::optional<DType> dtype, int64_t max_shard_bytes,
                          std::vector<FileTensor> tensors = {}) {
    const auto& ours = parts.tensors();
    if (tensors.empty())
        for (const auto& tensor : ours) tensors.push_back({tensor.name, {tensor.name}});
    const auto index = [&](const std::string& name) {  // they are sorted by name
        return size_t(std::ranges::lower_bound(ours, name, {}, &GatherParts::Whole::name) -
                      ours.begin());
    };
    std::vector<SafetensorsWriter::Item> items;
    for (const FileTensor& tensor : tensors) {
        const auto& first = ours.at(index(tensor.parts.front()));
        Shape shape = first.shape;
        shape[0] *= int64_t(tensor.parts.size());
        if (tensor.transposed) std::swap(shape[0], shape[1]);
        items.push_back({tensor.name, std::move(shape), dtype.value_or(first.dtype)});
    }
    std::optional<SafetensorsWriter> writer;
    if (dir) writer.emplace(*dir, stem, items, max_shard_bytes);
    for (size_t i = 0; i < tensors.size(); ++i) {
        std::vector<char> values;
        DType has = {};
        for (const std::string& part : tensors[i].parts) {
            std::vector<char> more = parts.gather(index(part));
            has = ours[index(part)].dtype;
            if (values.empty())
                values = std::move(more);
            else
                values.insert(values.end(), more.begin(), more.end());
        }
        if (!writer) continue;
        const Shape& shape = items[i].shape;
        writer->write(tensors[i].transposed
                          ? transposed(values, shape[1], shape[0], dtype_bytes(has))
                          : values,
                      has);
    }
    if (writer) writer->finish();
}

void CheckpointSave::write(const std::string& dir) const {
    std::optional<StagedFiles> staged;  // on the rank that writes
    if (!group_ || group_->rank() == 0) staged.emplace(dir);
    const std::string* to = staged ? &staged->staging() : nullptr;
    if (to) write_file(*to + "/config.json", config_);
    write_tensors(to, "model", model_, dtype_, max_shard_bytes_, model_tensors_);
    if (optimizer_) {
        write_tensors(to, "optimizer", *optimizer_, std::nullopt, INT64_MAX);
        if (to) write_file(*to + "/trainer_state.json", state_);
    }
    if (staged) {
        std::vector<std::string> stale;
        for (const auto& file : fs::directory_iterator(dir)) {
            std::string name = file.path().filename();
            if (is_checkpoint_file(name) && !fs::exists(*to + "/" + name)) stale.push_back(name);
        }
        staged->commit(stale);
    }
    if (group_) group_->wait_asleep_for(0);
}

void save_checkpoint(const std::string& dir, const LlamaConfig& config,
                     const ParameterList& parameters, const SaveOptions& options) {
    save_checkpoint(dir, config, parameters.parts(&Parameter::value), options);
}

// --profile does not show what belongs to no step, and --trace shows it as one span.
void save_checkpoint(const std::string& dir, const LlamaConfig& config,
                     const std::vector<TensorPart>& weights, const SaveOptions& options) {
    const Untraced one_span("save");
    CheckpointSave(config, weights, options).write(dir);
}

bool has_training_state(const std::string& dir) {
    StagedFiles::recover(dir);
    return fs::exists(dir + "/trainer_state.json");
}

TrainingState load_training_state(const std::string& dir,
                                  const std::vector<TensorPart>& optimizer) {
    StagedFiles::recover(dir);
    const std::string path = dir + "/trainer_state.json";
    json object = parse_json_object(MappedFile(path).text(), path, "training state", 4);
    Fields fields(object, path);
    TrainingState state;
    for (auto [name, value] : {std::pair{"step", &state.step},
                               {"next_sample", &state.next_sample},
                               {"tokens_seen", &state.tokens_seen},
                               {"seq", &state.seq}}) {
        *value = fields.integer(name);
        if (*value < 0) user_error("{}: {} = {} is negative", path, name, *value);
    }
    const json *seed = fields.find("seed"), *shuffled = fields.find("shuffled");
    if (!seed || !seed->is_number_unsigned())
        user_error("{}: \"seed\" is not a non-negative integer", path);
    if (!shuffled || !shuffled->is_boolean())
        user_error("{}: \"shuffled\" is not true or false", path);
    state.seed = seed->get<uint64_t>(), state.shuffled = shuffled->get<bool>();
    if (const json* data = fields.find("data")) {  // may be missing
        if (!data->is_string() || data->get<std::string>().empty())
            user_error("{}: \"data\" is not a file's path", path);
        state.data = data->get<std::string>(), state.data_tokens = fields.integer("data_tokens");
        if (state.data_tokens < 1)
            user_error("{}: data_tokens = {} is not positive", path, state.data_tokens);
    }
    if (const json* recipe = fields.find("recipe")) {
        if (!recipe->is_string()) user_error("{}: \"recipe\" is not a name", path);
        state.recipe = recipe->get<std::string>();
    }
    if (const json* options = fields.find("options")) {  // may be missing
        if (!options->is_object()) user_error("{}: \"options\" is not an object", path);
        for (const auto& [name, text] : options->items()) {
            if (!text.is_string())
                user_error("{}: options: \"{}\" is not a text", path, printable(name));
            state.options[name] = text.get<std::string>();
        }
    }

    Safetensors tensors = Safetensors::file(dir + "/optimizer.safetensors");
    const auto is_master = [](const std::string& name) { return name.starts_with("master."); };
    const bool saved = std::ranges::any_of(std::views::keys(tensors.entries()), is_master);
    if (!optimizer.empty() && saved != std::ranges::any_of(optimizer, is_master, &TensorPart::name))
        user_error(
            "{0}: has {1}master weights: the run that saved it was in {2}, and must resume with "
            "--dtype {2}",
            tensors.path(), saved ? "" : "no ", saved ? "bf16" : "fp32");
    for (const TensorPart& part : optimizer) {
        auto found = tensors.entries().find(part.name);
        if (found != tensors.entries().end() &&
            found->second.dtype != safetensors_dtype(part.tensor.dtype()))
            user_error("{}: tensor \"{}\" is {}; this run keeps it as {}", tensors.path(),
                       part.name, found->second.dtype, safetensors_dtype(part.tensor.dtype()));
        tensors.read(part);
    }
    return state;
}

}  // namespace ultrascale
