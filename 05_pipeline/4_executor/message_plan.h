// Which messages a schedule needs, and when each rank makes room for them. Both are known before
// the step begins, since the schedule is.
//
//     rank 0   | F0 | F1 | F2 | F3 |     sends x0 after F0, and has let go of it before F2, which
//                   ....x0....           makes the message after the next one to rank 1
//     rank 1   |    | F0 | F1 | F2 |     has posted the receive of x0 before its own F0
//
// When is a receive posted? If it is too late, the sender must hold its tensor longer; if it is too
// early, it occupies memory longer. The schedule is simulated once, with F = B = W = 1, D = 2 and
// messages that take no time. The receive is posted one action before the one during which the
// message arrives there.
//
// When does a sender free its tensor? Before it makes the message after the next one to the same
// rank, it waits until this one has been received. So two may be under way, and the wait costs
// nothing unless a hop lasts longer than that.
//
// It cannot deadlock: in the simulation every receive is posted before any rank waits for it, and
// other times do not change the order of any rank's actions. A rank's memory follows from the
// schedule alone, so it can be predicted.
#pragma once

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "../2_schedules/simulate.h"

namespace ultrascale::pipeline {

// The output of a stage's forward, or the gradient of its input, on its way to a neighbour.
struct Message {
    int from, to;       // ranks; equal if a rank passes it to another of its own chunks
    int made_by, for_;  // actions of these ranks, by their index
    bool local() const { return from == to; }
};

class MessagePlan {
public:
    // check_schedule() must accept the schedule. post_validation: a step's first forwards can be
    // repeated, see provisional().
    explicit MessagePlan(const Schedule& schedule, bool post_validation = false)
        : schedule_(schedule), provisional_(size_t(schedule.ranks()), 0) {
        find_messages();
        run();
        if (post_validation) find_provisional();
        place_receives_and_releases();
    }

    const std::vector<Message>& messages() const { return messages_; }
    int actions(int rank) const { return int(schedule_.actions[size_t(rank)].size()); }
    // "F3", named after the action that makes the message.
    std::string name(int message) const {
        const Message& m = messages_[size_t(message)];
        return to_string(schedule_, m.from, schedule_.actions[size_t(m.from)][size_t(m.made_by)]);
    }
    // By rank and action: the index of the message that the action takes in or sends; -1: none.
    int input(int rank, int action) const { return input_[size_t(rank)][size_t(action)]; }
    int output(int rank, int action) const { return output_[size_t(rank)][size_t(action)]; }
    // A rank's tasks before an action: the receives to post, in the order in which their senders
    // send, and the outputs to free when they have been received. Index actions.size(): after the
    // last action.
    const std::vector<int>& posts(int rank, int action) const {
        return posts_[size_t(rank)][size_t(action)];
    }
    const std::vector<int>& releases(int rank, int action) const {
        return releases_[size_t(rank)][size_t(action)];
    }
    // With post-validation (5_post_validation.h): how many of a rank's first actions run before it
    // knows whether its weights are right. They are forwards, and need nothing but such forwards of
    // other ranks. Before their end no receive of any other message is posted, and nothing is
    // freed, so all of them can be repeated.
    int provisional(int rank) const { return provisional_[size_t(rank)]; }
    bool provisional(const Message& m) const { return m.made_by < provisional(m.from); }
    // The ordered pairs of ranks in which the first sends to the second.
    std::vector<std::pair<int, int>> links() const {
        std::vector<std::pair<int, int>> pairs;
        for (const Message& m : messages_)
            if (!m.local()) pairs.emplace_back(m.from, m.to);
        std::ranges::sort(pairs);
        pairs.erase(std::ranges::unique(pairs).begin(), pairs.end());
        return pairs;
    }

private:
    // An action's key: its kind (forward or backward), micro-batch and stage.
    using Key = std::tuple<bool, int, int>;

