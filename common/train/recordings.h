// --cuda-graph: a micro-batch's forward and backward are recorded and then replayed, so that the
// host launches one graph instead of every operation (core/recording.h).
//
//     step 1   runs as usual: cuBLAS's kernels are chosen, and states are allocated
//     step 2   is recorded, and replayed once
//     step 3   is replayed: Step::micro_batches() passes over it
//
// A recording repeats operations with the numbers that it was made with, so it fits only
// micro-batches of the same shape and token weight. Others run as usual, and are recorded instead
// if two in a row are alike. What changes from step to step has tensors of its own, into which the
// present micro-batch is copied: the tokens and the loss. The first micro-batch of a step has a
// recording for itself, because it overwrites the gradients to which later ones add, and so has the
// last one, during which they may be summed over ranks. The update is not recorded: it has only a
// few launches, and another learning rate in each step.
//
// The host's part of a replay is what other code counts: contributions to gradients
// (Context::contributed), and calls of communication, whose times are not known. Hooks are not
// called, so there must be none that a replay would need.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "comm/comm.h"
#include "core/recording.h"
#include "model/parts.h"

namespace ultrascale {

struct Options;
class Report;

class Recordings {
public:
    explicit Recordings(std::function<std::unique_ptr<Recording>()> make = make_recording)
        : make_(std::move(make)) {}

    // Replays the recording of such a micro-batch, if there is one: true. `last`: of the step.
    bool replay(const Context& context, bool last);
    // Otherwise the micro-batch runs between these two calls. begin() records it if one like it has
    // run before, and `may_record`; then it points the context to the recording's tensors.
    void begin(Context& context, bool last, bool may_record);
    void end();

    int64_t replays() const { return replays_; }
    // Prints how many replays there were, and of how many operations of the device.
    void report(Report& report) const;

private:
    struct Kind {  // of micro-batches that have one recording
        Shape shape;
        bool documents;
        float token_weight;
        bool operator==(const Kind&) const = default;
    };
    struct Recorded {
        Kind kind;
        Batch batch;
        Tensor loss;
        std::vector<Parameter*> contributions = {};
        CommunicationCounts sent = {};
        std::unique_ptr<Recording> recording = {};
    };
    struct Slot {                  // for micro-batches at one place in a step
        std::optional<Kind> last;  // the kind that ran last
        std::optional<Recorded> recorded;
    };
    static Kind kind_of(const Context& context);
    static void play(const Recorded& recorded, const Tensor& loss);

    std::function<std::unique_ptr<Recording>()> make_;
    Slot& slot_of(const Context& context, bool last) {
        return slots_[2 * (context.micro_batch == 0) + last];
    }
    Slot slots_[4];         // neither first nor last, last, first, both
    Slot* open_ = nullptr;  // the one that is being recorded,
    Tensor loss_;           // and the step's loss
    int64_t made_ = 0, replays_ = 0, launches_ = 0;
};

// For a run with --cuda-graph. Prints what it will do; or why it cannot, for its own reason
// `why_not` or a general one: then it returns nullptr.
std::unique_ptr<Recordings> make_recordings(const Options& options, const char* why_not = nullptr);

}  // namespace ultrascale
