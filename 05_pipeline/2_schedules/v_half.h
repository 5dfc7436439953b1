// V-Half: half of 1F1B's activations and half of its bubble. Stages are placed as a V (zbv.h), and
// a rank's six actions for one micro-batch form a block, which repeats every six time slots. How
// soon a block's next action follows decides how long activations are held:
//
//     slot     0  1  2  3  4  5  6  7  8  9  10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25
//     rank 0   Fa                            Fb          Bb                               Ba
//     rank 1         Fa                   Fb                   Bb                      Ba
//     rank 2               Fa          Fb                            Bb             Ba
//     rank 3                     Fa Fb                                     Bb    Ba
//
// Each W takes the first slot after its B that repeated blocks leave empty. From one rank to the
// next a forward takes two slots downwards and one upwards, and so does a backward, six together: a
// rank's two chunks hold activations for about 6p slots together. As a micro-batch begins every six
// slots, a rank holds those of about p chunks, half of what 1F1B's rank 0 holds; never more than
// (p+2)/2 micro-batches, rounded down. (With twelve slots it would be ZB-V, with four V-Min.)
//
// The steady state remains unchanged. Before and after it, when few micro-batches are under way,
// slots are empty: actions move to earlier slots if that needs no more memory, and at the end B's
// come before W's. With few micro-batches there is no steady state, and all actions move. The
// README's step of 4 ranks, 1369 ms with 1F1B, takes 1113, and 3 micro-batches are held, not 4.
// Qi et al., "Pipeline Parallelism with Controllable Memory", 2024 (arXiv 2405.15362), section 4.
#pragma once

#include <algorithm>
#include <array>
#include <functional>
#include <tuple>

#include "core/error.h"
#include "placement.h"

namespace ultrascale::pipeline {

class VHalf {
public:
    VHalf(int ranks, int micro_batches)
        : ranks_(ranks),
          micro_batches_(micro_batches),
          slots_(size_t(6 * ranks + 12 * micro_batches + 6)),
          lines_(size_t(ranks), Line(slots_)) {
        for (int rank = 0; rank < ranks; ++rank) repeat_block(rank);
    }

    Schedule schedule() {
        const int steady_from = block(0)[backward_a], steady_until = 6 * (micro_batches_ - 1);
        const auto in_tail = [&](const Slot& slot) { return slot.planned > steady_until; };
        move_earlier([&](const Slot& slot) { return slot.planned < steady_from || in_tail(slot); });
        std::vector<Slot> delayed = take_last_weights();
        move_earlier(in_tail);
        fill_with(delayed);

        Schedule schedule = empty_schedule("v-half", micro_batches_, v_shaped(ranks_));
        std::ranges::sort(plan_, {}, &Slot::at);
        for (const Slot& slot : plan_)
            schedule.actions[size_t(slot.rank)].push_back(
                {kinds[slot.part].kind, slot.micro_batch, kinds[slot.part].chunk});
        return schedule;
    }

private:
    // A block's parts, in the order in which a micro-batch passes them.
    enum Part { forward_a, forward_b, backward_b, backward_a, weight_b, weight_a };
    struct Kind {
        ActionKind kind;
        int chunk;
    };
    static constexpr Kind kinds[] = {
        {ActionKind::forward, 0},         {ActionKind::forward, 1},
        {ActionKind::backward_input, 1},  {ActionKind::backward_input, 0},
        {ActionKind::backward_weight, 1}, {ActionKind::backward_weight, 0}};
    struct Slot {
        int rank;
        Part part;
        int micro_batch;
        int at, planned;
        bool forward() const { return part <= forward_b; }
        bool weight() const { return part >= weight_b; }
    };
    struct Line {
        explicit Line(size_t slots) : used(slots), held(slots) {}
        std::vector<char> used;
        std::vector<int> held;               // chunks whose activations the rank holds
        std::array<std::vector<int>, 6> at;  // by part and micro-batch
    };
    int limit() const { return (ranks_ + 2) / 2 * 2; }  // in chunks

