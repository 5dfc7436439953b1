// Chapter 03: tensor parallelism. The ranks of a group share every layer: each rank holds a part of
// the layer's weights and computes with it. 1_plain.h is the idea alone; 8_tensor_parallel.h puts
// together this and all that comes after it. Groups train on different samples.
#include "8_tensor_parallel.h"
#include "lab/compare.h"
#include "lab/linear_order.h"
#include "lab/options.h"
#include "lab/scaling.h"
#include "lab/sections.h"
#include "train/gradients.h"
#include "train/run.h"

using namespace ultrascale;
using namespace ultrascale::tensor_parallel;

namespace {

// One training step. The ranks of a tensor-parallel group take the same samples and communicate
// during forward and backward, inside every layer. The remaining sums are made at the end: over the
// groups, which took different samples, and over the ranks that hold copies of a parameter.
void train_step(Step& step, Llama& model, Updater& optimizer, const Mesh& mesh,
                const TensorOptions& tensor) {
    ParameterList& parameters = model.parameters();
    parameters.begin_gradients(step.accumulated);
    if (tensor.overlap == Overlap::halves)
        run_in_halves(step, model, tensor);
    else
        for (MicroBatch batch : step.micro_batches()) {
            Saved saved;
            model.forward(batch, saved);
            model.backward(batch, saved);
        }
    sum_gradients(parameters, mesh);
    const Tensor squared_norm = optimizer.squared_norm();
    optimizer.step(step.learning_rate, squared_norm);
    step.sum_loss(mesh.group("dp"));  // all ranks of a tensor-parallel group have the same already
    step.finish(squared_norm);
}

// Trains. Returns false if the result differs from plain training on one device, or memory or
// communication from their predictions.
bool train(const Options& options, const Chapter& chapter, const StepShape& shape) {
    const TensorOptions& tensor = chapter.tensor;
    const Communicator& world = Communicator::world();
    Mesh mesh(world, {{"dp", world.size() / tensor.tp}, {"tp", tensor.tp}});
    const Communicator &dp = mesh.group("dp"), &tp = mesh.group("tp");
    Run run("03_tensor_parallel", options, shape,
            {.micro_batch = options.micro_batch / parts_of_micro_batch(tensor),
             .count = dp.size(),
             .replica = dp.rank()});

    // This rank's part of the model, and an optimizer for it.
    ShapeTable shapes;
    const TensorParallel parallel(shape.config, tensor, mesh, recorded_region(tp, tensor, shapes));
    ModuleFactories factories = parallel.factories(shape.model);
    record_shapes(factories, shape.config.vocab, shapes);
    Llama model(shape.config, shape.model, factories, Stage::whole(shape.config));
    ParameterList& parameters = model.parameters();
    check_fits(shape, tensor, parameters, tp.rank(), memory_limit());
    parameters.allocate_values(options.dtype);
    parameters.allocate_grads(options.grad_dtype(), dp.symmetric_memory());
    PlainUpdater optimizer(parameters, options, &mesh);
    run.load(optimizer.start());
    LayerCommunication sent;
    KeptTerms kept(shape, tensor.tp, tensor.sequence_parallel);
    TrainingSetup what = setup(model, optimizer, options, shape, tensor, mesh, sent, kept);
    what.cuda_graph = chapter.cuda_graph;
    if (communication_through_host())
        what.no_graph = "ranks share a GPU, so their messages pass the host";
    run.start(what);
    while (Step* step = run.next()) train_step(*step, model, optimizer, mesh, tensor);

    return run.finish([&](Report& report) {
        return print_sections(report, run, options, shape, tensor, mesh, parameters, shapes, sent,
                              kept);
    });
}

bool run(const Options& options, Chapter& chapter) {
    chapter.check(options);
    if (chapter.demo == "linear") {
        const bool one = demo_linear(Communicator::world());
        return demo_linear_order(Communicator::world()) && one;
    }
    const TensorOptions& tensor = chapter.tensor;
    StepShape shape = step_shape(options, options.config());
    if (chapter.demo == "scaling" || tensor.plain)
        only_llama(shape.config, tensor.plain ? "--plain" : "--demo scaling");
    if (chapter.demo == "scaling") return demo_scaling(options, shape), true;
    check_splits(shape.config, tensor, shape.micro_batch, shape.seq);
    if (chapter.memory_budget > 0)
        fit_into_budget(shape, chapter.memory_budget, memory_by_shape(tensor, shape));
    if (options.estimate) return print_estimate(options, tensor, shape), true;
    if (chapter.compare) {
        slow_down(options);
        return compare_sequence_parallel(options, tensor, shape, train_step);
    }
    return train_within_memory(options, [&] { return train(options, chapter, shape); });
}

}  // namespace

int main(int argc, char** argv) {
    return run_chapter(argc, argv, "03_tensor_parallel",
                       "Train a Llama whose layers are shared by several devices.", run);
}
