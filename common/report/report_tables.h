// Private to report.cpp: its tables of what was held and sent, predicted beside measured.
#pragma once

#include <nlohmann/json.hpp>

#include "prediction.h"

namespace ultrascale {

using Json = nlohmann::ordered_json;

// "memory per rank": rank 0 prints its own; `full`: and a row a rank, where ranks differ. All ranks
// call it. Returns whether this rank held what it predicted.
struct MemoryTable {
    bool as_predicted;
    Json by_category;  // {category: {predicted, measured}}, of this rank
    Json by_rank;      // the same of each rank: an array
};
MemoryTable print_memory(const MemoryEstimate& predicted, bool full);

// "communication per step": a row a kind of call; `full`: and a row a group, where several groups
// make such calls. Of a run of `steps` steps, whose times were taken in the last `timed` of them,
// after `in_warmup`. Returns whether this rank sent what it predicted, in each group.
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

// --estimate (estimate_tables.cpp): both tables of what is predicted alone, for the rank that has
// the least memory left, and whether it fits there. All ranks call it. Returns the summary's
// sections: those of a run, without what was measured.
Json print_estimate(const Prediction& of_run, int64_t steps, const std::string& advice);

}  // namespace ultrascale
