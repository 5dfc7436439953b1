// --compare: trains the same steps on the same data with each recipe, and prints one table: the
// memory of a rank, by formula and measured, the loss after the last step, and the speed.
#pragma once

#include "lab/report/median_seconds.h"
#include "recipe_picture.h"
#include "sections.h"

namespace ultrascale::mixed_precision {

// All ranks call it; rank 0 prints. Returns false if a recipe's memory differs from its prediction.
inline bool compare_recipes(Options options, PrecisionOptions precision, StepShape shape,
                            const TrainStep& train_step) {
    const Communicator& world = Communicator::world();
    const Mesh mesh(world, {{"dp", world.size()}});
    const int64_t sequences = sequences_of_step(options, world.size());
    const TokenFile file(options.data_path(), shape.config.vocab);
    const DataLoader loader(file, data_options(options, shape));
    print(fmt::format("{:.3f} M parameters, {} of {} of {} tokens, {}",
                      double(parameter_count(shape.config)) / 1e6,
                      format_count(options.steps, "step"), format_count(sequences, "sequence"),
                      shape.seq, format_count(world.size(), "rank")));
    print("             bytes a parameter         held by a rank");
    print(
        "  recipe      table   book   in all     predicted    measured   skipped     loss  "
        "tokens/s");
    Report report("08_mixed_precision", options, shape, 0);
    bool ok = true;
    std::vector<LossCurve> curves;
    for (const Recipe& recipe : all_recipes()) {
        if (recipe.fp8() && !recipe.blocks() && *ops::fp8_missing(group_of_tokens(recipe.products)))
            continue;
        PrecisionOptions chosen = precision;
        chosen.recipe = recipe;
        chosen.loss_scale.scaled = recipe.loss_scale;
        chosen.gradient_format = gradient_format_of(recipe);
        shape.model.dtype = options.dtype = recipe.activations;
        double rate = 0;
        LossCurve curve{recipe.name, {}};
        MemoryByCategory held{};
        int64_t skipped = 0;
        {
            MixedTraining training(shape.config, shape.model, chosen, options);
            training.start();
            std::vector<double> seconds;
            for (int64_t s = 0; s < options.steps; ++s) {
                const double begin = now_seconds();
                Step step(loader,
                          {.micro_batch = options.micro_batch,
                           .count = world.size(),
                           .replica = world.rank()},
                          s + 1, s * sequences, sequences);
                step.first = s == 0;
                step.learning_rate = learning_rate_of(options, 0, s);
                step.on_finish = [&](double loss, double) { curve.losses.push_back(loss); };
                train_step(step, training, mesh);
                if (!step.not_finite().empty())
                    throw UserError(fmt::format("recipe {}, step {}: not finite: {}", recipe.name,
                                                step.number, step.not_finite()),
                                    Exit::not_finite);
                if (s > 0 || options.steps == 1) seconds.push_back(now_seconds() - begin);
            }
            rate = double(sequences * shape.seq) / largest_of_ranks(world, median(seconds));
            held = memory_now();
            skipped = int64_t(training.loss_scale.skipped().size());
        }
        const double loss = curve.losses.back();
        const MemoryEstimate m = predict_memory(shape, chosen).memory;
        const int64_t predicted = m.parameters + m.gradients + m.optimizer,
                      measured = held[int(Memory::parameter)] + held[int(Memory::gradient)] +
                                 held[int(Memory::optimizer)];
        const bool same = on_all_ranks(world, predicted == measured);
        ok = ok && same;
        print(fmt::format("  {:<10} {:>6} {:>6} {:>8.3f} {:>13} {:>11} {:>9} {:>8.4f} {:>9.0f}{}",
                          recipe.name, bytes_per_parameter(recipe),
                          recipe.book_bytes > 0 ? fmt::format("{:g}", recipe.book_bytes) : "-",
                          double(measured) / double(parameter_count(shape.config)), predicted,
                          measured, skipped, loss, rate, same ? "" : "  NOT as predicted"));
        report.row({{"recipe", recipe.name},
                    {"bytes_per_parameter", bytes_per_parameter(recipe)},
                    {"predicted_bytes", predicted},
                    {"held_bytes", measured},
                    {"skipped", skipped},
                    {"loss", loss},
                    {"tokens_per_second", rate},
                    {"as_predicted", same}});
        if (!recipe.plain) curves.push_back(std::move(curve));  // it has the same curve as tensor
    }
    draw_recipe_bytes(options.svg);
    draw_loss_curves(options.svg, curves);
    report.finish();
    print(ok ? "every recipe holds what its formula says, to the byte: ok"
             : "WRONG: a recipe holds other bytes than its formula says");
    return ok;
}

}  // namespace ultrascale::mixed_precision
