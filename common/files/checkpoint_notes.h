// What a user should know about a checkpoint before training it: the parts of it that are not
// understood, and would be lost silently.
#pragma once

#include <string>
#include <vector>

#include "model/config.h"

namespace ultrascale {

// Whether the checkpoint in `dir` holds an output head that differs from its embedding. Such a head
// is not tied, whatever config.json says (as in transformers 5). UserError if a file is invalid.
bool has_own_head(const std::string& dir);

// Sentences about `path`, a directory or a config.json: the fields of config.json that are not
// understood; and, if its weights are `loaded` for `config`, the tensors that this model does not
// have, and a head that is not tied.
std::vector<std::string> checkpoint_notes(const std::string& path, const LlamaConfig& config,
                                          bool loaded);

}  // namespace ultrascale
