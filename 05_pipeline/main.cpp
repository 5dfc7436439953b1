// Chapter 05: pipeline parallelism. Each rank has some of the model's layers, a stage, and
// micro-batches go from rank to rank: forward down the stages, backward up again. A schedule says
// who does what when (schedule.h and the file of each); one executor runs them all (executor.h).
#include "bubbles.h"
#include "forward_only.h"
#include "options.h"
#include "predict.h"
#include "train/gradients.h"
#include "train/run.h"

using namespace ultrascale;

namespace {

// One training step. The executor walks over this rank's actions: forwards, backwards, sends and
// receives of all micro-batches. Each stage then has its own gradients. Only three things need
// other ranks: the sums over ranks with other samples (dp) or with a copy of a weight, the global
// norm, and the loss, which the last stage knows.
void train_step(Step& step, Executor& executor, ParameterList& parameters, AdamW& optimizer,
                const Mesh& mesh, int copies, Hooks* watch) {
    parameters.begin_gradients(step.accumulated / copies);
    executor.run(step, watch);
    explain("gradients: sum over data parallel ranks, and over those that hold copies");
    phase("sum gradients", [&] { sum_gradients(parameters, mesh); });
    step.verify_gradient();
    const Tensor squared_norm =
        phase("gradient norm", [&] { return squared_gradient_norm(parameters, mesh); });
    phase("update", [&] { optimizer.step(step.learning_rate, squared_norm); });
    executor.updated();
    if (mesh.world().size() > 1) phase("loss", [&] { mesh.world().all_reduce(step.loss); });
    step.finish(squared_norm);
}

bool train(const Options& options, const PipelineOptions& pipeline, const Pretend& pretend,
           const Schedule& schedule, const std::vector<Stage>& cut, const StepShape& shape) {
    const Communicator& world = Communicator::world();
    Mesh mesh(world, {{"pp", pipeline.pp}, {"dp", world.size() / pipeline.pp}});
    add_holders(mesh, schedule, shape.config);
    const Communicator &pp = mesh.group("pp"), &dp = mesh.group("dp");
    Run run("05_pipeline", options, shape,
            {.micro_batch = options.micro_batch, .count = dp.size(), .replica = dp.rank()});

    RankStages stages(shape, schedule, cut, pp.rank());
    ParameterList& parameters = stages.parameters();
    parameters.allocate_values(options.dtype);
    parameters.allocate_grads(options.grad_dtype(), dp.symmetric_memory());
    AdamW optimizer(parameters, options.optimizer);
    run.load(parameters, optimizer);
    const MessagePlan plan(schedule);
    Messages messages(pp, plan, {shape.micro_batch, shape.seq, shape.config.hidden},
                      shape.model.dtype, pretend.hop);
    Executor executor(schedule, stages, messages, pp.rank(), pretend);
    ForwardOnly forward_only(pp, schedule, stages, shape);

    Trained what;
    what.values = [&] { return parameters.parts(&Parameter::value); };
    what.gradients = [&] { return parameters.parts(&Parameter::grad); };
    what.optimizer_states = [&] { return states_of({&optimizer, 1}, parameters); };
    what.forward = [&](Context& context) { forward_only.loss(context); };
    what.sum_loss = [&](const Tensor& loss) {
        if (pp.size() > 1) pp.all_reduce(loss);
    };
    what.next_token = [&](const HostBatch& text) { return forward_only.next_token(text); };
    what.label = "pipe", what.technique = schedule.name;
    what.layout = {{"pp", pipeline.pp}, {"dp", dp.size()}};
    run.start(what);
    while (Step* step = run.next())
        train_step(*step, executor, parameters, optimizer, mesh, schedule.copies(), nullptr);

    return run.finish([&](Report& report) {
        const Prediction predicted =
            predict(shape, schedule, plan, cut, parameters, pp.rank(), dp.size());
        bool ok = report.memory(predicted);
        ok = report.communication(predicted, options.steps, run.of_validation()) && ok;
        report_time(
            report, shape, schedule, cut, pretend,
            Timeline(schedule, pp, executor, options.steps <= int64_t(executor.kept_steps)));
        report.throughput(predicted);
        return ok;
    });
}

bool run(const Options& options, Chapter& chapter) {
    chapter.check(options);
    const PipelineOptions& pipeline = chapter.pipeline;
    const StepShape shape = step_shape(options, options.config());
    const Schedule schedule =
        make_schedule(pipeline.schedule, pipeline.pp, int(options.grad_accum), pipeline.sizes);
    const std::vector<Stage> stages = cut(shape, schedule.stages, pipeline.split);
    let_waits_sleep(chapter.pretend().on() ? 5e-4 : 1e-4);
    return train_within_memory(options, [&] {
        return train(options, pipeline, chapter.pretend(), schedule, stages, shape);
    });
}

}  // namespace

int main(int argc, char** argv) {
    return run_chapter(argc, argv, "05_pipeline",
                       "Train a Llama whose layers are on several devices, one after the other.",
                       run);
}
