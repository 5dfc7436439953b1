// Runs a schedule on a rank: walks through its actions, whatever they are. It replaces the plain
// loop (1_plain_1f1b.h), which can run only one order; tests compare both, to the bit. A message is
// sent after the action that produces it, in Messages::output_of() and nowhere else, and travels
// while the rank computes.
//
//     for each action:   post receives, let go of what was sent     messages.h
//                        wait for the input                         x, or dy
//                        F: forward   D: backward   B: backward of inputs   W: of weights
//                        send the output                            y, or dx
//
// Each micro-batch in flight has its own saved activations for each chunk, from its F to its D or
// W. Two actions that run together (with_next) take turns where one waits for rows on their way to
// experts (06_expert_parallel/10_overlap_batches.h). Without experts that would only delay the
// first one's message, so programs take such pairs apart.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <vector>

#include "load_kernels.h"
#include "messages.h"
#include "train/interleave.h"
#include "train/step.h"

namespace ultrascale::pipeline {

// When a step's actions ran, on now_seconds()' clock, without the waits for their inputs; and when
// the following update had ended.
struct StepTimes {
    std::vector<Timestamp> begins, ends;  // by the action's index
    Timestamp updated;
};

class Executor {
public:
    // All arguments must live as long as the executor.
    Executor(const Schedule& schedule, const MessagePlan& plan, RankStages& stages,
             Messages& messages, int rank, const Pretend& pretend = {})
        : schedule_(schedule),
          actions_(schedule.actions[size_t(rank)]),
          stages_(stages),
          messages_(messages),
          provisional_(plan.provisional(rank)),
          pretend_(pretend) {}

    // Runs forward and backward of a step's micro-batches. Afterwards gradients and step.loss hold
    // the contribution of this rank's stages.
    void run(Step& step, Hooks* hooks = nullptr) {
        step.call_hooks({hooks});
        if (times_.empty() && device_is_gpu()) {
            load_kernels(stages_, schedule_, step, messages_.shape(), messages_.dtype());
            kernels_loaded();
        }
        if (times_.size() == kept_steps) times_.pop_front();
        times_.emplace_back();
        bool confirmed = !confirm;
        for (int i = 0; i < int(actions_.size()); ++i) {
            if (!confirmed && i == provisional_) {
                confirmed = true;
                if (confirm()) {
                    forget(step);
                    i = 0;
                }
            }
            messages_.before(i);
            if (actions_[size_t(i)].with_next)
                run_together(step, i++);
            else
                run(step, i, messages_.input_of(i));
        }
        messages_.before(int(actions_.size()));
        check(in_flight_.empty(), "a schedule ends with micro-batches in flight");
    }
    // If set (5_post_validation.h), it is called after a step's first forwards, and returns whether
    // they ran on wrong weights; if so, they run again.
    std::function<bool()> confirm = {};
    // Called after kernels were loaded, for code that counts what runs.
    std::function<void()> kernels_loaded = [] {};
    // Call it after the update, to record its time.
    void updated() { times_.back().updated = Timestamp::in(compute_stream()); }
    // The number of steps in which the first forwards ran twice.
    int64_t repeated() const { return repeated_; }
    // With pretended times: the share of them during which something was computed.
    double computed_share() const { return computed_ / pretended_; }
    // The number of steps whose times are kept.
    static constexpr size_t kept_steps = 10;
    const std::deque<StepTimes>& times() const { return times_; }

private:
    // Undoes the effects of the first forwards.
    void forget(const Step& step) {
        ++repeated_;
        messages_.forget_provisional(provisional_);
        in_flight_.clear();
        times_.back() = {};
        ops::copy(step.loss, Tensor::zeros({1}, DType::fp64, Memory::workspace));
    }

    void run(Step& step, int i, Tensor input) {
        const Action& action = actions_[size_t(i)];
        times_.back().begins.push_back(Timestamp::in(compute_stream()));
        const double begin = now_seconds();
        const std::string name = to_string(action, stages_.chunks() > 1);
        explain(name);
        Tensor output = phase(name, [&] { return compute(step, action, std::move(input)); });
        if (pretend_.on()) {
            const double seconds =
                pretend_.seconds(action.kind, schedule_.ranks(), schedule_.stages);
            computed_ += now_seconds() - begin, pretended_ += seconds;
            sleep_until_seconds(begin + seconds);
        }
        times_.back().ends.push_back(Timestamp::in(compute_stream()));
        messages_.output_of(i, std::move(output));
    }

    // Runs action i and the next one, which take turns. The backward begins, as it has rows to send
    // at once. Both results leave when both have ended.
    void run_together(Step& step, int i) {
        messages_.before(i + 1);
        struct Half {
            const Action& action;
            Tensor x;  // its input, then its output
        };
        Half both[] = {{actions_[size_t(i)], messages_.input_of(i)},
                       {actions_[size_t(i + 1)], messages_.input_of(i + 1)}};
        const bool second_begins = both[0].action.kind == ActionKind::forward;
        Half &one = both[second_begins], &other = both[!second_begins];
        const auto begin = Timestamp::in(compute_stream());
        const auto work = [&](Half& half) {
            return [&] { half.x = compute(step, half.action, std::move(half.x)); };
        };
        const bool several = stages_.chunks() > 1;
        const std::string name =
            to_string(both[0].action, several) + "+" + to_string(both[1].action, several);
        explain(name);
        phase(name, [&] { interleave(work(one), work(other)); });
        for (int half = 0; half < 2; ++half) {
            times_.back().begins.push_back(begin);
            times_.back().ends.push_back(Timestamp::in(compute_stream()));
            messages_.output_of(i + half, std::move(both[half].x));
        }
    }

    Tensor compute(Step& step, const Action& action, Tensor input) {
        const std::pair key(action.micro_batch, action.chunk);
        if (action.kind == ActionKind::forward) {
            check(!in_flight_.contains(key), "a schedule runs a forward twice");
            in_flight_[key].context = step.micro_batch(action.micro_batch);
        }
        check(in_flight_.contains(key), "a schedule's backward comes before its forward");
        auto& [saved, context] = in_flight_[key];
        Llama& model = stages_.chunk(action.chunk);
        Tensor output;
        switch (action.kind) {
            case ActionKind::forward:
                output = model.forward(std::move(input), saved, context);
                break;
            case ActionKind::backward:
                output = model.backward(std::move(input), saved, context);
                break;
            case ActionKind::backward_input:
                output = model.backward_input(std::move(input), saved, context);
                break;
            case ActionKind::backward_weight: model.backward_weight(saved, context); break;
        }
        if (frees(action.kind)) in_flight_.erase(key);
        return output;
    }

    struct InFlight {
        Saved saved;
        Context context;
    };
    const Schedule& schedule_;
    const std::vector<Action>& actions_;
    RankStages& stages_;
    Messages& messages_;
    int provisional_;  // the number of actions before confirm()
    Pretend pretend_;
    std::map<std::pair<int, int>, InFlight> in_flight_;  // by micro-batch and chunk
    int64_t repeated_ = 0;
    double computed_ = 0, pretended_ = 0;  // seconds
    std::deque<StepTimes> times_;
};

}  // namespace ultrascale::pipeline
