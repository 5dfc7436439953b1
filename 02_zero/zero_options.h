// What the chapter's options choose.
#pragma once

#include "2_flat_layout.h"

namespace ultrascale::zero {

enum class GatherOverlap { optimizer, forward };

// How numbers travel: as they are, or in fewer bits (8_narrow.h).
enum class Sent { plain, bf16, fp8 };

struct ZeroOptions {
    int stage = 1;
    bool plain = false;  // stage 1 as 1_plain.h has it
    bool muon = false;   // or as 7_muon.h
    GatherOverlap gather_overlap = GatherOverlap::forward;
    int shard_size = 0;          // ranks that share a set of shards; 0: all (7_hybrid.h)
    int secondary_shard = 0;     // of stage 3: ranks with a second set of shards (7_secondary.h)
    int64_t prefetch = 1;        // of stage 3, in units
    bool keep_gathered = false;  // stage 3: gather a unit's parameters once a step
    Cut cut = Cut::unit;         // stage 3: the layout's, or the whole model as one flat tensor
    Sent gathers = Sent::plain;  // of stage 3's parameters: plain or fp8
    Sent sums = Sent::plain;     // of stages 2 and 3: gradients
    bool offload_activations = false;  // a layer's kept input is on the host
    bool offload = false;  // of stages 1 to 3: the optimizer's states and update are on the host
    // stages 0 and 1: communicate gradients after each micro-batch, as 2 and 3 do anyway
    bool every_micro_batch = false;
};

}  // namespace ultrascale::zero
