// --compare: a few steps of the same training with 1, 2, 4, ... ranks sharing the experts, and one
// table: a rank's memory, the bytes that it sends for its tokens, the time of a step, and whether
// the loss is the same.
#pragma once

#include "lab/measure/measure.h"
#include "sections.h"

namespace ultrascale::expert_parallel {

// All ranks call it; rank 0 prints. Returns false if, on any rank, memory or communication differ
// from their prediction, or the loss from that of ep 1.
inline bool compare_ranks(
    const Options& options, const ExpertOptions& chosen, const StepShape& shape,
    const std::function<void(Step&, Llama&, Updater&, const Mesh&, ExpertParallel&)>& train_step) {
    const Communicator& world = Communicator::world();
    const int64_t E = shape.config.experts.count, A = options.grad_accum;
    const TokenFile file(options.data_path(), shape.config.vocab);
    const DataLoader loader(file, data_options(options, shape));
    print(fmt::format("{} on {}; {:.3f} M parameters in {}, {:.3f} M active",
                      describe_model(shape.config.experts), format_count(world.size(), "rank"),
                      double(parameter_count(shape.config)) / 1e6, dtype_name(shape.model.dtype),
                      double(active_parameter_count(shape.config)) / 1e6));
    print(fmt::format("{} x {} tokens a micro-batch, {} a step on each rank", options.micro_batch,
                      shape.seq, A));
    print(fmt::format("  {:<20} {:>7} {:>9} {:>11} {:>10} {:>10} {:>8} {:>7} {:>8}", "", "experts",
                      "states", "activations", "sent by", "gradients", "exposed", "step ms",
                      "loss"));
    print(fmt::format("  {:<20} {:>7} {:>9} {:>11} {:>10} {:>10} {:>8}", "", "a rank", "",
                      "at the peak", "dispatch", "send", "ms"));
    Report report("06_expert_parallel", options, shape, 0);
    bool ok = true;
    std::map<DispatchDtype, double> first_loss;  // rows in fp8 give another one
    double apart = 0;
    std::vector<std::vector<float>> loads;  // of a step; they are the same in all rows
    std::string busiest;
    struct Way {
        Dispatch dispatch;
        DispatchDtype dtype = DispatchDtype::model;
        bool placed = false;
    };
    for (int ep = 1; ep <= world.size(); ep *= 2)
        for (const auto& [dispatch, dtype, placed] :
             {Way{Dispatch::plain}, Way{Dispatch::expert}, Way{Dispatch::rank},
              Way{Dispatch::expert, DispatchDtype::fp8},
              Way{.dispatch = Dispatch::expert, .placed = true}}) {
            const bool fp8 = dtype == DispatchDtype::fp8;
            if (world.size() % ep != 0 || E % ep != 0) continue;
            if (fp8 && shape.config.hidden % ops::packed_block != 0) continue;
            if (dispatch != Dispatch::expert && (ep == 1 || chosen.capacity_factor > 0)) continue;
            if (dispatch == Dispatch::plain && shape.config.experts.shared > 0) continue;
            if (placed && (ep == 1 || E == 1 || chosen.capacity_factor > 0)) continue;
            ExpertOptions o = chosen;
            o.ep = ep, o.dispatch = dispatch, o.dispatch_dtype = dtype;
            if (placed) o.loads = loads, o.replicas = ep;
            Mesh mesh(world, {{"dp", world.size() / ep}, {"ep", ep}});
            ExpertParallel experts(shape.config, o, mesh, A);
            add_holders(mesh, experts.placements());
            Llama model(shape.config, shape.model, experts.factories(shape.model),
                        Stage::whole(shape.config));
            ParameterList& parameters = model.parameters();
            parameters.allocate_values(options.dtype);
            parameters.allocate_grads(options.grad_dtype());
            PlainUpdater optimizer(parameters, options, &mesh);
            optimizer.start();
            const DataSlice slice{
                .micro_batch = options.micro_batch, .count = world.size(), .replica = world.rank()};
            double loss = 0;
            ExpertRun seen(shape, o, experts);
            const auto run = [&](Step& step) {
                step.on_finish = [&](double step_loss, double) { loss = step_loss; };
                train_step(step, model, optimizer, mesh, experts);
            };
            // At learning rate 0 all steps route alike: each sends as much as the first.
            Step one(loader, slice, 1, 0, sequences_of_step(options, world.size()));
            run(one);
            loads = seen.loads().front().by_layer;
            if (placed)
                busiest = fmt::format(
                    "  rows of the busiest rank, over the mean: ep {} {:.2f}; with {} {:.2f}\n", ep,
                    busiest_over_mean(loads_in_order(loads, ep)), format_count(ep, "replica"),
                    busiest_over_mean(measured_loads(seen.rows_of_steps().front(), ep)));
            const double dispatch_sent = seen.travelled().of(Collective::all_to_all).sent;
            const Prediction predicted =
                seen.predicted(predict_fixed(shape, o, parameters, mesh, experts.balance()), 1);
            const Measured m = measure(loader, slice, sequences_of_step(options, world.size()),
                                       options.steps, run);
            const MemoryByCategory peak = memory_peak_by_category(), now = memory_now();
            const int64_t fixed = now[int(Memory::parameter)] + now[int(Memory::gradient)] +
                                  now[int(Memory::optimizer)];
            const double first = first_loss.emplace(dtype, loss).first->second;
            apart = std::max(apart, std::abs(loss - first) / std::max(1.0, std::abs(first)));
            const bool same = on_all_ranks(
                world, counted_as_predicted(predicted.communication, m.steps, m.counts) &&
                           fixed == predicted.memory.parameters + predicted.memory.gradients +
                                        predicted.memory.optimizer &&
                           peak_as_predicted(predicted.memory.peak_activations,
                                             peak[int(Memory::activation)]));
            ok = ok && same;
            const std::string name =
                fmt::format("ep {} x dp {}{}", ep, world.size() / ep,
                            fp8       ? ", fp8"
                            : placed  ? ", copies"
                            : ep == 1 ? ""
                                      : fmt::format(", {}", dispatch_names[int(dispatch)]));
            const double sums = m.counts[size_t(Collective::all_reduce)].sent / double(m.steps);
            print(fmt::format(
                "  {:<20} {:>7} {:>9} {:>11} {:>10} {:>10} {:>8.1f} {:>7.1f} "
                "{:>8.5f}{}",
                name, o.slots(shape.config.experts) / ep, format_bytes(double(fixed)),
                format_bytes(double(peak[int(Memory::activation)])), format_bytes(dispatch_sent),
                format_bytes(sums), 1e3 * m.exposed_seconds, 1e3 * m.step_seconds, loss,
                same ? "" : " MISMATCH"));
            report.row({{"ep", int64_t(ep)},
                        {"dispatch", dispatch_names[int(dispatch)]},
                        {"dispatch_dtype", dispatch_dtype_names[int(dtype)]},
                        {"replicas", int64_t(o.replicas)},
                        {"fixed_bytes", fixed},
                        {"activation_bytes", peak[int(Memory::activation)]},
                        {"dispatch_sent_bytes", dispatch_sent},
                        {"gradients_sent_bytes", sums},
                        {"step_ms", 1e3 * m.step_seconds},
                        {"loss", loss},
                        {"as_predicted", same}});
        }
    const double bound = options.dtype == DType::fp32 ? 1e-5 : 3e-3;
    const bool equal = apart <= bound;
    print(
        fmt::format("  states: parameters, gradients and optimizer. All rows are rank 0's.\n{}"
                    "  losses of rows that travel in one type differ by {:.1e} at most: {}",
                    busiest, apart, equal ? "ok" : "MISSED"));
    report.finish();
    return ok && equal;
}

}  // namespace ultrascale::expert_parallel
