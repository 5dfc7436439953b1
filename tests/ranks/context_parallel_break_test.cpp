// Breaks the techniques of 04_context_parallel on purpose, one at a time, and expects --verify, the
// memory check or the communication check to fail, on any number of ranks (part of comm_test).
#include "context_break.h"

namespace ultrascale::context_break {
using namespace ultrascale::context_parallel;
namespace {

TEST(ContextParallelBreak, UnchangedTechniquesPass) {
    NEEDS_RANKS();
    for (const ContextOptions& context : every_variant()) {
        SCOPED_TRACE(describe(context, 1));
        expect(train(context), true, true, true);
    }
    if (ranks() % 2 != 0) return;
    for (ContextOptions half : {plain(), ring_of(Layout::zigzag)}) {  // with data parallelism, too
        half.cp = ranks() / 2;
        if (half.cp > 1) expect(train(half), true, true, true);
    }
}

TEST(ContextParallelBreak, UnchangedTechniquesPassTheOtherWays) {
    NEEDS_RANKS();
    for (const ContextOptions& context :
         {ring_of(Layout::zigzag), bidirectional(), all_gather(Layout::zigzag), ulysses()}) {
        SCOPED_TRACE(describe(context, 1));
        for (const bool documents : {false, true}) {
            const Breaks other{.split_backward = documents,
                               .loss_chunk = documents ? 0 : 5,
                               .documents = documents,
                               .dropout = 0.1,
                               .tied = !documents};
            EXPECT_TRUE(train(context, other).verified);
        }
    }
    EXPECT_TRUE(
        train(plain(), {.split_backward = true, .loss_chunk = 5, .dropout = 0.1, .tied = true})
            .verified);
    for (const ContextOptions& context : {plain(), ring_of(Layout::zigzag)}) {
        expect(train(context, {.sum_in_backward = true}), true, true, true);
        EXPECT_FALSE(train(context, {.summed_apart = {"cp"}, .sum_in_backward = true}).verified);
    }
    // The lengths of documents differ by rank, and so do the targets that each rank counts.
    EXPECT_TRUE(train(ring_of(Layout::striped), {.documents = true}).verified);
}

TEST(ContextParallelBreak, GradientsAreSummedOverDataParallelRanksOnly) {
    NEEDS_RANKS();
    for (const ContextOptions& context : {plain(), ring_of(Layout::zigzag), ulysses()}) {
        expect(train(context, {.sum = false}), false, true, false);
        EXPECT_FALSE(train(context, {.summed_apart = {"cp"}}).verified);
    }
}

// Each chunk ends with its own first token as the target, as if the chunk were a sequence.
TEST(ContextParallelBreak, TargetsAreShiftedAfterTheCut) {
    NEEDS_RANKS();
    Breaks breaks;
    breaks.batch = [](HostBatch& part, const Communicator&) {
        for (int64_t b = 0; b < part.sequences; ++b)
            part.targets[size_t((b + 1) * part.length - 1)] = part.tokens[size_t(b * part.length)];
    };
    for (const ContextOptions& context :
         {plain(), ring_of(Layout::zigzag), rounded_ring(Layout::zigzag),
          all_gather(Layout::contiguous)})
        expect(train(context, breaks), false, true, true);
}

TEST(ContextParallelBreak, EachRankCountsItsOwnTargets) {
    NEEDS_RANKS();
    expect(train(ring_of(Layout::zigzag), {.own_denominator = true}), false, true, true);
    EXPECT_FALSE(
        train(ring_of(Layout::contiguous), {.own_denominator = true, .documents = true}).verified);
}

TEST(ContextParallelBreak, PositionsRestartOnEachRank) {
    NEEDS_RANKS();
    Breaks breaks;
    breaks.batch = [](HostBatch& part, const Communicator&) {
        for (size_t i = 0; i < part.positions.size(); ++i)
            part.positions[i] = int32_t(i % size_t(part.length));
    };
    for (const ContextOptions& context :
         {plain(), ring_of(Layout::contiguous), ring_of(Layout::zigzag), ulysses()})
        expect(train(context, breaks), false, true, true);
}

// Batches are cut for one layout, but masks are made for another.
TEST(ContextParallelBreak, MasksAreOfAnotherLayout) {
    NEEDS_RANKS();
    for (const auto& [cut, planned] : {std::pair(Layout::zigzag, Layout::contiguous),
                                       std::pair(Layout::contiguous, Layout::striped)})
        EXPECT_FALSE(train(ring_of(cut), {.attention =
                                              [planned = planned](const Ingredients& i) {
                                                  return i.ring(i.cp, planned);
                                              }})
                         .verified);
}

// Merges that round need wider bounds, and get them.
TEST(ContextParallelBreak, RoundedMergesHaveBoundsOfTheirOwn) {
    NEEDS_RANKS();
    for (const Layout layout : {Layout::contiguous, Layout::zigzag, Layout::striped}) {
        expect(train(rounded_ring(layout)), true, true, true);
        expect(train(rounded_ring(layout), {.bounds = verify_bounds(DType::fp32)}), false, true,
               true);
    }
    EXPECT_TRUE(train(rounded_ring(Layout::zigzag), {.documents = true}).verified);
}

// The ring numbers its ranks from the other end, so they take keys for those of other owners.
TEST(ContextParallelBreak, KeysAreOfAnotherOwner) {
    NEEDS_RANKS();
    for (const ContextOptions& context :
         {plain(), ring_of(Layout::zigzag, RingBackward::restarted), ring_of(Layout::zigzag)}) {
        std::optional<Communicator> turned;
        const auto attention = [&](const Ingredients& i) {
            if (!turned) turned = i.cp.split(0, -i.cp.rank(), "cp");
            return i.ring(*turned, i.options.layout);
        };
        expect(train(context, {.attention = attention}), false, true, true);
    }
}

// The chapter's ring; a test does something before and after it.
struct ChangedRing : AttentionCore {
    explicit ChangedRing(const Ingredients& i)
        : cp(i.cp), layout(i.options.layout), ring(i.ring()) {}
    Tensor forward(const Tensor& q, const Tensor& k, const Tensor& v, Saved& saved,
                   Context& context) override {
        return ring->forward(q, k, v, saved, context);
    }
    Gradients backward(const Tensor& dout, Saved& saved, Context& context) override {
        return ring->backward(dout, saved, context);
    }
    const Communicator& cp;
    Layout layout;
    std::unique_ptr<AttentionCore> ring;
};
template <class Core>
Breaks with() {
    return {.attention = [](const Ingredients& i) { return std::make_unique<Core>(i); }};
}

// If this passes, the following tests fail because of their mistakes.
TEST(ContextParallelBreak, ARingInTheTestPasses) {
    NEEDS_RANKS();
    for (const Layout layout : {Layout::contiguous, Layout::zigzag, Layout::striped})
        expect(train(ring_of(layout), with<ChangedRing>()), true, true, true);
    expect(train(plain(), with<ChangedRing>()), true, true, true);
}

// Every rank uses only its own keys and forgets those that came round the ring.
TEST(ContextParallelBreak, BlocksAreForgotten) {
    NEEDS_RANKS();
    struct Broken : ChangedRing {
        using ChangedRing::ChangedRing;
        Tensor forward(const Tensor& q, const Tensor& k, const Tensor& v, Saved& saved,
                       Context& context) override {
            const Tensor o = ring->forward(q, k, v, saved, context);
            const Tensor own = Tensor::empty(o.shape(), o.dtype(), Memory::workspace),
                         lse = Tensor::empty({q.size(0), q.size(2), q.size(1)}, DType::fp32,
                                             Memory::workspace);
            ops::attention_forward(own, lse, q, k, v, {});  // in order within a rank
            ops::copy(o, own);
            ops::copy(saved.get("lse"), lse);
            return o;
        }
    };
    for (const ContextOptions& context :
         {plain(), ring_of(Layout::zigzag), rounded_ring(Layout::zigzag)})
        expect(train(context, with<Broken>()), false, true, true);
}

// Backward takes the log-sum-exp over a rank's own keys for the one over all keys.
TEST(ContextParallelBreak, BackwardHasTheLogSumExpOfOneBlock) {
    NEEDS_RANKS();
    struct Broken : ChangedRing {
        using ChangedRing::ChangedRing;
        Tensor forward(const Tensor& q, const Tensor& k, const Tensor& v, Saved& saved,
                       Context& context) override {
            const Tensor o = ring->forward(q, k, v, saved, context);
            const Tensor own = Tensor::empty(o.shape(), o.dtype(), Memory::workspace);
            ops::attention_forward(own, saved.get("lse"), q, k, v, {});
            return o;
        }
    };
    for (const ContextOptions& context :
         {plain(), ring_of(Layout::contiguous), rounded_ring(Layout::contiguous)})
        expect(train(context, with<Broken>()), false, true, true);
}

// The blocks' outputs are averaged, whatever their weights.
TEST(ContextParallelBreak, OutputsAreAveraged) {
    NEEDS_RANKS();
    struct Broken : ChangedRing {
        using ChangedRing::ChangedRing;
        Tensor forward(const Tensor& q, const Tensor& k, const Tensor& v, Saved& saved,
                       Context& context) override {
            const Tensor o = ring->forward(q, k, v, saved, context);
            const int64_t n = cp.size();
            const auto gathered = [&](const Tensor& x) {
                Shape shape = x.shape();
                shape[0] *= n;
                const Tensor all = Tensor::empty(shape, x.dtype(), Memory::workspace);
                cp.all_gather(all, x);
                return all;
            };
            const Tensor all_k = gathered(k), all_v = gathered(v);
            const Tensor block = Tensor::empty(o.shape(), o.dtype(), Memory::workspace),
                         lse = Tensor::empty({q.size(0), q.size(2), q.size(1)}, DType::fp32,
                                             Memory::workspace);
            std::vector<float> sum(size_t(o.numel()), 0);
            for (int owner = 0; owner <= cp.rank(); ++owner) {
                ops::attention_forward(
                    block, lse, q, all_k.slice(owner * B, (owner + 1) * B),
                    all_v.slice(owner * B, (owner + 1) * B),
                    {.q_offset = cp.rank() * q.size(1), .k_offset = owner * q.size(1)});
                const std::vector<float> values = block.to_host<float>();
                for (size_t i = 0; i < sum.size(); ++i) sum[i] += values[i] / float(cp.rank() + 1);
            }
            Tensor mean = o;
            mean.copy_from_host(sum.data());
            return o;
        }
    };
    for (const ContextOptions& context :
         {plain(), ring_of(Layout::contiguous), rounded_ring(Layout::contiguous)})
        EXPECT_FALSE(train(context, with<Broken>()).verified);
}

// The keys and values of one rank get a gradient from its own queries at most.
TEST(ContextParallelBreak, AGradientNeverComesHome) {
    NEEDS_RANKS();
    struct Broken : ChangedRing {
        using ChangedRing::ChangedRing;
        Gradients backward(const Tensor& dout, Saved& saved, Context& context) override {
            const Gradients gradients = ring->backward(dout, saved, context);
            if (cp.rank() == 0) ops::fill(gradients.dk, 0), ops::fill(gradients.dv, 0);
            return gradients;
        }
    };
    for (const ContextOptions& context :
         {plain(), ring_of(Layout::zigzag, RingBackward::restarted), ring_of(Layout::zigzag)})
        expect(train(context, with<Broken>()), false, true, true);
}

// The plain ring's finished sums stop one rank before their owner, as if the last hop were missing.
TEST(ContextParallelBreak, TheLastHopHomeIsLeftOut) {
    NEEDS_RANKS();
    struct Broken : ChangedRing {
        explicit Broken(const Ingredients& i) : ChangedRing(i), stream(i.stream) {}
        // Moves the sums one rank back from home: an owner has its neighbour's sums.
        Gradients backward(const Tensor& dout, Saved& saved, Context& context) override {
            const Gradients home = ring->backward(dout, saved, context);
            const Gradients short_of_it{
                home.dq, Tensor::empty(home.dk.shape(), home.dk.dtype(), Memory::workspace),
                Tensor::empty(home.dv.shape(), home.dv.dtype(), Memory::workspace)};
            const int n = cp.size(), back = (cp.rank() + n - 1) % n, from = (cp.rank() + 1) % n;
            cp.send_recv({{Transfer::send, home.dk, back},
                          {Transfer::send, home.dv, back},
                          {Transfer::recv, short_of_it.dk, from},
                          {Transfer::recv, short_of_it.dv, from}},
                         stream)
                .wait();
            return short_of_it;
        }
        Stream& stream;
    };
    expect(train(plain(), with<Broken>()), false, true, false);
}

// The reversed backward must start with the keys that forward held last, but starts with its own.
TEST(ContextParallelBreak, TheReversedBackwardStartsWithItsOwnKeys) {
    NEEDS_RANKS();
    struct Broken : ChangedRing {
        using ChangedRing::ChangedRing;
        Tensor forward(const Tensor& q, const Tensor& k, const Tensor& v, Saved& saved,
                       Context& context) override {
            const Tensor o = ring->forward(q, k, v, saved, context);
            ops::copy(saved.get("k"), k), ops::copy(saved.get("v"), v);
            return o;
        }
    };
    expect(train(ring_of(Layout::zigzag), with<Broken>()), false, true, true);
    expect(train(ring_of(Layout::zigzag, RingBackward::restarted), with<Broken>()), true, true,
           true);
}

TEST(ContextParallelBreak, KeepsOrSendsOtherThanPredicted) {
    NEEDS_RANKS();
    const auto predicted_as = [](const ContextOptions& context, const ContextOptions& predicted) {
        return train(context, {.predicted = predicted});
    };
    const ContextOptions reversed = ring_of(Layout::zigzag),
                         again = ring_of(Layout::zigzag, RingBackward::restarted),
                         kept = ring_of(Layout::zigzag, RingBackward::kept);
    EXPECT_FALSE(predicted_as(plain(), reversed).communication);
    EXPECT_FALSE(predicted_as(again, reversed).communication);
    EXPECT_FALSE(predicted_as(reversed, again).communication);
    EXPECT_FALSE(predicted_as(kept, reversed).communication);
    EXPECT_FALSE(predicted_as(kept, reversed).memory);
    EXPECT_FALSE(predicted_as(bidirectional(), reversed).communication);
    EXPECT_FALSE(predicted_as(all_gather(Layout::zigzag), reversed).communication);
    EXPECT_FALSE(predicted_as(all_gather(Layout::zigzag), reversed).memory);
    EXPECT_FALSE(predicted_as(ulysses(), reversed).communication);
}

}  // namespace
}  // namespace ultrascale::context_break