    // The slots of a rank's F's and B's for its first micro-batch. If the number of ranks is even,
    // the last rank waits three slots more before backward: otherwise parts of two micro-batches
    // would meet in a slot.
    std::array<int, 4> block(int rank) const {
        const int p = ranks_, turn = p % 2 == 0 ? 3 : 0;
        return {2 * rank, 3 * p - 2 - rank, 3 * p - 1 + turn + 2 * rank, 6 * p - 2 + turn - rank};
    }
    // Repeats the block every six slots, and puts each W into the first free slot after its B.
    void repeat_block(int rank) {
        Line& line = lines_[size_t(rank)];
        for (std::vector<int>& part_slots : line.at) part_slots.resize(size_t(micro_batches_));
        std::vector<Slot> backwards;
        for (int part = forward_a; part <= backward_a; ++part)
            for (int m = 0; m < micro_batches_; ++m) {
                const int at = block(rank)[size_t(part)] + 6 * m;
                put({rank, Part(part), m, at, at});
                if (part >= backward_b) backwards.push_back(plan_.back());
            }
        fill_after(backwards);
        for (const Slot& slot : plan_)
            if (slot.rank == rank && slot.forward())
                for (size_t t = size_t(slot.at); t < slots_; ++t) ++line.held[t];
            else if (slot.rank == rank && slot.weight())
                for (size_t t = size_t(slot.at) + 1; t < slots_; ++t) --line.held[t];
    }
    void put(const Slot& slot) {
        Line& line = lines_[size_t(slot.rank)];
        check(!line.used[size_t(slot.at)], "two actions in one slot");
        line.used[size_t(slot.at)] = true;
        line.at[slot.part][size_t(slot.micro_batch)] = slot.at;
        plan_.push_back(slot);
    }
    // Inserts the W's of these B's of one rank, the oldest first.
    void fill_after(std::vector<Slot> backwards) {
        std::ranges::sort(backwards, {}, &Slot::at);
        for (const Slot& b : backwards) {
            int at = b.at + 1;
            while (lines_[size_t(b.rank)].used[size_t(at)]) ++at;
            put({b.rank, b.part == backward_a ? weight_a : weight_b, b.micro_batch, at, at});
        }
    }

    // The first slot in which an action finds its input, if its predecessors stay where they are.
    int earliest(const Slot& slot) const {
        const int r = slot.rank, last = ranks_ - 1;
        const auto after = [&](int rank, int part, int micro_batch) {
            return lines_[size_t(rank)].at[size_t(part)][size_t(micro_batch)] + 1;
        };
        const int before = slot.micro_batch == 0 ? 0 : after(r, slot.part, slot.micro_batch - 1);
        const auto needs = [&](int rank, int part) {
            return std::max(before, after(rank, part, slot.micro_batch));
        };
        switch (slot.part) {
            case forward_a: return r == 0 ? before : needs(r - 1, forward_a);
            case forward_b: return r == last ? needs(r, forward_a) : needs(r + 1, forward_b);
            case backward_b: return r == 0 ? needs(r, forward_b) : needs(r - 1, backward_b);
            case backward_a: return r == last ? needs(r, backward_b) : needs(r + 1, backward_a);
            case weight_b: return needs(r, backward_b);
            case weight_a: return needs(r, backward_a);
        }
        return 0;
    }
    // Moves one action after the other to the earliest empty slot, if it may move and its rank
    // never holds more than the limit.
    void move_earlier(const std::function<bool(const Slot&)>& may_move) {
        std::ranges::sort(plan_, [](const Slot& a, const Slot& b) {
            return std::tie(a.at, a.part, a.rank) < std::tie(b.at, b.part, b.rank);
        });
        for (Slot& slot : plan_) {
            if (!may_move(slot)) continue;
            Line& line = lines_[size_t(slot.rank)];
            int to = slot.at;
            for (int t = slot.at - 1; t >= earliest(slot); --t) {
                if (slot.forward() && line.held[size_t(t)] == limit()) break;
                if (!line.used[size_t(t)]) to = t;
            }
            for (int t = to; t < slot.at; ++t) {
                if (slot.forward()) ++line.held[size_t(t)];
                if (slot.weight()) --line.held[size_t(t) + 1];
            }
            line.used[size_t(slot.at)] = false, line.used[size_t(to)] = true;
            slot.at = line.at[slot.part][size_t(slot.micro_batch)] = to;
        }
    }
    // Takes the W's after each rank's last forward out of the plan, since they can wait.
    std::vector<Slot> take_last_weights() {
        std::vector<Slot> taken;
        std::erase_if(plan_, [&](const Slot& slot) {
            const Line& line = lines_[size_t(slot.rank)];
            const bool take = slot.weight() && slot.at > line.at[forward_b].back();
            if (take)
                taken.push_back(slot), lines_[size_t(slot.rank)].used[size_t(slot.at)] = false;
            return take;
        });
        return taken;
    }
    void fill_with(const std::vector<Slot>& weights) {
        std::vector<std::vector<Slot>> backwards(static_cast<size_t>(ranks_));
        for (Slot slot : weights) {
            slot.part = slot.part == weight_a ? backward_a : backward_b;
            slot.at = lines_[size_t(slot.rank)].at[slot.part][size_t(slot.micro_batch)];
            backwards[size_t(slot.rank)].push_back(slot);
        }
        for (const std::vector<Slot>& rank_slots : backwards) fill_after(rank_slots);
    }

    int ranks_, micro_batches_;
    size_t slots_;
    std::vector<Line> lines_;  // one for each rank
    std::vector<Slot> plan_;
};

inline Schedule v_half(int ranks, int micro_batches) {
    return VHalf(ranks, micro_batches).schedule();
}

}  // namespace ultrascale::pipeline
