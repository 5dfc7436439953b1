// Private to the report: its tables of memory and communication, predicted and measured.
#pragma once

#include <nlohmann/json.hpp>

#include "lab/predict/estimate.h"

namespace ultrascale {

using Json = nlohmann::ordered_json;

// "memory per rank": rank 0 prints its own table; with `full` also a row per rank if ranks differ.
// All ranks call it. Returns which categories differ from this rank's prediction, and by how much.
struct MemoryTable {
    std::string wrong;
    Json by_category;  // {category: {predicted, measured}}, of this rank
    Json by_rank;      // an array of the same for each rank
};
MemoryTable print_memory(const MemoryEstimate& predicted, bool full);

// "communication per step": a row per kind of call; with `full` also a row per group if several
// groups make such calls. The figures are averages over a run of `steps` steps; times are those of
// the last `timed` steps, without `in_warmup`. Returns whether this rank sent what it predicted in
// each group.
struct CommunicationTable {
    bool as_predicted;
    Json by_kind;   // {kind: {calls, ...}}
    Json by_group;  // {group: {kind: {calls, ...}}}
};
CommunicationTable print_communication(const PredictedCommunication& predicted,
                                       const CommunicationCounts& counted,
                                       const CommunicationCounts& in_warmup, int64_t steps,
                                       int64_t timed, bool full);

// {category: {predicted}}, as in MemoryTable.
Json predicted_memory(const MemoryEstimate& predicted);

// --estimate (estimate_tables.cpp): prints both tables with predictions only, for the rank that has
// the least memory left, and whether it fits. All ranks call it. Returns the same sections of the
// summary as a run, without measurements.
Json print_estimate(const Prediction& run_prediction, int64_t steps, const Advice& advice);

}  // namespace ultrascale
