// Chapter 09: everything together. Data, tensor, context, expert and pipeline parallelism with
// ZeRO, on request with products in fp8. The code is the chapters' own; 4_composition.h puts it
// together. Combinations that cannot work are refused. planner/ says which layout is fastest.
#include "05_pipeline/4_executor/forward_only.h"
#include "lab/compare.h"
#include "lab/layout_pictures.h"
#include "lab/options.h"
#include "planner/pipeline_ranks.h"

using namespace ultrascale;
using namespace ultrascale::five_d;

namespace {

// Without a pipeline a rank has all layers, and takes its micro-batches one after the other.
void run_micro_batches(Step& step, Llama& model, Updater& updates) {
    for (MicroBatch batch : step.micro_batches({&updates})) {
        Saved saved;
        updates.begin_micro_batch(batch.micro_batch, batch.micro_batch + 1 == step.accumulated);
        model.forward(batch, saved);
        model.backward(batch, saved);
        updates.end_micro_batch();
    }
}

// In a pipeline several micro-batches are in flight, in the schedule's order, and so are those of
// which one computes while another one's rows travel to experts (06).
void run_pipeline(Step& step, Executor& executor, Updater& updates) {
    executor.run(step, &updates);
    updates.end_all_micro_batches();
}

// One training step. The techniques communicate inside these calls: layers in forward and backward
// (03, 04, 06), stages in the executor (05). Gradients are summed during backward, by the hooks of
// `updates` (01, 02). Each of schedule.copies() copies of the model (DualPipe has two) takes its
// part of the micro-batches. Experts may count the step's choices first, but only without a
// pipeline: then chunk(0) is the whole model.
void train_step(Step& step, Composition& all) {
    Updater& updates = *all.updates;
    updates.begin_step(step.accumulated / all.schedule.copies());
    if (all.experts) all.experts->begin_step(step, all.own.chunk(0), &updates);
    if (all.pp().size() == 1 && !all.techniques.experts.interleaves())
        run_micro_batches(step, all.own.chunk(0), updates);
    else
        run_pipeline(step, all.executor, updates);
    const Tensor squared_norm = updates.squared_norm();
    updates.step(step.learning_rate, squared_norm);
    if (all.experts) all.experts->end_step();
    step.sum_loss(all.loss_group());
    step.finish(squared_norm);
}

// Trains, among the ranks of `world`. Returns false if the result differs from plain training on
// one device, or if memory or communication differ from their predictions.
bool train(const Options& options, const Techniques& techniques, const StepShape& shape,
           const Communicator& world = Communicator::world()) {
    Composition all(options, shape, techniques, world);
    check_experts(all);
    Updater& updates = *all.updates;
    Run run("09_5d_parallel", options, shape, all.data_slice());
    const Prediction step_prediction = predict(all);
    check_fits_everywhere(predict_balanced(all).memory, memory_limit(), needs_less);
    run.load(updates.start());
    ForwardOnly forward_only(all.pp(), all.schedule, all.own, shape, [&](const Batch& batch) {
        return all.stream_shape(batch.sequences(), batch.length());
    });
    TrainingSetup what{.updater = &updates,
                       .forward =
                           [&](Context& context) {
                               updates.finish();
                               context.hooks = &updates;
                               forward_only.loss(context);
                           },
                       .loss_group = &all.mesh.group({"pp", "cp"}),
                       .label = "layout",
                       .technique = describe(techniques),
                       .layout = layout_of(techniques.axes),
                       .not_equal = why_not_equal(techniques.zero),
                       .bounds = bounds_of(techniques, options.dtype),
                       .imagined = world.is_imagined()};
    Fp8Linears reference_linears(techniques.precision);
    if (techniques.precision.recipe.fp8()) {
        what.plain_parts = [&](ModuleFactories& factories) {
            reference_linears.add_to(factories, shape.config.layers);
        };
        what.plain_micro_batch = options.micro_batch;  // each has scales of its own
        if (techniques.tensor.tp > 1)
            what.not_equal = "scales are those of the parts of a tensor that the ranks of tp have";
    }
    WatchedDocuments documents(all);
    what.watch = {&documents};
    std::optional<WatchedExperts> experts;
    if (all.experts) experts.emplace(options, all, documents, what);
    run.start(what);
    while (Step* step = run.next()) {
        train_step(*step, all);
        if (experts) experts->end_step();
        documents.end_step();
    }
    updates.finish();
    draw_layout(options.svg, all);

    return run.finish([&](Report& report) {
        Prediction run_prediction =
            experts ? experts->predicted(step_prediction) : step_prediction.times(options.steps);
        documents.correct(run_prediction);
        bool ok = report.memory(run_prediction);
        ok = report.communication_of_run(run_prediction, options.steps,
                                         run.validation_communication()) &&
             ok;
        if (report.full() || options.node_size > 0)
            print_axes(report, techniques, options.node_size);
        if (!world.is_imagined()) report.throughput(step_prediction);
        return ok;
    });
}

// --rehearse: one rank of many trains alone, on this device. Its numbers mean nothing; what it
// holds and calls is that rank's.
bool rehearse(Options options, const Chapter& chapter, const StepShape& shape) {
    if (Communicator::world().size() > 1)
        user_error("--rehearse {}: one rank plays all; start one", chapter.planner.rehearse);
    const auto [rank, ranks] = rehearsed_rank(chapter.planner.rehearse);
    imagine_hardware(chapter.planner, options, chapter.techniques.axes);
    options.verify = false;
    const Communicator world = Communicator::imagined("world", ranks, rank);
    return train_within_memory(options,
                               [&] { return train(options, chapter.techniques, shape, world); });
}

// For --calibrate: a few steps in data parallelism. They go through the code, the names and the
// messages of any training.
void train_a_little(DType dtype) {
    Options options;  // whose model is the smallest
    options.dtype = dtype, options.micro_batch = 1;
    const StepShape shape = step_shape(options, options.config());
    Techniques techniques;
    complete(techniques, Communicator::world().size());
    Composition all(options, shape, techniques);
    all.updates->start();
    const TokenFile file(options.data_path(), shape.config.vocab);
    const DataLoader loader(file, data_options(options, shape));
    const DataSlice slice = all.data_slice();
    measure(
        loader, slice, sequences_of_step(options, slice.count), 3,
        [&](Step& step) { train_step(step, all); }, [&] { all.updates->finish(); });
}

bool run(const Options& given, Chapter& chapter) {
    const Options options = chapter.with_recipe(given);
    const StepShape shape = step_shape(options, chapter.config(options));
    if (chapter.compare) {
        slow_down(options);
        chapter.complete_experts(options, shape);
        return SideBySide(options, shape, chapter.techniques, train_step).run();
    }
    if (!chapter.planner.calibrate.empty())
        return write_calibration(chapter.planner, options, [&] { train_a_little(options.dtype); });
    if (chapter.planner.asked()) {
        only_llama(shape.config, "the planner");
        chapter.complete_words(options);
        return run_planner(chapter.planner, options, shape, chapter.techniques);
    }
    chapter.check(options, shape);
    if (!chapter.planner.rehearse.empty()) return rehearse(options, chapter, shape);
    if (options.estimate && chapter.planner.gpus > 0)
        return print_pipeline_ranks(options, shape, chapter.techniques), true;
    if (options.estimate) return print_estimate(options, chapter.techniques, shape), true;
    return train_within_memory(options, [&] { return train(options, chapter.techniques, shape); });
}

}  // namespace

int main(int argc, char** argv) {
    return run_chapter(argc, argv, "09_5d_parallel",
                       "Train a Llama with all kinds of parallelism at once.", run);
}
