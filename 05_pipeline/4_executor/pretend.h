// --pretend: actions and messages that take as long as they are told to, so that ranks which share
// a processor show the bubbles of ranks that have one each.
//
// The model is computed all the same, but a small one: an action ends at its start + its time, and
// sleeps until then; a message arrives at its sender's end + hop. Waiting for a message sleeps too.
// What is left is the schedule's own time, with the executor's real order of messages.
#pragma once

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>

#include "../2_schedules/schedule.h"
#include "core/error.h"
#include "core/trace.h"

namespace ultrascale::pipeline {

struct Pretend {
    // Seconds for a p-th of the model (p: ranks), and of a message. All 0: nothing is pretended.
    double forward = 0, backward_input = 0, backward_weight = 0, hop = 0;
    bool on() const { return forward > 0; }

    // Of an action on one of `stages` stages: with two stages a rank, half as long.
    double seconds(ActionKind kind, int ranks, int stages) const {
        const double share = double(ranks) / stages;
        switch (kind) {
            case ActionKind::forward: return forward * share;
            case ActionKind::backward_input: return backward_input * share;
            case ActionKind::backward_weight: return backward_weight * share;
            case ActionKind::backward: return (backward_input + backward_weight) * share;
        }
        return 0;
    }
};

// Reads "F=40,B=40,W=20,hop=2", in milliseconds; what is missing keeps that default. UserError.
inline Pretend parse_pretend(const std::string& text) {
    Pretend pretend{
        .forward = 0.040, .backward_input = 0.040, .backward_weight = 0.020, .hop = 0.002};
    for (size_t at = 0; at < text.size();) {
        const size_t end = std::min(text.find(',', at), text.size());
        const std::string one = text.substr(at, end - at), name = one.substr(0, one.find('='));
        double* const value = name == "F"     ? &pretend.forward
                              : name == "B"   ? &pretend.backward_input
                              : name == "W"   ? &pretend.backward_weight
                              : name == "hop" ? &pretend.hop
                                              : nullptr;
        const std::string number = one.size() > name.size() ? one.substr(name.size() + 1) : "";
        size_t read = 0;
        double milliseconds = -1;
        try {
            milliseconds = std::stod(number, &read);
        } catch (const std::exception&) {  // not a number
        }
        const double least = name == "hop" ? 0 : 1;
        if (!value || read != number.size() || !(milliseconds >= least && milliseconds <= 1e4))
            user_error(
                "--pretend {}: give milliseconds, like F=40,B=40,W=20,hop=2; actions from 1 to "
                "10000, hop from 0",
                text);
        *value = milliseconds / 1e3;
        at = end + 1;
    }
    return pretend;
}

// Sleeps until now_seconds() is `seconds`.
inline void sleep_until_seconds(double seconds) {
    const std::chrono::duration<double> left(seconds - now_seconds());
    if (left.count() > 0) std::this_thread::sleep_for(left);
}

}  // namespace ultrascale::pipeline
