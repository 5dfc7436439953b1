// --checksums: what a rank reads, computes and holds in each step, as numbers that can be compared.
//
// A checksum is a hash of a tensor's bytes (64-bit FNV-1a): two tensors are equal bit by bit if
// their hashes are. Beside it stand the L2 norm and the share of elements that are zero, which say
// how two tensors differ. Each rank takes them, a step, of
//
//     data           the rows of the file and the batch made of them, for each micro-batch
//     own_gradients  its own contributions, before they are summed over ranks
//     gradients      the sums that it holds, before clipping
//     weights        after the update
//
// Ranks that hold the same part of a tensor hold copies, and those must be equal in the last two,
// as must the data of ranks that share a replica of the model. These are compared. What ranks hold
// in parts (a linear over tp, a shard of ZeRO) has a name with its ranges, and is not. Two runs are
// compared by checksums.py.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "model/batch.h"
#include "model/parts.h"
#include "report.h"

namespace ultrascale {

class Checksums : public Hooks {
public:
    // `replica`: ranks with the same number take the same samples. Keeps a reference.
    Checksums(Report& report, int64_t replica) : report_(report), replica_(replica) {}

    void begin_step(int64_t step) { steps_[step]; }
    // These add to the step that began last. A batch may be read twice in a step. As hooks they
    // must be called before those of a technique, which sum the gradient.
    void batch(int64_t micro_batch, const HostBatch& batch, const std::vector<int64_t>& rows);
    void gradient_complete(Parameter& parameter, const Context& context) override;
    void gradients(const std::vector<TensorPart>& parts);
    // Ends a step: writes {"checksums": {...}} lines for all ranks, and compares the copies. All
    // ranks call it.
    void end_step(int64_t step, const std::vector<TensorPart>& weights);
    // Prints the table and adds the section "checksums" to the summary.
    void finish();

private:
    using Json = nlohmann::ordered_json;
    struct Kind {  // on rank 0
        int64_t compared = 0, different = 0;
        std::string first = {};  // the first step and tensor that differ, in words
        Json place = {};
    };
    void compare(const std::string& kind, int64_t step, const std::vector<Json>& of_ranks);

    Report& report_;
    int64_t replica_;
    std::map<int64_t, Json> steps_;  // that are not finished
    std::map<std::string, Kind> kinds_;
    int64_t rows_ = 0, different_rows_ = 0;  // that a step reads, over the steps
};

}  // namespace ultrascale
