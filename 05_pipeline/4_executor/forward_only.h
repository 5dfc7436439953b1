// Forward without training, for the validation loss and for generated text: one batch at a time
// goes from stage to stage, and the ranks wait for each other.
#pragma once

#include <algorithm>

#include "../3_stages.h"
#include "model/step_shape.h"
#include "train/sampling.h"

namespace ultrascale::pipeline {

class ForwardOnly {
public:
    // The shape of a batch between two stages: (B, T, h), unless a technique cuts it.
    using StreamShape = std::function<Shape(const Batch&)>;
    ForwardOnly(const Communicator& pp, const Schedule& schedule, RankStages& stages,
                const StepShape& shape, StreamShape stream_shape = {})
        : pp_(pp),
          locations_(schedule.locations().front()),
          stages_(stages),
          shape_(shape),
          stream_shape_(std::move(stream_shape)) {
        if (!stream_shape_)
            stream_shape_ = [h = shape.config.hidden](const Batch& batch) {
                return Shape{batch.sequences(), batch.length(), h};
            };
    }

    // Adds to context.loss on the rank that has the last stage.
    void loss(Context& context) {
        through_stages(context.batch, [&](Llama& model, Tensor x) {
            Saved nothing;
            return model.forward(std::move(x), nothing, context);
        });
    }

    // The logits (V) of the token that follows the text, on every rank.
    std::vector<float> next_token(const HostBatch& text) {
        const Tensor row = Tensor::zeros({shape_.config.vocab}, DType::fp32, Memory::workspace);
        const Batch batch = to_device(text);
        Context context{.batch = batch, .training = false};
        through_stages(batch, [&](Llama& model, Tensor x) {
            Saved nothing;
            if (&model != last_model()) return model.forward(std::move(x), nothing, context);
            const Tensor logits = model.logits(batch, nullptr, std::move(x));
            ops::copy(row,
                      logits.view({text.length, row.numel()}).slice(text.length - 1, text.length));
            return Tensor();
        });
        if (pp_.size() > 1) pp_.all_reduce(row);  // zeros but on one rank
        return row.to_host<float>();
    }

private:
    Llama* last_model() const {
        const auto& [rank, chunk] = locations_.back();
        return rank == pp_.rank() ? &stages_.chunk(chunk) : nullptr;
    }
    void through_stages(const Batch& batch, const std::function<Tensor(Llama&, Tensor)>& run) {
        Tensor x;  // (B, T, h)
        for (size_t s = 0; s < locations_.size(); ++s) {
            if (locations_[s].rank != pp_.rank()) continue;
            const int from = s > 0 ? locations_[s - 1].rank : pp_.rank(),
                      to = s + 1 < locations_.size() ? locations_[s + 1].rank : pp_.rank();
            if (from != pp_.rank()) {
                x = Tensor::empty(stream_shape_(batch), shape_.model.dtype, Memory::activation);
                pp_.recv(x, from);
            }
            x = run(stages_.chunk(locations_[s].chunk), std::move(x));
            if (to != pp_.rank()) pp_.send(std::move(x), to), x = {};
        }
    }

    const Communicator& pp_;
    std::vector<StageLocation> locations_;  // of each stage
    RankStages& stages_;
    StepShape shape_;
    StreamShape stream_shape_;
};

}  // namespace ultrascale::pipeline
