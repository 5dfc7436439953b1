// This file puts context parallelism together: which tokens of a sequence a rank takes, and the
// attention that its model's layers use. Everything else in a layer works on single tokens and
// stays as it is. Weights are whole on every rank; their gradients are summed over dp and cp
// together.
//
//     cp ranks = ring_degree x ulysses_degree (USP); rank = place in the ring x ulysses_degree +
//     place inside
//
// The sequence is cut over the ring (2_zigzag.h), and each chunk of the cut over the ranks inside,
// which put it together again before attention (8_ulysses.h).
#pragma once

#include "1_ring_backward.h"
#include "6_general_ring.h"
#include "7_all_gather.h"
#include "8_ulysses.h"
#include "comm/mesh.h"
#include "model/dropout.h"
#include "model/llama.h"
#include "train/data.h"

namespace ultrascale::context_parallel {

class ContextParallel {
public:
    // All ranks of the group call it.
    ContextParallel(const LlamaConfig& config, const ContextOptions& options, int64_t seq,
                    const Communicator& cp)
        : config_(config),
          options_(options),
          cp_(cp),
          inside_rank_(cp.rank() % options.ulysses_degree()),
          ring_rank_(cp.rank() / options.ulysses_degree()),
          cut_(options.layout, options.ring_degree(), seq, mask_of(config)),
          plan_{RingPlan(cut_, options.bidirectional, nullptr), {}},
          stream_(std::make_unique<Stream>("ring")) {
        if (options.ulysses_degree() > 1)
            inside_ =
                cp.split(ring_rank_, cp.rank(), "ulysses", options.ulysses_degree(), inside_rank_);
        if (options.variant == Variant::usp && options.ring_degree() > 1)
            ring_ = cp.split(inside_rank_, cp.rank(), "ring", options.ring_degree(), ring_rank_);
    }
    ContextParallel(const ContextParallel&) = delete;  // parts keep a pointer to it

    // Returns the factories of this rank's parts, which keep a pointer to this object.
    ModuleFactories factories(const ModelOptions& model) {
        ModelOptions plain = model;
        plain.dropout = 0;  // added last, around these parts
        ModuleFactories factories = default_factories(config_, plain);
        add_to(factories);
        add_dropout(factories,
                    {.p = float(model.dropout),
                     .seed = model.seed,
                     .tokens = [this](int64_t rows) { return token_ranges(rows / local_length()); },
                     .keeps_masks = model.keep_masks});
        return factories;
    }

    // Sets the attention of a model of other parts, which may hold some of the heads only (those
    // of this object's config).
    void add_to(ModuleFactories& factories) {
        if (options_.cp > 1)
            factories.attention = [this](const ModulePath&) { return attention(); };
    }

    // Returns this rank's part of each sequence. Targets come along: they were shifted in the whole
    // sequence, so a chunk's last token still has the next chunk's first one as its target.
    HostBatch part(const HostBatch& whole) const {
        HostBatch part{.sequences = whole.sequences,
                       .length = local_length(),
                       .prefix = whole.prefix,
                       .counted_targets = whole.counted_targets,
                       .first_sample = whole.first_sample,
                       .whole_length = whole.length};
        const auto own = [&](const std::vector<int32_t>& all) {  // empty: the batch has none of it
            std::vector<int32_t> mine;
            for (int64_t b = 0; b < whole.sequences && !all.empty(); ++b)
                for (int64_t i = 0; i < part.length; ++i)
                    mine.push_back(all[size_t(b * whole.length + position(i))]);
            return mine;
        };
        part.tokens = own(whole.tokens);
        part.targets = own(whole.targets);
        part.positions = own(whole.positions);
        part.document_starts = own(whole.document_starts);
        if (!whole.document_starts.empty()) part.whole = std::make_shared<const HostBatch>(whole);
        return part;
    }
    // Returns the place in the sequence of this rank's i-th token.
    int64_t position(int64_t i) const {
        const int64_t chunk = cut_.chunk(0).size(), own = chunk / options_.ulysses_degree();
        return cut_.position(ring_rank_, i / own * chunk + inside_rank_ * own + i % own);
    }
    int64_t local_length() const { return cut_.seq() / options_.cp; }

    const SequenceCut& cut() const { return cut_; }  // over the ring
    const ContextOptions& options() const { return options_; }
    const Communicator& group() const { return cp_; }
    bool has_ring() const { return options_.has_ring() && options_.ring_degree() > 1; }
    const Communicator& ring() const { return ring_ ? *ring_ : cp_; }
    int ring_rank() const { return ring_rank_; }

    // What goes round the ring for a batch, and the document starts (also those of a window) of the
    // tokens that this place in the ring has.
    const PlanOfBatch& plan_of(const Batch& batch) {
        if (!batch.whole) return plan_;
        if (!documents_ || documents_->batch() != batch.whole.get()) {
            documents_ = std::make_unique<Documents>(batch.whole, cut_);
            document_plan_ = std::make_unique<PlanOfBatch>(
                RingPlan(cut_, options_.bidirectional, documents_.get()),
                documents_->starts_of(ring_rank_));
        }
        return *document_plan_;
    }

private:
    std::unique_ptr<AttentionCore> attention() {
        const auto plans = [this](const Batch& batch) -> const PlanOfBatch& {
            return plan_of(batch);
        };
        if (options_.variant == Variant::plain) return std::make_unique<PlainRing>(cp_, *stream_);
        if (options_.variant == Variant::all_gather)
            return std::make_unique<AllGatherAttention>(cp_, cut_, orders_);
        std::unique_ptr<AttentionCore> core;
        if (options_.ring_degree() > 1)
            core = std::make_unique<RingAttention>(ring(), *stream_, options_, plans, orders_);
        else
            core = std::make_unique<FlashAttention>();
        if (options_.ulysses_degree() == 1) return core;
        return std::make_unique<UlyssesAttention>(
            *inside_, cut_.chunks(), config_.kv_heads, std::move(core),
            [this](const Batch& batch) { return plan_of(batch).document_starts; }, orders_);
    }
    // Returns which tokens of a micro-batch of `sequences` sequences this rank's rows hold, for
    // dropout.
    std::vector<TokenRange> token_ranges(int64_t sequences) const {
        std::vector<TokenRange> ranges;
        for (int64_t b = 0; b < sequences; ++b)
            for (int64_t i = 0; i < local_length(); ++i)
                add_token(ranges, b * local_length() + i, b * cut_.seq() + position(i));
        return ranges;
    }

    LlamaConfig config_;
    ContextOptions options_;
    const Communicator& cp_;
    std::optional<Communicator> ring_, inside_;
    int inside_rank_, ring_rank_;
    SequenceCut cut_;
    PlanOfBatch plan_;  // without documents
    std::unique_ptr<Documents> documents_;
    std::unique_ptr<PlanOfBatch> document_plan_;
    std::unique_ptr<Stream> stream_;
    RowOrders orders_;
};

}  // namespace ultrascale::context_parallel
