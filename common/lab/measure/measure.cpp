#include "measure.h"

#include <algorithm>

#include "core/error.h"
#include "lab/report/median_seconds.h"

namespace ultrascale {

Measured measure(const DataLoader& loader, const DataSlice& slice, int64_t sequences, int64_t steps,
                 const std::function<void(Step&)>& train_step,
                 const std::function<void()>& settle) {
    const Communicator& world = Communicator::world();
    constexpr int64_t warm_up = 2;
    Measured m{.steps = std::clamp<int64_t>(steps, 3, 10)};
    std::vector<double> seconds;
    std::string wrong;
    for (int64_t s = 0; s < warm_up + m.steps; ++s) {
        if (s == warm_up) {
            if (settle) settle();
            memory_reset_peak();
            communication_reset_counts();
            trace_clear();
        }
        compute_stream().synchronize();
        world.barrier();
        const double begin = now_seconds();
        Step step(loader, slice, s + 1, 0, sequences);
        step.first = s == 0;
        train_step(step);
        compute_stream().synchronize();
        if (s >= warm_up) seconds.push_back(now_seconds() - begin);
        if (wrong.empty()) wrong = step.not_finite();
    }
    if (settle) settle();
    m.counts = communication_counts();
    double communication = 0, exposed = 0;
    for (auto& [group, kinds] : m.counts.groups) {
        kinds[size_t(Collective::barrier)] = {};
        for (const CommunicationCount& count : kinds)
            communication += count.seconds, exposed += count.exposed;
    }
    for (const std::string& rank_wrong :
         world.gather_strings(wrong))  // their losses may be their own
        if (!rank_wrong.empty())
            throw UserError("a compared step is not finite: " + rank_wrong, Exit::not_finite);
    const double n = double(m.steps);
    m.step_seconds = largest_of_ranks(world, median(seconds));
    m.communication_seconds = largest_of_ranks(world, communication / n);
    m.exposed_seconds = largest_of_ranks(world, exposed / n);
    m.sent_bytes = bytes_sent_in_all(m.counts) / n;
    return m;
}

double measure_call(const Communicator& ranks, const std::function<void()>& call) {
    const auto batch = [&](int calls) {
        compute_stream().synchronize();
        ranks.barrier();
        return seconds_per_call(call, calls);
    };
    const double estimate = largest_of_ranks(ranks, batch(2));
    const int calls = std::clamp(int(0.01 / estimate), 1, 50);
    std::vector<double> seconds(size_t(std::clamp(int(0.1 / (estimate * calls)), 3, 15)));
    for (double& s : seconds) s = batch(calls);
    return largest_of_ranks(ranks, median(seconds));
}

}  // namespace ultrascale
