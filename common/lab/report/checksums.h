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
// as must the data of ranks that share a replica of the model. These are compared. A part's name
// has its ranges ("lm_head.weight[0:64,0:128]"), so ranks that hold other parts of a tensor (over
// tp, or ZeRO's shards) are not. checksums.py compares two runs.
#pragma once

#include <memory>
#include <vector>

#include "model/batch.h"
#include "model/parts.h"
#include "report.h"

namespace ultrascale {

class Checksums : public Hooks {
public:
    // `replica`: ranks with the same number take the same samples. alike: copies should be equal
    // after each step; false if ranks train on their own for a while. Keeps a reference.
    Checksums(Report& report, int64_t replica, bool alike = true);
    ~Checksums() override;

    void begin_step(int64_t step);
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
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace ultrascale
