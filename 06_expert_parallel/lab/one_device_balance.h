// Shared by the layers with which --verify compares (one_device_experts.h): their choices, and the
// auxiliary losses in double.
#pragma once

#include <map>
#include <vector>

#include "../expert_options.h"
#include "one_device_choices.h"

namespace ultrascale::expert_parallel {

// Shared by the plain layers of one model: the balance of its routers.
class OneDeviceBalance {
public:
    OneDeviceBalance(const LlamaConfig& config, const ExpertOptions& options, int64_t micro_batches,
                     int64_t tokens, OneDeviceChoices& choices)
        : config(config),
          options(options),
          micro_batches(micro_batches),
          tokens(tokens),
          chunk_tokens(tokens / options.chunks_here()),
          choices(choices) {}

    const LlamaConfig config;
    const ExpertOptions options;
    const int64_t micro_batches;  // in a step, as this training cuts it
    // As the tested run cuts it: the tokens of a micro-batch, which a router sees at once, and
    // those that travel together, of which an expert drops those over its capacity.
    const int64_t tokens, chunk_tokens;
    OneDeviceChoices& choices;

    using Counts = std::vector<double>;             // (E)
    std::map<int64_t, std::vector<Counts>> counts;  // by layer and segment, of this micro-batch
    std::map<int64_t, std::vector<float>> loads;    // by layer, of this step

    // The factor of n p for a layer (4_balance.h). `tokens`: those of a segment.
    double factor(double tokens) const {
        const double E = double(config.experts.count), k = double(config.experts.router.top_k),
                     L = double(config.layers - config.experts.first_dense),
                     M = double(micro_batches);
        switch (options.aux) {
            case Aux::hf: return E / (L * tokens * L * tokens) / M;
            case Aux::switch_transformer: return E / (tokens * tokens) / M;
            default: return E / (k * tokens * tokens) / M;
        }
    }
    // The counts that multiply a layer's probabilities in a segment.
    Counts counts_for(int64_t layer, size_t segment) const {
        if (options.aux != Aux::hf) return counts.at(layer)[segment];
        Counts sum(size_t(config.experts.count), 0.0);
        for (const auto& [l, segments] : counts)
            for (size_t e = 0; e < sum.size(); ++e) sum[e] += segments[0][e];
        return sum;
    }
};

}  // namespace ultrascale::expert_parallel
