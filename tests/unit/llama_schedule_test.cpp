// A pipeline schedule does more with a Llama than call its passes: it drives the segments of two
// micro-batches interleaved, and it holds several stages whose parameters are in one list.
#include "llama_runs.h"

namespace ultrascale {
namespace {

using namespace test;

struct MicroBatch {
    Context context;
    Saved saved = {};
    Tensor x = {}, dy = {};
};

// Interleaves one micro-batch's forward with another one's backward, as DualPipe does: unit by
// unit, and segment by segment if both units are layers. If `split`, each unit's weight gradients
// follow.
void forward_beside_backward(Llama& model, MicroBatch& f, MicroBatch& b, bool split) {
    const WeightGradient when = split ? WeightGradient::later : WeightGradient::now;
    const Pass backward = split ? Pass::backward_input : Pass::backward;
    const size_t units = model.units().size();
    for (size_t u = 0; u < units; ++u) {
        const Unit &up = model.units()[u], &down = model.units()[units - 1 - u];
        Layer *upper = model.layer(up), *lower = model.layer(down);
        const auto weights = [&] {
            if (split) model.backward_weight_unit(down, b.saved, b.context);
        };
        ASSERT_EQ(upper == nullptr, lower == nullptr);
        if (!upper) {
            b.dy = model.backward_unit(down, b.dy, b.saved, b.context, when);
            weights();
            f.x = model.forward_unit(up, f.x, f.saved, f.context);
            continue;
        }
        Saved &kept = f.saved[up.name], &taken = b.saved[down.name];
        run_unit(
            up, Pass::forward, f.context,
            [&] { f.x = upper->attention_forward(f.x, kept, f.context); }, Segment::first);
        run_unit(
            down, backward, b.context,
            [&] { b.dy = lower->feed_forward_backward(b.dy, taken, b.context, when); },
            Segment::first);
        run_unit(
            up, Pass::forward, f.context,
            [&] { f.x = upper->feed_forward_forward(f.x, kept, f.context); }, Segment::last);
        run_unit(
            down, backward, b.context,
            [&] { b.dy = lower->attention_backward(b.dy, taken, b.context, when); }, Segment::last);
        weights();
    }
}

// Runs two micro-batches of a step, with the second one's forward interleaved with the first one's
// backward.
Result run_interleaved(Llama& model, const std::vector<HostBatch>& batches, bool split,
                       Hooks* hooks = nullptr) {
    ops::fill(model.parameters().flat_grads(), NAN);
    model.parameters().begin_gradients(2);
    const Tensor loss = Tensor::zeros({1}, DType::fp64, Memory::workspace);
    MicroBatch first{context_of(batches, 0, loss, hooks)},
        second{context_of(batches, 1, loss, hooks)};
    model.forward({}, first.saved, first.context);
    forward_beside_backward(model, second, first, split);
    model.backward({}, second.saved, second.context,
                   split ? WeightGradient::later : WeightGradient::now);
    if (split) model.backward_weight(second.saved, second.context);
    expect_empty(first.saved);
    expect_empty(second.saved);
    return result_of(model.parameters(), loss);
}

TEST(Schedule, InterleavedSegmentsGiveTheSameBits) {
    const std::vector<HostBatch> batches = {random_batch(2, 19, 1), random_batch(3, 19, 3)};
    for (bool tied : {false, true})
        for (bool split : {false, true})
            for (const ModelOptions& options : all_options({DType::fp32, DType::bf16})) {
                const auto model = make(small(tied), options);
                EXPECT_EQ(run_interleaved(*model, batches, split), run(*model, batches, split))
                    << "recomputation " << int(options.recompute);
            }
}

// Returns the hook calls of one micro-batch's units, in order.
std::vector<std::string> unit_events(const Recorder& recorder, int micro_batch) {
    std::vector<std::string> events;
    for (const std::string& event : recorder.events)
        for (const char* sign : {">", "<"})
            if (event.starts_with(fmt::format("{} {} ", micro_batch, sign)))
                events.push_back(event);
    return events;
}

TEST(Schedule, HooksFireOnceAUnitHoweverItsSegmentsAreInterleaved) {
    const std::vector<HostBatch> batches = {random_batch(1, 9, 7), random_batch(1, 9, 9)};
    for (const ModelOptions& options : all_options()) {
        const auto model = make(small(), options);
        Recorder one_by_one, interleaved;
        run(*model, batches, false, &one_by_one);
        run_interleaved(*model, batches, false, &interleaved);
        EXPECT_NE(one_by_one.events, interleaved.events);
        for (int m : {0, 1}) EXPECT_EQ(unit_events(interleaved, m), unit_events(one_by_one, m));
    }
}

TEST(Schedule, WithFullRecomputationALayersSegmentsKeepItsInputOnly) {
    const ModelOptions options{.recompute = Recompute::full};
    const auto model = make(small(), options);
    const Tensor loss = Tensor::zeros({1}, DType::fp64, Memory::workspace);
    MicroBatch m{context_of({random_batch(2, 9, 1)}, 0, loss, nullptr)};
    m.x = model->forward_unit(model->units()[0], {}, m.saved, m.context);
    Layer* layer = model->layer(model->units()[1]);
    Saved kept;
    m.x = layer->attention_forward(m.x, kept, m.context);
    m.x = layer->feed_forward_forward(m.x, kept, m.context);
    std::vector<std::string> paths;
    kept.for_each([&](const std::string& path, const Tensor&) { paths.push_back(path); });
    EXPECT_EQ(paths, std::vector<std::string>{"checkpoint"});
}

// Several stages are in one process, as in interleaved or V-shaped schedules.
TEST(Schedule, StagesThatShareAListOfParametersEqualTheWhole) {
    const std::vector<HostBatch> batches = {random_batch(2, 19, 11), random_batch(1, 19, 13)};
    for (bool tied : {false, true})
        for (bool split : {false, true})
            for (const ModelOptions& options : all_options({DType::fp32, DType::bf16})) {
                LlamaConfig config = small(tied);
                config.layers = 3;
                const auto whole = make(config, options);
                const ModuleFactories factories = default_factories(config, options);
                ParameterList list;
                Llama first(config, options, factories, {0, 1, true, false}, &list);
                Llama second(config, options, factories, {1, 3, false, true}, &list);
                list.allocate_values(options.dtype);
                list.allocate_grads(options.dtype);
                list.initialize(1);
                EXPECT_EQ(&first.parameters(), &list);
                EXPECT_EQ(&second.parameters(), &list);
                EXPECT_EQ(run(list, {&first, &second}, batches, split),
                          run(*whole, batches, split));

                // Each stage has its own unit names, indices and parameters; only a tied head
                // shares the embedding's parameter.
                std::vector<std::string> names;
                for (const Llama* stage : {&first, &second})
                    for (size_t u = 0; u < stage->units().size(); ++u) {
                        const Unit &unit = stage->units()[u], &same = whole->units()[names.size()];
                        EXPECT_EQ(unit.name, same.name);
                        EXPECT_EQ(unit.index, int(u));
                        EXPECT_EQ(unit.gradients_in_forward, same.gradients_in_forward);
                        ASSERT_EQ(unit.parameters.size(), same.parameters.size());
                        for (size_t p = 0; p < unit.parameters.size(); ++p) {
                            EXPECT_EQ(unit.parameters[p]->name, same.parameters[p]->name);
                            EXPECT_EQ(unit.parameters[p], list.find(same.parameters[p]->name));
                        }
                        names.push_back(unit.name);
                    }
                EXPECT_EQ(names.size(), whole->units().size());
            }
}

}  // namespace
}  // namespace ultrascale
