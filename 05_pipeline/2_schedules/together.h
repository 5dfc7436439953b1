// How long a forward and a backward take that run together (train/interleave.h). Each consists of
// turns: it computes, and then sends something that must arrive before its own next turn. A device
// computes one turn at a time, and its network carries one transfer after the other:
//
//     compute  [ b0 ][ f0 ][ b1 ][ f1 ][ b2 ][ f2 ]       b: backward, which begins
//     network        [~b0 ][~f0 ][~b1 ][~f1 ]             ~b0: sent by b0; b1 needs it
//
// Nothing waits if each transfer is no longer than the other pass's turn above it.
#pragma once

#include <algorithm>
#include <vector>

namespace ultrascale::pipeline {

struct PassTurns {
    std::vector<double> compute;  // seconds, or any other unit
    double transfer = 0;          // of what each turn but the last sends
    double alone() const {        // all turns one after the other, each with its transfer
        double sum = -transfer;
        for (const double turn : compute) sum += turn + transfer;
        return sum;
    }
};
// Of a stage's two passes.
struct StageTurns {
    PassTurns forward, backward;
};

inline double seconds_together(const PassTurns& one, const PassTurns& other) {
    struct Pass {
        const PassTurns& turns;
        double arrived = 0;  // when its next turn can begin
    } both[] = {{one}, {other}};
    double computed = 0, sent = 0;  // when the device and the network become free
    for (size_t i = 0; i < std::max(one.compute.size(), other.compute.size()); ++i)
        for (auto& [turns, arrived] : both) {
            if (i >= turns.compute.size()) continue;
            computed = std::max(computed, arrived) + turns.compute[i];
            if (i + 1 == turns.compute.size()) continue;
            arrived = sent = std::max(computed, sent) + turns.transfer;
        }
    return computed;
}

}  // namespace ultrascale::pipeline
