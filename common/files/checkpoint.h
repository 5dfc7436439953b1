// Checkpoints in Hugging Face's format for a Llama, GPT-2, Mixtral, Qwen3-MoE, DeepSeekMoE, V2
// or V3: config.json, model.safetensors (or its index and shards), with experts one by one or
// stacked.
// Next to them optimizer.safetensors and trainer_state.json hold the state of training, so that a
// resumed run continues with the same bits.
//
// A save is staged (file.h: StagedFiles): if the program is killed at any moment, the previous
// checkpoint or the new one remains, never a mixture. Other files in the directory remain
// untouched. All errors are UserErrors of one line.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "comm/comm.h"
#include "gather_parts.h"
#include "model/config.h"
#include "model/parameter.h"
#include "safetensors.h"

namespace ultrascale {

// `path` is a directory with a config.json, or the file itself. Reads the formats of transformers 4
// (rope_theta and rope_scaling; num_experts) and 5 (rope_parameters; num_local_experts). Refuses
// what this model does not support: another model_type or activation, biases, dropout,
// quantisation, another rope_type. `unknown` receives the names of fields that it does not
// understand, except for those that cannot change the model.
LlamaConfig load_config(const std::string& path, std::vector<std::string>* unknown = nullptr);
std::string config_json(const LlamaConfig& config, DType dtype);  // the text of such a file

// Fills every parameter's value with the slice that this rank holds, converted to its dtype. Values
// must have storage. Tensors in the file without a parameter are ignored.
void load_parameters(const std::string& dir, const ParameterList& parameters);
void load_parameters(const std::string& dir,
                     const std::vector<TensorPart>& parts);  // for shards: just these parts

// The state of training after `step` updates.
struct TrainingState {
    int64_t step = 0;         // number of updates done
    int64_t next_sample = 0;  // first sample of the next step
    int64_t tokens_seen = 0;
    uint64_t seed = 0;  // determines the data's order, if it is shuffled
    bool shuffled = false;
    int64_t seq = 0;  // tokens per sample; 0: unknown, as no step was done
    // The training data: a file's absolute path, or built_in_data. Empty: unknown.
    std::string data = {};
    int64_t data_tokens = 0;  // the data's length
    // The formats of the states, if --dtype does not say it (08_mixed_precision's recipe).
    std::string recipe = {};
    // The options that change the computation, as they were given: {"--lr", "0.003"}. A run that
    // resumes uses them, too.
    std::map<std::string, std::string> options = {};
};
inline const char* const built_in_data = "built-in";  // the project's own text
struct SaveOptions {
    DType dtype = DType::fp32;  // of the weights in the file
    int64_t max_shard_bytes = default_shard_bytes;
    const TrainingState* state = nullptr;    // nullptr: weights only
    std::vector<TensorPart> optimizer = {};  // saved in their own dtype; only with a state
    // All these ranks call it, each with its parts. nullptr: one rank calls it and has everything.
    const Communicator* spread_over = nullptr;
    // For a save beside the training: it reads copies of the tensors, and communicates in a group
    // of its own.
    bool from_copies = false;
};
// A run may keep more checkpoints in subfolders (saves.h); a file of this name contains the latest
// one's name. A save into the folder itself removes this file.
inline const char* const latest_checkpoint = "latest_checkpoint";

// What a checkpoint consists of, and how it is written. `weights`: this rank's parts of the model's
// values. All ranks of options.spread_over make all calls.
class CheckpointSave {
public:
    CheckpointSave(const LlamaConfig& config, const std::vector<TensorPart>& weights,
                   const SaveOptions& options);
    CheckpointSave(const CheckpointSave&) = delete;
    // Files of an earlier save that this one does not replace (optimizer state, other shards) are
    // removed, so the directory always holds one checkpoint. Rank 0 writes; on the other ranks the
    // call returns when it has done so. A save's communication is not counted.
    void write(const std::string& dir) const;

    // The bytes that are taken from this rank.
    int64_t own_bytes() const;
    // With options.from_copies, the constructor has allocated copies of them in host memory
    // (Memory::checkpoint). copy() fills these, from parts like the constructor's, and waits for
    // that. Then another thread may write() while the training goes on.
    void copy(const std::vector<TensorPart>& weights, const SaveOptions& options);

private:
    std::optional<Communicator> group_;
    const Communicator* ranks() const { return group_ ? &*group_ : nullptr; }

    std::string config_, state_;  // the texts of config.json and trainer_state.json
    DType dtype_;                 // of the weights in the file
    int64_t max_shard_bytes_;
    GatherParts model_;
    std::vector<FileTensor> model_tensors_;  // of the file; empty: the parts of model_
    std::optional<GatherParts> optimizer_;  // only with a state
};

// Collects and writes at once.
void save_checkpoint(const std::string& dir, const LlamaConfig& config,
                     const std::vector<TensorPart>& weights, const SaveOptions& options = {});
void save_checkpoint(const std::string& dir, const LlamaConfig& config,
                     const ParameterList& parameters, const SaveOptions& options = {});

// Throws UserError now, rather than after the training, if `dir` cannot be created or written to.
void check_can_save(const std::string& dir);

bool has_training_state(const std::string& dir);
// Returns the state and fills `optimizer` with the saved bits; the tensors must have been saved
// with the same shapes and dtypes.
TrainingState load_training_state(const std::string& dir,
                                  const std::vector<TensorPart>& optimizer = {});

}  // namespace ultrascale
