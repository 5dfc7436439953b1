// Chapter 05: pipeline parallelism. Each rank has some of the model's layers, a stage, and
// micro-batches go from rank to rank: forward down the stages, backward up again. A schedule says
// who does what when. 1_plain_1f1b.h is one as a loop; 2_schedules/ has it and others as data, and
// 4_executor/ runs them all.
#include "3_cut.h"
#include "4_executor/forward_only.h"
#include "5_post_validation.h"
#include "lab/compare.h"
#include "lab/optimal/optimal_run.h"
#include "lab/options.h"
#include "lab/scale.h"
#include "lab/sections.h"
#include "train/gradients.h"
#include "train/run.h"

using namespace ultrascale;
using namespace ultrascale::pipeline;

namespace {

// One training step. The plain loop, or the executor, runs this rank's forwards, backwards, sends
// and receives of all micro-batches. Then each rank has the gradients of its own stages. Only three
// things need other ranks: the sums over ranks with other samples (dp) or with a copy of a weight,
// the global norm, and the loss, which the rank with the last stage knows.
void train_step(Step& step, Pipeline& pipeline, Updater& optimizer) {
    ParameterList& parameters = pipeline.parameters();
    const Mesh& mesh = pipeline.mesh;
    parameters.begin_gradients(step.accumulated / pipeline.schedule.copies());
    pipeline.run(step);
    sum_gradients(parameters, mesh);
    const Tensor squared_norm = optimizer.squared_norm();
    optimizer.step(step.learning_rate, squared_norm);
    pipeline.updated();
    step.sum_loss(mesh.world());
    step.finish(squared_norm);
}

// A step without a barrier: its update is confirmed in the next step, after the first forwards.
void train_step_without_waiting(Step& step, Pipeline& pipeline, PostValidation& validation) {
    ParameterList& parameters = pipeline.parameters();
    parameters.begin_gradients(step.accumulated / pipeline.schedule.copies());
    pipeline.run(step);
    sum_gradients(parameters, pipeline.mesh);
    validation.update_unconfirmed(step);
    pipeline.updated();
}

// Trains. Returns false if the result differs from plain training on one device, or memory or
// communication from their predictions.
bool train(const Options& options, const Chapter& chapter, const Schedule& schedule,
           const std::vector<Stage>& stages, const StepShape& shape) {
    const RunAs as = chapter.run_as();
    Pipeline pipeline(shape, schedule, stages, as);
    const Communicator &pp = pipeline.pp(), &dp = pipeline.dp();
    Run run("05_pipeline", options, shape,
            {.micro_batch = options.micro_batch, .count = dp.size(), .replica = dp.rank()});
    check_fits_everywhere(predict_run(pipeline, options.steps, as.post_validation).memory,
                          memory_limit(), what_needs_less);
    pipeline.allocate(options.dtype, options.grad_dtype());
    PlainUpdater plain(pipeline.parameters(), options, &pipeline.mesh);
    std::optional<PostValidation> validation;
    if (as.post_validation) {
        validation.emplace(pipeline.parameters(), options, pipeline.mesh);
        pipeline.executor->confirm = [&] { return validation->confirm(); };
    }
    PlainUpdater& optimizer = validation ? *validation : plain;
    run.load(optimizer.start());
    ForwardOnly forward_only(pp, schedule, pipeline.own, shape);
    run.start({.updater = &optimizer,
               .forward = [&](Context& context) { forward_only.loss(context); },
               .loss_group = &pp,
               .next_token = [&](const HostBatch& text) { return forward_only.next_token(text); },
               .label = "pipe",
               .technique = describe(schedule, stages, as),
               .layout = {{"pp", pp.size()}, {"dp", dp.size()}}});
    while (Step* step = run.next())
        validation ? train_step_without_waiting(*step, pipeline, *validation)
                   : train_step(*step, pipeline, optimizer);
    if (validation) validation->confirm();

    return run.finish([&](Report& report) {
        return report_run(report, pipeline, options, as, run.validation_communication(),
                          validation ? validation->repeated() : 0);
    });
}

bool run(const Options& options, Chapter& chapter) {
    chapter.check(options);
    const StepShape shape = step_shape(options, options.config());
    if (!chapter.simulated.empty()) {
        Scale scale = Scale::parse(chapter.simulated);
        if (chapter.from_file()) scale.own = chapter.schedule;
        scale.message_bytes = message_bytes(shape);
        return simulate_at_scale(scale, options.svg);
    }
    const Pretend pretend = chapter.pretend();
    let_waits_sleep(pretend.on() ? 2e-4 : 1e-4);
    if (chapter.compare) {
        slow_down(options);
        return compare_schedules(options, chapter.pp, chapter.sizes, chapter.split, pretend, shape,
                                 train_step);
    }
    const int m = int(options.grad_accum);
    const Schedule schedule =
        chapter.is_optimal() ? choose_optimal(measured_costs(options, shape, chapter.pp,
                                                             chapter.split, pretend, train_step),
                                              m, chapter.in_flight, chapter.solver_seconds)
                             : chapter.make(m);
    check_can_run(shape, schedule);
    const std::vector<Stage> stages = cut(shape, schedule.stages, chapter.split);
    if (options.estimate)
        return print_estimate(options, shape, schedule, stages, chapter.run_as()), true;
    return train_within_memory(options,
                               [&] { return train(options, chapter, schedule, stages, shape); });
}

}  // namespace

int main(int argc, char** argv) {
    return run_chapter(argc, argv, "05_pipeline",
                       "Train a Llama whose layers are on several devices, one after the other.",
                       run);
}
