// Proves that a schedule trains the model: every micro-batch passes every stage of its copy, no
// action comes before its inputs, the ranks never wait for each other in a circle, and no rank
// holds more activations than allowed. Ranks run their lists in order and receive inputs when they
// need them, so all of this follows from the lists.
//
//     rank 0   F0 D0 F1 D1      waits at D0 for rank 1, which does F1 before D0
//     rank 1   F0 F1 D0 D1      waits at F1 for rank 0, which does D0 before F1: a circle
#pragma once

#include <limits>
#include <utility>

#include "core/error.h"
#include "dependencies.h"

namespace ultrascale::pipeline {

class ScheduleCheck {
public:
    explicit ScheduleCheck(const Schedule& schedule) : schedule_(schedule) {}

    // Throws UserError, in one line with rank and action, for the first fault.
    void run(double most_in_flight) {
        stages();
        for (int rank = 0; rank < schedule_.ranks(); ++rank) {
            actions(rank);
            pairs(rank);
        }
        deadlock();
        for (int rank = 0; rank < schedule_.ranks(); ++rank) memory(rank, most_in_flight);
    }

private:
    template <class... Args>
    [[noreturn]] void fault(fmt::format_string<Args...> format, Args&&... args) const {
        user_error("schedule {}: {}", schedule_.name,
                   fmt::format(format, std::forward<Args>(args)...));
    }
    std::string name(int rank, const Action& action) const {
        return to_string(schedule_, rank, action);
    }

    // Checks that each stage of each copy is on one rank.
    void stages() const {
        const int stages = schedule_.stages, m = schedule_.micro_batches;
        if (m < 1 || stages < 1 || schedule_.ranks() < 1 ||
            schedule_.actions.size() != schedule_.chunks.size())
            fault("it needs ranks, stages and micro-batches");
        std::vector<int> holder(size_t(2 * stages), -1);
        int copies = 1;
        for (int rank = 0; rank < schedule_.ranks(); ++rank) {
            const std::vector<Chunk>& chunks = schedule_.chunks[size_t(rank)];
            if (chunks.size() > most_chunks)
                fault("rank {} has {} chunks; letters name at most {}", rank, chunks.size(),
                      most_chunks);
            for (const auto& [stage, copy] : chunks) {
                if (stage < 0 || stage >= stages || copy < 0 || copy > 1)
                    fault(
                        "rank {} holds stage {} of copy {}; there are stages 0 to {}, of two "
                        "copies at most",
                        rank, stage, copy, stages - 1);
                int& other = holder[size_t(copy * stages + stage)];
                if (other >= 0) fault("rank {} and rank {} both hold stage {}", other, rank, stage);
                other = rank, copies = std::max(copies, copy + 1);
            }
        }
        for (int i = 0; i < copies * stages; ++i)
            if (holder[size_t(i)] < 0)
                fault("no rank holds stage {}{}", i % stages,
                      i < stages ? "" : " of the second copy");
        if (m % copies != 0)
            fault("{} micro-batches cannot be shared by two copies of the model", m);
    }

    // Checks that a rank's list is complete and in order: for each chunk and micro-batch F, then D
    // or B and W.
    void actions(int rank) const {
        const int chunks = int(schedule_.chunks[size_t(rank)].size()), m = schedule_.micro_batches;
        struct Done {
            bool forward = false, backward = false, weight = false;
        };
        std::vector<Done> all(size_t(m * chunks));
        for (const Action& action : schedule_.actions[size_t(rank)]) {
            if (action.chunk < 0 || action.chunk >= chunks)
                fault("rank {}: {} is of a chunk that the rank does not have", rank,
                      to_string(action, true));
            if (action.micro_batch < 0 || action.micro_batch >= m)
                fault("rank {}: {}: there are micro-batches 0 to {}", rank, name(rank, action),
                      m - 1);
            const int copy = schedule_.chunks[size_t(rank)][size_t(action.chunk)].copy;
            if (schedule_.copy_of(action.micro_batch) != copy)
                fault("rank {}: {}: the micro-batch belongs to the other copy of the model", rank,
                      name(rank, action));
            Done& done = all[size_t(action.micro_batch * chunks + action.chunk)];
            const auto needs = [&](bool before, ActionKind kind) {
                if (before) return;
                const Action missing{kind, action.micro_batch, action.chunk};
                fault("rank {}: {} needs {}, which is not done before it", rank, name(rank, action),
                      name(rank, missing));
            };
            bool again = false;
            if (action.kind == ActionKind::forward) {
                again = std::exchange(done.forward, true);
            } else if (sends_back(action.kind)) {
                needs(done.forward, ActionKind::forward);
                again = std::exchange(done.backward, true);
                if (frees(action.kind)) again = std::exchange(done.weight, true) || again;
            } else {
                needs(done.backward, ActionKind::backward_input);
                again = std::exchange(done.weight, true);
            }
            if (again)
                fault("rank {}: {} is done already{}", rank, name(rank, action),
                      action.kind == ActionKind::forward ? "" : "; D is B and W together");
        }
        for (int c = 0; c < chunks; ++c)
            for (int micro_batch = 0; micro_batch < m; ++micro_batch) {
                if (schedule_.copy_of(micro_batch) !=
                    schedule_.chunks[size_t(rank)][size_t(c)].copy)
                    continue;
                const Done& done = all[size_t(micro_batch * chunks + c)];
                const auto missing = [&](ActionKind kind, const char* hint) {
                    fault("rank {}: {} is missing{}", rank, name(rank, {kind, micro_batch, c}),
                          hint);
                };
                if (!done.forward) missing(ActionKind::forward, "");
                if (!done.backward) missing(ActionKind::backward, ", or B and W in its place");
                if (!done.weight) missing(ActionKind::backward_weight, "");
            }
    }

