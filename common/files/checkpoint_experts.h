// Experts in config.json and in the files of weights. Private to common/files.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>

#include "json_fields.h"
#include "model/config.h"

namespace ultrascale {

// Reads the fields that the model_type "mixtral", "qwen3_moe" or "deepseek" adds to a Llama's. Both
// num_local_experts (Mixtral; since transformers 5 all models) and num_experts (Qwen3-MoE in
// transformers 4) are accepted.
void read_experts(const Fields& fields, const std::string& model_type, LlamaConfig& config);
// Adds these fields, in a form that transformers 4 and 5 read; sets model_type and architectures.
void write_experts(nlohmann::ordered_json& config, const LlamaConfig& c);

// transformers 5 holds the experts of a layer stacked, and can save them in this form:
//   model.layers.3.mlp.experts.gate_up_proj (E, 2 F, h)    ... .down_proj (E, h, F)
// Calls add(name, first row, rows) for each matrix that the stack `name` of this shape contains,
// under its classic names, Mixtral's and Qwen's; rows count through all of the stack. Does nothing
// if it is not such a stack.
using AddMatrix = std::function<void(const std::string& name, int64_t first_row, int64_t rows)>;
void unstack_experts(const std::string& name, const std::vector<int64_t>& shape,
                     const AddMatrix& add);

// The other convention's name (Mixtral's, or Qwen's and DeepSeek's) for a router's or an expert's
// weight: "A.mlp.experts.5.gate_proj.weight" for "A.block_sparse_moe.experts.5.w1.weight". "" for
// other names.
std::string other_expert_name(const std::string& name);

}  // namespace ultrascale
