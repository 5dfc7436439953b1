// A GPT-2's config.json, and the names and layouts of its weights. Private to common/files.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "json_fields.h"
#include "model/config.h"
#include "safetensors.h"

namespace ultrascale {

// Reads and writes the fields of model_type "gpt2". Probabilities of dropout are not part of the
// model here (--dropout); a file that we write says 0.
LlamaConfig read_gpt2(const Fields& fields);
std::string gpt2_config_json(const LlamaConfig& config, const char* dtype);

// Adds this project's names for the tensors of a GPT-2: "model.layers.3.self_attn.k_proj.weight"
// for the transpose of the middle columns of "h.3.attn.c_attn.weight". Does nothing for others.
void add_gpt2_names(Safetensors& file);

// The tensors of a GPT-2's file, given the names of ours, sorted.
std::vector<FileTensor> gpt2_tensors(const std::vector<std::string>& ours);

}  // namespace ultrascale
