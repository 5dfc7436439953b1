#include "recordings.h"

#include <array>

#include "core/ops.h"
#include "lab/options/cli.h"
#include "lab/report/report.h"

namespace ultrascale {

namespace {

// The batch's tensors, in order; one is empty without documents.
template <class B>
auto tensors(B& batch) {
    return std::array{&batch.tokens, &batch.targets, &batch.positions, &batch.document_starts};
}

// A copy that later micro-batches are copied into.
Tensor own(const Tensor& tensor) {
    return tensor ? Tensor::empty(tensor.shape(), tensor.dtype(), Memory::workspace) : Tensor();
}

void copy_batch(const Batch& to, const Batch& from) {
    for (size_t i = 0; i < tensors(to).size(); ++i)
        if (*tensors(to)[i]) ops::copy(*tensors(to)[i], *tensors(from)[i]);
}

}  // namespace

Recordings::Kind Recordings::kind_of(const Context& context) {
    return {.shape = context.batch.tokens.shape(),
            .documents = bool(context.batch.document_starts),
            .token_weight = context.token_weight};
}

void Recordings::play(const Recorded& recorded, const Tensor& loss) {
    ops::copy(recorded.loss, loss);
    recorded.recording->replay();
    ops::copy(loss, recorded.loss);
}

bool Recordings::replay(const Context& context, bool last_of_step) {
    const Kind kind = kind_of(context);
    auto& [last, recorded] = slot_of(context, last_of_step);
    if (!recorded || recorded->kind != kind) return false;
    last = kind;
    copy_batch(recorded->batch, context.batch);
    play(*recorded, context.loss);
    ++replays_, launches_ += recorded->recording->launches();
    communication_add_counts(recorded->sent);
    const Context silent;
    for (Parameter* parameter : recorded->contributions) {
        parameter->has_grad = true;
        silent.contributed(*parameter);
    }
    return true;
}

void Recordings::begin(Context& context, bool last, bool may_record) {
    const Kind kind = kind_of(context);
    Slot& slot = slot_of(context, last);
    if (std::exchange(slot.last, kind) != kind || !may_record) return;
    std::unique_ptr<Recording> recording = make_();
    if (!recording) return;
    slot.recorded.reset();
    Batch batch = context.batch;
    for (Tensor* tensor : tensors(batch)) *tensor = own(*tensor);
    copy_batch(batch, context.batch);
    slot.recorded = Recorded{kind, std::move(batch), own(context.loss)};
    slot.recorded->recording = std::move(recording);
    open_ = &slot, loss_ = std::exchange(context.loss, slot.recorded->loss);
    context.batch = slot.recorded->batch;
    context.contributions = &slot.recorded->contributions;
    slot.recorded->sent = communication_counts();
    slot.recorded->recording->begin();
}

void Recordings::end() {
    if (!open_) return;
    Recorded& recorded = *std::exchange(open_, nullptr)->recorded;
    recorded.recording->end();
    recorded.sent = difference(communication_counts(), recorded.sent);
    ++made_;
    play(recorded, std::exchange(loss_, {}));
}

void Recordings::report(Report& report) const {
    print(fmt::format("\nCUDA graphs: {}, replayed {}; a replay has {:.0f} launches",
                      format_count(made_, "recording"), format_count(replays_, "time"),
                      replays_ > 0 ? double(launches_) / double(replays_) : 0));
    report.value("graph", "recordings", double(made_));
    report.value("graph", "replays", double(replays_));
    report.value("graph", "launches", double(launches_));
}

std::unique_ptr<Recordings> make_recordings(const Options& options, const char* why_not) {
    if (!make_recording())
        why_not = "a CPU runs an operation when it is called, so there are no launches";
    if (!options.trace.empty()) why_not = "--trace times each operation";
    if (options.profile) why_not = "--profile times each operation";
    if (options.checksums) why_not = "--checksums reads each gradient when it is complete";
    if (options.inter_gbps > 0) why_not = "--inter-gbps makes the host wait";
    if (options.dropout > 0) why_not = "--dropout draws other numbers for each sample";
    print(why_not ? fmt::format("  graph   not used: {}", why_not)
                  : "  graph   a micro-batch is recorded in step 2, and replayed from then on");
    return why_not ? nullptr : std::make_unique<Recordings>();
}

}  // namespace ultrascale