    // Checks that two actions that run together are a forward and a backward, and independent.
    void pairs(int rank) const {
        const std::vector<Action>& actions = schedule_.actions[size_t(rank)];
        for (size_t i = 0; i < actions.size(); ++i) {
            if (!actions[i].with_next) continue;
            if (i + 1 == actions.size() || actions[i + 1].with_next)
                fault("rank {}: {} runs together with one action that follows", rank,
                      name(rank, actions[i]));
            const Action &one = actions[i], &other = actions[i + 1];
            const bool pass = one.kind == ActionKind::forward && sends_back(other.kind);
            const bool reversed = other.kind == ActionKind::forward && sends_back(one.kind);
            if (!pass && !reversed)
                fault("rank {}: {}+{}: a forward runs together with a D or B", rank,
                      name(rank, one), name(rank, other));
            if (one.micro_batch == other.micro_batch)
                fault("rank {}: {}+{} are of one micro-batch, and one needs the other", rank,
                      name(rank, one), name(rank, other));
        }
    }

    // Runs all lists as far as they go, regardless of time.
    void deadlock() const {
        const Dependencies needs(schedule_);
        std::vector<size_t> at(size_t(schedule_.ranks()), 0);  // each rank's next action
        std::vector<char> done(size_t(2 * schedule_.micro_batches * schedule_.stages), 0);
        const auto result = [&](bool backward, int micro_batch, int stage) -> char& {
            return done[size_t((micro_batch * schedule_.stages + stage) * 2 + backward)];
        };
        // The message that a rank waits for at its next action, or at the one that runs together
        // with it.
        struct Wait {
            Action action;
            Input input;
        };
        const auto wait = [&](int rank) -> std::optional<Wait> {
            const std::vector<Action>& actions = schedule_.actions[size_t(rank)];
            for (size_t i = at[size_t(rank)]; i < actions.size(); ++i) {
                const auto input = needs.input(rank, actions[i]);
                if (input && !result(input->backward, input->micro_batch, input->stage))
                    return Wait{actions[i], *input};
                if (!actions[i].with_next) break;
            }
            return std::nullopt;
        };
        for (bool progress = true; progress;) {
            progress = false;
            for (int rank = 0; rank < schedule_.ranks(); ++rank) {
                const std::vector<Action>& actions = schedule_.actions[size_t(rank)];
                size_t& next = at[size_t(rank)];
                while (next < actions.size() && !wait(rank)) {
                    for (bool more = true; more; progress = true) {
                        const Action& action = actions[next++];
                        more = action.with_next;
                        if (action.kind != ActionKind::backward_weight)
                            result(sends_back(action.kind), action.micro_batch,
                                   needs.chunk(rank, action).stage) = 1;
                    }
                }
            }
        }
        for (int rank = 0; rank < schedule_.ranks(); ++rank)
            if (at[size_t(rank)] < schedule_.actions[size_t(rank)].size()) hangs(rank, wait);
    }
    // Follows from rank to rank who waits for whom, until a rank comes up again.
    template <class WaitOf>
    [[noreturn]] void hangs(int rank, const WaitOf& wait) const {
        std::vector<int> chain;
        while (std::ranges::find(chain, rank) == chain.end())
            chain.push_back(rank), rank = wait(rank)->input.rank;
        chain.erase(chain.begin(), std::ranges::find(chain, rank));
        std::string circle;
        for (const int waiting : chain) {
            const auto [action, input] = *wait(waiting);
            circle += fmt::format(
                "{} at {} for {} of {}",
                circle.empty() ? fmt::format("rank {} waits", waiting) : ", which waits",
                name(waiting, action), result_name(input),
                input.rank == waiting ? "its own" : fmt::format("rank {}", input.rank));
        }
        fault("it hangs: {}", circle);
    }
    std::string result_name(const Input& input) const {
        const auto& chunks = schedule_.chunks[size_t(input.rank)];
        const int copy = schedule_.copy_of(input.micro_batch);
        const auto found = std::ranges::find(chunks, Chunk{input.stage, copy});
        const int chunk = int(found - chunks.begin());
        for (const Action& action : schedule_.actions[size_t(input.rank)])
            if (action.micro_batch == input.micro_batch && action.chunk == chunk &&
                (input.backward ? sends_back(action.kind) : action.kind == ActionKind::forward))
                return name(input.rank, action);
        return "";
    }

    void memory(int rank, double most) const {
        const std::vector<double> held = in_flight(schedule_, rank);
        for (size_t i = 0; i < held.size(); ++i)
            if (held[i] > most)
                fault("rank {} holds the activations of {} micro-batches during {}; {} fit", rank,
                      held[i], name(rank, schedule_.actions[size_t(rank)][i]), most);
    }

    const Schedule& schedule_;
};

// `most_in_flight`: how many micro-batches' activations a rank may hold, counted as in in_flight().
inline void check_schedule(const Schedule& schedule,
                           double most_in_flight = std::numeric_limits<double>::infinity()) {
    ScheduleCheck(schedule).run(most_in_flight);
}

}  // namespace ultrascale::pipeline
