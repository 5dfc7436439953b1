#include "prediction.h"

#include <algorithm>
#include <cmath>
#include <set>

namespace ultrascale {

int64_t MemoryEstimate::total() const {
    const double activations = double(peak_activations), buffers = double(peak_communication);
    const double both =
        one_after_the_other ? std::max(activations, buffers) : activations + buffers;
    return int64_t(std::min(double(parameters) + double(gradients) + double(optimizer) +
                                double(gradients_at_peak) + both,
                            9e18));
}

MemoryEstimate& MemoryEstimate::operator+=(const MemoryEstimate& more) {
    constexpr int64_t most = 9'000'000'000'000'000'000;
    const auto add = [](int64_t& sum, int64_t bytes) {
        sum = sum > most - bytes ? most : sum + bytes;
    };
    add(parameters, more.parameters), add(gradients, more.gradients);
    add(optimizer, more.optimizer), add(peak_activations, more.peak_activations);
    add(gradients_at_peak, more.gradients_at_peak);
    add(peak_communication, more.peak_communication), add(host, more.host);
    add(checkpoint, more.checkpoint);
    one_after_the_other = one_after_the_other || more.one_after_the_other;
    return *this;
}

using Kind = PredictedCommunication::Kind;

Kind& Kind::operator+=(const Kind& more) {
    calls += more.calls, sent += more.sent;
    if (__builtin_add_overflow(bytes, more.bytes, &bytes)) bytes = INT64_MAX;
    return *this;
}

Kind Kind::times(int64_t n) const {
    Kind all{.calls = calls * n, .sent = sent * double(n)};
    if (__builtin_mul_overflow(bytes, n, &all.bytes)) all.bytes = INT64_MAX;
    return all;
}

void PredictedCommunication::add(const Group& group, Collective kind, int64_t calls,
                                 int64_t bytes) {
    add(group, kind, {calls, bytes, bytes_sent(kind, double(bytes), group.ranks)});
}

void PredictedCommunication::add(const Group& group, Collective kind, const Kind& more) {
    groups[group.name][size_t(kind)] += more;
}

void PredictedCommunication::add_scalar_sum(const Group& group) {
    if (group.ranks > 1) add(group, Collective::all_reduce, 1, 2 * sizeof(double));
}

Kind PredictedCommunication::of(Collective kind) const {
    Kind sum;
    for (const auto& [name, kinds] : groups) sum += kinds[size_t(kind)];
    return sum;
}

PredictedCommunication PredictedCommunication::times(int64_t n) const {
    PredictedCommunication all = *this;
    for (auto& [name, kinds] : all.groups)
        for (Kind& kind : kinds) kind = kind.times(n);
    return all;
}

PredictedCommunication& PredictedCommunication::operator+=(const PredictedCommunication& more) {
    for (const auto& [name, kinds] : more.groups)
        for (size_t k = 0; k < kinds.size(); ++k) groups[name][k] += kinds[k];
    return *this;
}

Prediction& Prediction::operator+=(const Prediction& more) {
    memory += more.memory, communication += more.communication;
    flops_per_token += more.flops_per_token;
    recomputed_flops_per_token += more.recomputed_flops_per_token;
    attention_flops_per_token += more.attention_flops_per_token;
    recomputed_attention_flops_per_token += more.recomputed_attention_flops_per_token;
    return *this;
}

Prediction Prediction::times(int64_t n) const {
    Prediction all = *this;
    all.communication = communication.times(n);
    return all;
}

bool is_as_predicted(const Kind& predicted, const CommunicationCount& got) {
    return got.calls == predicted.calls && got.bytes == predicted.bytes &&
           std::abs(got.sent - predicted.sent) <= 1e-9 * (1 + predicted.sent);
}

bool counted_as_predicted(const PredictedCommunication& per_step, int64_t steps,
                          CommunicationCounts counts) {
    PredictedCommunication wanted = per_step.times(steps);
    std::set<std::string> names;
    for (const auto& [name, kinds] : counts.groups) names.insert(name);
    for (const auto& [name, kinds] : wanted.groups) names.insert(name);
    return std::ranges::all_of(names, [&](const std::string& name) {
        return std::ranges::equal(wanted.groups[name], counts.groups[name], is_as_predicted);
    });
}

}  // namespace ultrascale
