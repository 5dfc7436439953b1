// The fields of config.json for latent attention: model_type "deepseek_v2" and "deepseek_v3".
// Private to common/files.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "json_fields.h"
#include "model/config.h"

namespace ultrascale {

inline bool is_latent(const std::string& model_type) {
    return model_type == "deepseek_v2" || model_type == "deepseek_v3";
}

// Sets head_dim and latent; heads must have been read. (transformers' head_dim is rope_dim here.)
void read_latent(const Fields& fields, LlamaConfig& config);
// Adds or replaces what differs from a Llama's config.json.
void write_latent(nlohmann::ordered_json& config, const LlamaConfig& c);

}  // namespace ultrascale
