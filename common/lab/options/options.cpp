// What the shared options mean for the model and the data.
#include <filesystem>

#include "cli.h"
#include "core/error.h"
#include "core/memory.h"
#include "files/checkpoint.h"

namespace ultrascale {

std::string Options::data_path() const {
    if (!data.empty()) return data;
    // build/<backend>/<chapter> -> common/, wherever the project was cloned to
    return (std::filesystem::canonical("/proc/self/exe").parent_path() / "../../common/text.txt")
        .lexically_normal();
}

std::string Options::data_name() const {
    if (data.empty()) return built_in_data;
    std::error_code ignored;
    const std::string path = std::filesystem::absolute(data, ignored).lexically_normal();
    return path.empty() ? data : path;
}

void Options::refuse_recompute_by_layer() const {
    if (!recompute.same_in_all_layers())
        user_error("--recompute {}: here all layers do the same; use none, selective or full",
                   recompute.text());
}

void Options::refuse_figures(const std::string& mode) const {
    for (const auto& [option, path] : {std::pair("--json", json), std::pair("--html", html)})
        if (!path.empty()) user_error("{}: {} has no figures to write", option, mode);
}

LlamaConfig Options::config() const {
    LlamaConfig c;
    if (!load.empty()) {
        c = load_config(load);
        c.tied = c.tied && !own_head;
        const int64_t seq_so_far = has_training_state(load) ? load_training_state(load).seq : 0;
        if (seq_so_far > 0) c.default_seq = seq_so_far;
    } else {
        c = std::filesystem::is_directory(model) ? load_config(model) : preset(model);
    }
    if (layers > 0 && !load.empty() && layers != c.layers)
        user_error("--layers {}: the checkpoint in {} has {}, and all of them are loaded", layers,
                   load, format_count(c.layers, "layer"));
    if (layers > 0) c.layers = layers;
    if (window > 0) c.window = window;
    c.prefix = prefix;
    validate(c);
    if (c.experts.count > 0 && !with_experts)
        user_error("{}: a model with experts; 06_expert_parallel trains such models",
                   load.empty() ? "--model " + model : "--load " + load);
    return c;
}

}  // namespace ultrascale