    void find_messages() {
        const int ranks = schedule_.ranks();
        std::map<Key, std::pair<int, int>> made_by;  // rank, action
        const auto each = [&](auto visit) {
            for (int r = 0; r < ranks; ++r)
                for (int i = 0; i < int(schedule_.actions[size_t(r)].size()); ++i) {
                    const Action& a = schedule_.actions[size_t(r)][size_t(i)];
                    if (a.kind == ActionKind::backward_weight) continue;
                    const int stage = schedule_.chunks[size_t(r)][size_t(a.chunk)].stage;
                    visit(r, i, a.micro_batch, stage, a.kind == ActionKind::forward);
                }
        };
        each([&](int r, int i, int m, int stage, bool forward) {
            made_by[{forward, m, stage}] = {r, i};
        });
        for (const auto& actions : schedule_.actions) {
            input_.emplace_back(actions.size(), -1);
            output_.emplace_back(actions.size(), -1);
        }
        each([&](int r, int i, int m, int stage, bool forward) {
            const int before = forward ? stage - 1 : stage + 1;
            if (before < 0 || before == schedule_.stages) return;
            const auto maker = made_by.find({forward, m, before});
            check(maker != made_by.end(), "a schedule lacks an action that another one needs");
            const auto [from, index] = maker->second;
            input_[size_t(r)][size_t(i)] = output_[size_t(from)][size_t(index)] =
                int(messages_.size());
            messages_.push_back({from, r, index, i});
        });
    }

    // Nominal time: F, B and W take one unit each, D two, and messages none.
    void run() {
        const Costs nominal{.stages = std::vector<StageCost>(size_t(schedule_.stages), {1, 1, 1})};
        for (const auto& rank_actions : simulate(schedule_, nominal).ranks) {
            std::vector<double>&begins = begin_.emplace_back(), &ends = end_.emplace_back();
            for (const TimedAction& timed : rank_actions)
                begins.push_back(timed.begin), ends.push_back(timed.end);
        }
    }

    // Finds the first forwards of each rank, as long as their inputs come from such forwards.
    void find_provisional() {
        for (size_t r = 0; r < provisional_.size(); ++r)
            while (provisional_[r] < int(schedule_.actions[r].size()) &&
                   schedule_.actions[r][size_t(provisional_[r])].kind == ActionKind::forward)
                ++provisional_[r];
        for (bool fewer = true; fewer;) {
            fewer = false;
            for (const Message& m : messages_)
                if (m.for_ < provisional(m.to) && !provisional(m))
                    provisional_[size_t(m.to)] = m.for_, fewer = true;
        }
    }

    void place_receives_and_releases() {
        for (const auto& actions : schedule_.actions) {
            posts_.emplace_back(actions.size() + 1);
            releases_.emplace_back(actions.size() + 1);
        }
        // For each pair of ranks, in the sender's order.
        std::map<std::pair<int, int>, std::vector<int>> by_link;
        for (int m = 0; m < int(messages_.size()); ++m)
            by_link[{messages_[size_t(m)].from, messages_[size_t(m)].to}].push_back(m);
        for (auto& [link, sent] : by_link) {
            std::ranges::sort(sent, {}, [&](int m) { return messages_[size_t(m)].made_by; });
            const auto [from, to] = link;
            if (from == to) continue;
            int latest = int(schedule_.actions[size_t(to)].size());
            std::vector<int> post(sent.size());
            for (size_t k = sent.size(); k-- > 0;) {  // no later than those behind it
                const Message& m = messages_[size_t(sent[k])];
                const double comes = end_[size_t(from)][size_t(m.made_by)];
                const auto& begins = begin_[size_t(to)];
                const int during =
                    int(std::ranges::upper_bound(begins, comes) - begins.begin()) - 1;
                latest = post[k] = std::max(provisional(m) ? 0 : provisional(to),
                                            std::min({latest, m.for_, during - 1}));
            }
            for (size_t k = 0; k < sent.size(); ++k) {
                posts_[size_t(to)][size_t(post[k])].push_back(sent[k]);
                const int at_the_end = int(schedule_.actions[size_t(from)].size());
                const int release = std::max(
                    k + 2 < sent.size() ? messages_[size_t(sent[k + 2])].made_by : at_the_end,
                    provisional(from));
                releases_[size_t(from)][size_t(release)].push_back(sent[k]);
            }
        }
    }

    Schedule schedule_;
    std::vector<Message> messages_;
    std::vector<int> provisional_;
    std::vector<std::vector<int>> input_, output_;
    std::vector<std::vector<double>> begin_, end_;
    std::vector<std::vector<std::vector<int>>> posts_, releases_;
};

}  // namespace ultrascale::pipeline
