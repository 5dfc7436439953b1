// Predicts by formula the memory that training on one device takes. --estimate prints it.
#pragma once

#include <algorithm>

#include "lab/predict/budget.h"
#include "lab/predict/estimate.h"
#include "options.h"

namespace ultrascale::single_gpu {

// --fresh-grads: the largest sum of activations and gradients in a step of `micro_batches`
// micro-batches, in bytes. From the last layer to the first, each layer's backward frees what its
// forward kept, and adds its gradients.
inline int64_t predicted_activations_and_gradients(const StepShape& shape, int64_t micro_batches) {
    const LlamaConfig& c = shape.config;
    const auto highest = [](const std::vector<ActivationMoment>& moments, size_t first,
                            size_t last) {
        double most = 0;
        for (size_t m = first; m < last; ++m) most = std::max(most, moments[m].bytes());
        return most;
    };
    const double each = double(dtype_bytes(shape.grad_dtype)),
                 all = each * double(parameter_count(c)),
                 embedding = each * double(c.vocab * c.hidden),
                 head = embedding + each * double(c.hidden),
                 layer = (all - head - (c.tied ? 0 : embedding)) / double(c.layers);
    LocalSizes sizes = local_sizes(shape);
    sizes.embedding = false;
    const std::vector<ActivationMoment> with_head = activation_moments(sizes);
    sizes.head = false;
    // The first moments are the head's; in the last of them its gradients exist.
    const size_t head_moments = with_head.size() - activation_moments(sizes).size();
    double most = std::max(highest(with_head, 0, head_moments),
                           highest(with_head, head_moments - 1, head_moments) + head);
    for (int64_t done = 0; done < c.layers; ++done) {
        sizes.layers = c.layers - done;
        const std::vector<ActivationMoment> moments = activation_moments(sizes);
        most =
            std::max(most, highest(moments, 0, moments.size()) + head + double(done + 1) * layer);
    }
    const double dx = double(shape.micro_batch * shape.seq * c.hidden) *
                      double(dtype_bytes(shape.model.dtype));  // in the embedding's backward
    most = std::max(most, all + dx);
    if (micro_batches > 1)
        most = std::max(most, all + double(peak_activation_bytes(local_sizes(shape))));
    return int64_t(std::min(most, 9e18));
}

// The prediction for a training whose steps have at most `micro_batches` micro-batches.
inline Prediction predict(const Chapter& chapter, const StepShape& shape, int64_t micro_batches) {
    Prediction predicted = predict_one_device(shape, parameter_count(shape.config));
    MemoryEstimate& memory = predicted.memory;
    if (chapter.fresh_grads) {
        const int64_t together = predicted_activations_and_gradients(shape, micro_batches);
        memory.gradients = 0, memory.gradients_at_peak = together - memory.peak_activations;
    }
    return predicted;
}
inline Prediction predict(const Options& options, const Chapter& chapter, const StepShape& shape) {
    return predict(chapter, shape, chapter.ramp(options).largest() / options.micro_batch);
}

// Throws UserError, with advice, if the training does not fit into memory.
inline void check_fits(const Options& options, const Chapter& chapter, const StepShape& shape) {
    check_fits(
        chapter.fresh_grads ? predict(options, chapter, shape).memory : estimate_memory(shape),
        memory_limit(), [&] { return what_would_fit(shape, memory_limit()); });
}

// --estimate: prints the prediction for these options, then a table of sequence lengths (rows) and
// kinds of recomputation (columns). Nothing is allocated.
inline void print_estimate(const Options& options, const Chapter& chapter, const StepShape& shape) {
    Report report("00_single_gpu", options, shape, 0);
    report.configuration(chapter.ramp(options).sequences(0), "");
    report.estimate(predict(options, chapter, shape), 1,
                    [&] { return what_would_fit(shape, memory_limit()); });
    print("\npeak activations and total memory on one device, by --recompute");
    print(fmt::format("  {:>6}  {:>21}  {:>21}  {:>21}  {:>21}", "s", "none, T x T attention",
                      "none", "selective, T x T", "full"));
    for (int64_t seq = std::min<int64_t>(1024, shape.seq);
         seq <= std::max<int64_t>(shape.seq, 16384); seq *= 2) {
        std::string line = fmt::format("  {:>6}", seq);
        for (auto [recompute, attention] : {std::pair{Recompute::none, AttentionKind::naive},
                                            {Recompute::none, AttentionKind::flash},
                                            {Recompute::selective, AttentionKind::naive},
                                            {Recompute::full, AttentionKind::flash}}) {
            StepShape s = shape;
            s.seq = seq;
            s.model.recompute = recompute;
            s.model.attention = attention;
            const MemoryEstimate e = estimate_memory(s);
            line += fmt::format("  {:>10} {:>10}", format_bytes(double(e.peak_activations)),
                                format_bytes(double(e.total())));
            const char* names[] = {"none", "selective", "full"};
            report.row({{"seq", seq},
                        {"recompute", names[int(recompute)]},
                        {"attention", attention == AttentionKind::naive ? "naive" : "flash"},
                        {"peak_activation_bytes", e.peak_activations},
                        {"total_bytes", e.total()}});
        }
        print(line);
    }
    report.finish();
}

}  // namespace ultrascale::single_gpu
