// Checkpoints as Hugging Face keeps a Llama: config.json, model.safetensors (or its index and
// shards); and beside them the state of training, so that a resumed run continues bitwise:
// optimizer.safetensors, trainer_state.json.
//
// A save is staged (file.h: StagedFiles): a program that is killed at any moment leaves the former
// checkpoint or the new one, never a mixture. Files of other names in the directory stay. All
// errors are UserError in one line.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "comm/comm.h"
#include "model/config.h"
#include "model/parameter.h"
#include "safetensors.h"

namespace ultrascale {

// `path` is a directory with a config.json, or such a file itself. Reads what transformers 4 writes
// (rope_theta and rope_scaling) and 5 (rope_parameters). Refuses what this model does not compute:
// another model_type, activation, biases, dropout, quantisation, another rope_type.
LlamaConfig load_config(const std::string& path);
std::string config_json(const LlamaConfig& config, DType dtype);  // the text of such a file

// Fills every parameter's value with the slice that this rank holds, converted to its dtype. Values
// must have storage. Tensors that the model has no parameter for are left alone. A second copy of a
// tied weight (owner = false) that has no tensor of its own name reads model.embed_tokens.weight.
void load_parameters(const std::string& dir, const ParameterList& parameters);
void load_parameters(const std::string& dir,
                     const std::vector<TensorPart>& parts);  // shards: just these parts

// Where training stands after `step` updates.
struct TrainingState {
    int64_t step = 0;         // updates done
    int64_t next_sample = 0;  // first sample of the next step
    int64_t tokens_seen = 0;
    uint64_t seed = 0;  // of the data's order, where it is shuffled
    bool shuffled = false;
    int64_t seq = 0;  // tokens of a sample; 0: not known, as no step was done
    // What it reads: a file's absolute path, or built_in_data. Empty: not known.
    std::string data = {};
    int64_t data_tokens = 0;  // how many there are
};
inline const char* const built_in_data = "built-in";  // the text that comes with the project
struct SaveOptions {
    DType dtype = DType::fp32;  // of the weights in the file
    int64_t max_shard_bytes = default_shard_bytes;
    const TrainingState* state = nullptr;       // nullptr: weights only
    std::vector<TensorPart> optimizer = {};     // saved in their own dtype; only with a state
    // all these ranks call it and each has parts; nullptr: one rank calls it and has all
    const Communicator* spread_over = nullptr;
};
// A run may keep more checkpoints below its folder (saves.h); a file of this name says which of
// them is the last. Where a save puts a checkpoint into the folder itself, the file goes.
inline const char* const latest_checkpoint = "latest_checkpoint";

// `weights`: what this rank holds of the model's values. What an earlier save left
// and this one does not replace (optimizer state, other shards) is removed, so the directory always
// holds one checkpoint. What a save communicates belongs to no step of the training: it is not
// counted.
void save_checkpoint(const std::string& dir, const LlamaConfig& config,
                     const std::vector<TensorPart>& weights, const SaveOptions& options = {});
// Of whole parameters.
void save_checkpoint(const std::string& dir, const LlamaConfig& config,
                     const ParameterList& parameters, const SaveOptions& options = {});

// Throws UserError now rather than after the training if `dir` cannot be made or written to.
void check_can_save(const std::string& dir);

bool has_training_state(const std::string& dir);
// Returns the state and fills the parts of the optimizer's tensors, which must be there in the same
// shapes and dtypes: bitwise.
TrainingState load_training_state(const std::string& dir,
                                  const std::vector<TensorPart>& optimizer = {});

}  // namespace ultrascale
