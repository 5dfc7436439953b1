// Chapter 06: experts. Each layer's feed-forward is replaced by many small ones, of which a router
// picks a few for each token (3_router.h). The ranks of a group share them, and tokens travel to
// their experts and back (1_row_trips.h).
#include "10_overlap_batches.h"
#include "lab/choices.h"
#include "lab/compare.h"
#include "lab/options.h"
#include "lab/predict.h"
#include "lab/route_demo.h"
#include "lab/sections.h"
#include "train/gradients.h"
#include "train/run.h"

using namespace ultrascale;
using namespace ultrascale::expert_parallel;

namespace {

// One training step. Tokens travel to their experts inside forward and backward. The sums remain:
// an expert's gradient is complete within its group and is summed over dp; everything else is
// copied, and summed over dp and ep.
void train_step(Step& step, Llama& model, Updater& optimizer, const Mesh& mesh,
                ExpertParallel& experts) {
    ParameterList& parameters = model.parameters();
    parameters.begin_gradients(step.accumulated);
    experts.begin_step(step, model);
    if (experts.interleaves())
        run_interleaved(step, model);
    else
        for (MicroBatch batch : step.micro_batches()) {
            Saved saved;
            model.forward(batch, saved);
            model.backward(batch, saved);
        }
    sum_gradients(parameters, mesh);
    const Tensor squared_norm = optimizer.squared_norm();
    optimizer.step(step.learning_rate, squared_norm);
    step.sum_loss(experts.all());
    experts.end_step();  // moves a router's bias
    step.finish(squared_norm);
}

// Trains. Returns false if the result differs from plain training on one device, or memory or
// communication from their predictions.
bool train(const Options& options, const ExpertOptions& chosen, ExpertTrap trap,
           const std::string& save_loads, const StepShape& shape) {
    const Communicator& world = Communicator::world();
    Mesh mesh(world, {{"dp", world.size() / chosen.ep}, {"ep", chosen.ep}});
    ExpertParallel experts(shape.config, chosen, mesh, options.grad_accum);
    add_holders(mesh, experts.placements());
    spoil_routers(experts, shape.config, chosen, trap, options.grad_accum);
    Run run("06_expert_parallel", options, shape,
            {.micro_batch = options.micro_batch, .count = world.size(), .replica = world.rank()});

    Llama model(shape.config, shape.model, experts.factories(shape.model),
                Stage::whole(shape.config));
    ParameterList& parameters = model.parameters();
    const Prediction balanced =
        predict_balanced(shape, chosen, parameters, mesh, experts.balance(), options.grad_accum);
    check_fits_everywhere(balanced.memory, memory_limit(), [] {
        return "fewer layers, a smaller --micro-batch or a larger --ep would";
    });
    spoil_description(parameters, trap);
    parameters.allocate_values(options.dtype);
    parameters.allocate_grads(options.grad_dtype());
    const std::unique_ptr<Updater> optimizer = make_updater(parameters, options, mesh, trap);
    run.load(optimizer->start());
    ChoiceLog choices(shape.config, verify_bounds(options.dtype));
    TrainingSetup what = training_setup(model, *optimizer);
    what.label = "experts", what.technique = describe(shape.config, chosen, world.size());
    what.layout = {{"ep", chosen.ep}, {"dp", world.size() / chosen.ep}};
    what.plain_parts = plain_parts(shape, chosen, options.grad_accum * world.size(), choices);
    what.choices = &choices, what.options = recorded(chosen);
    what.plain_micro_batch = chosen.counts_first() ? 0 : options.micro_batch;
    ExpertRun seen(shape, chosen, experts, &choices);
    spoil_packed_rows(experts, trap);
    what.step_done = [&](const Step&, double squared_norm) {
        seen.count_norm(squared_norm, parameters, world);
        choices.end_step();
    };
    run.start(what);
    while (Step* step = run.next()) train_step(*step, model, *optimizer, mesh, experts);

    return run.finish([&](Report& report) {
        bool ok = seen.check_norm(report);
        const Prediction fixed = predict_fixed(shape, chosen, parameters, mesh, experts.balance());
        const Prediction predicted = seen.predicted(fixed, options.steps);
        ok = report.memory(predicted) && ok;
        ok =
            report.communication_of_run(predicted, options.steps, run.validation_communication()) &&
            ok;
        report_experts(report, options, shape, chosen, seen, balanced);
        if (!save_loads.empty() && world.rank() == 0) write_loads(save_loads, seen.loads());
        report.throughput(predicted);
        return ok;
    });
}

bool run(const Options& options, Chapter& chapter) {
    const LlamaConfig config = chapter.config(options);
    chapter.check(options, config);
    if (chapter.demo == "route") return demo_route(Communicator::world());
    const ExpertOptions& experts = chapter.experts;
    const StepShape shape = step_shape(options, config);
    if (options.estimate) return print_estimate(options, experts, shape), true;
    if (chapter.compare) {
        slow_down(options);
        return compare_ranks(options, experts, shape, train_step);
    }
    return train_within_memory(
        options, [&] { return train(options, experts, chapter.trap, chapter.save_loads, shape); });
}

}  // namespace

int main(int argc, char** argv) {
    return run_chapter(argc, argv, "06_expert_parallel",
                       "Train a Llama whose layers have experts, which several devices share.",
                       run);
}
