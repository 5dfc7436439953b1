// --compare: runs every technique alone on the same ranks and the same batch, and prints a table:
// what it cuts along which dimension, what a rank then holds, what it sends where, and how long a
// step takes. Then a pipeline is compared with ZeRO-3: both divide the model by its layers.
#pragma once

#include "lab/measure/measure.h"
#include "sections.h"
#include "techniques_picture.h"

namespace ultrascale::five_d {

struct ComparedWay {
    std::string name, cuts;
    Techniques techniques;
    // A rank's micro-batches in a step: fewer if ranks take different samples.
    int64_t micro_batches;
};

// Bytes that a rank sends in a step, by place: inside layers, between stages, for gradients and
// parameters.
struct SentWhere {
    double layers = 0, stages = 0, states = 0;
    explicit SentWhere(const Measured& m) {
        for (const auto& [group, kinds] : m.counts.groups) {
            const bool inside = group == "tp" || group == "cp" || group == "ring" ||
                                group == "ulysses" || group == "ep";
            double& where = group == "down" || group == "up" ? stages : inside ? layers : states;
            for (int k = 0; k < collective_kinds; ++k) {
                // All-reduces over cp are sums of gradients, and not attention's.
                const bool sums = group == "cp" && (k == int(Collective::all_reduce));
                (sums ? states : where) += kinds[size_t(k)].sent / double(m.steps);
            }
        }
    }
    double all() const { return layers + stages + states; }
};

class SideBySide {
public:
    using StepOfAll = std::function<void(Step&, Composition&)>;
    // `given`: the run's own techniques, which are compared with the others.
    SideBySide(const Options& options, const StepShape& shape, const Techniques& given,
               StepOfAll train_step)
        : options_(options),
          shape_(shape),
          given_(given),
          train_step_(std::move(train_step)),
          file_(options.data_path(), shape.config.vocab),
          report_("09_5d_parallel", options, shape, 0),
          picture_(Communicator::world().size()) {}

    // All ranks call it; rank 0 prints. Returns false if, on any rank, a technique's memory or
    // communication differs from its prediction, or if its loss differs from the first one's.
    bool run() {
        const int n = Communicator::world().size();
        const int64_t per_rank = options_.grad_accum;
        print(fmt::format(
            "{}; {:.3f} M parameters in {}; {} of {} tokens a step", format_count(n, "rank"),
            double(parameter_count(shape_.config)) / 1e6, dtype_name(shape_.model.dtype),
            format_count(options_.micro_batch * per_rank * n, "sequence"), shape_.seq));
        print(fmt::format("\n{:<25} {:<13} {:>35} {:>18}", "what a rank holds, and sends", "",
                          "MiB held", "MiB sent"));
        print(fmt::format("  {:<23} {:<13} {:>7} {:>6} {:>6} {:>6} {:>5} {:>6} {:>5} {:>5} {:>6}",
                          "", "cut along", "weights", "grads", "states", "activ.", "buff.",
                          "layers", "stage", "sums", "ms"));
        for (const ComparedWay& way : techniques(n, per_rank)) measure_way(way, true);
        print("  layers: inside them; stage: between them; sums: of gradients, and parameters");

        print("\na pipeline beside ZeRO-3, by the micro-batches of a step");
        print(fmt::format("  {:<26} {:>14} {:>14} {:>14} {:>10}", "", "sent: stages",
                          "sent: weights", "activations", "ms"));
        for (int64_t m : {int64_t(1), int64_t(2), int64_t(4)})
            for (const ComparedWay& way : pipeline_and_zero3(n, m)) measure_way(way, false);
        print(
            "  ZeRO-3 sends all weights for each micro-batch, whatever its size; a pipeline "
            "sends activations,\n  and waits less the more micro-batches there are");

        print(fmt::format(
            "memory and communication of each way: {}; losses: at most {:.2g} apart{}",
            ok_ ? "as predicted" : "NOT as predicted", apart_, equal() ? "" : "   MISMATCH"));
        picture_.draw(options_.svg);
        report_.text("compare", "result", ok_ && equal() ? "as predicted" : "not as predicted");
        report_.finish();
        return ok_ && equal();
    }

private:
    Techniques with(int n, const std::string& axis, int zero = 0) const {
        Techniques t = given_;
        t.zero.stage = zero;
        t.axes.*Axes::named(axis) = n;
        complete(t, n);
        return t;
    }
    std::vector<ComparedWay> techniques(int n, int64_t per_rank) const {
        Techniques sequence = with(n, "tp");
        sequence.tensor.sequence_parallel = true;
        const int64_t all = per_rank * n;
        std::vector<ComparedWay> ways = {
            {fmt::format("data parallel, dp {}", n), "batch", with(n, "dp"), per_rank},
            {"  ZeRO-1", "and states", with(n, "dp", 1), per_rank},
            {"  ZeRO-2", "and gradients", with(n, "dp", 2), per_rank},
            {"  ZeRO-3", "and weights", with(n, "dp", 3), per_rank},
            {fmt::format("tensor parallel, tp {}", n), "heads, F, V", with(n, "tp"), all},
            {"  sequence parallel", "and tokens", sequence, all},
            {fmt::format("context parallel, cp {}", n), "sequence", with(n, "cp"), all},
            {fmt::format("pipeline, pp {}, 1F1B", n), "layers", with(n, "pp"), all}};
        if (shape_.config.experts.count > 0)
            ways.push_back({fmt::format("experts, ep {}", n), "experts", with(n, "ep"), per_rank});
        return ways;
    }
    std::vector<ComparedWay> pipeline_and_zero3(int n, int64_t m) const {
        return {{fmt::format("pp {}, {} micro-batches", n, m * n), "", with(n, "pp"), m * n},
                {fmt::format("ZeRO-3, {} a rank", m), "", with(n, "dp", 3), m}};
    }

    void measure_way(const ComparedWay& way, bool first_table) {
        Options options = options_;
        options.grad_accum = way.micro_batches;
        const Communicator& world = Communicator::world();
        try {
            check_combination(options, way.techniques, shape_);
        } catch (const UserError&) {
            return print(fmt::format("  {:<26} not for this model: run it to see why", way.name));
        }
        Composition all(options, shape_, way.techniques);
        check_experts(all);
        const Prediction step_prediction = predict(all);
        check_fits_everywhere(predict_balanced(all).memory, memory_limit(), needs_less);
        all.updates->start();
        const DataLoader loader(file_, data_options(options, shape_));
        const DataSlice slice = all.data_slice();
        WatchedDocuments documents(all);
        const std::unique_ptr<ExpertRun> experts =
            all.experts ? watch_rows(all, documents) : nullptr;
        double loss = 0;
        bool warm = false;
        const auto settle = [&] {  // called after the first steps, and at the end
            all.updates->finish();
            if (std::exchange(warm, true)) return;
            if (experts) experts->clear();
            documents.clear();
        };
        const Measured m = measure(
            loader, slice, sequences_of_step(options, slice.count), options.steps,
            [&](Step& step) {
                step.watch = {&documents};
                step.on_finish = [&](double step_loss, double) { loss = step_loss; };
                train_step_(step, all);
                documents.end_step();
            },
            settle);
        Prediction predicted =
            experts ? experts->predicted(step_prediction, m.steps) : step_prediction.times(m.steps);
        documents.correct(predicted);

        MemoryByCategory held = memory_now();
        const MemoryByCategory peak = memory_peak_by_category();
        held[int(Memory::activation)] = peak[int(Memory::activation)];
        held[int(Memory::communication)] = peak[int(Memory::communication)];
        const MemoryEstimate& want = predicted.memory;
        const bool same = on_all_ranks(
            world,
            counted_as_predicted(predicted.communication, 1, m.counts) &&
                held_as_predicted(want, held) &&
                peak_as_predicted(want.peak_activations, held[int(Memory::activation)]) &&
                peak_as_predicted(want.peak_communication, held[int(Memory::communication)]));
        ok_ = ok_ && same;
        if (first_table) {  // all of its rows train on the same batch
            if (first_loss_ == 0) first_loss_ = loss;
            apart_ = std::max(apart_, std::abs(loss - first_loss_));
        }
        const SentWhere sent(m);
        const auto mib = [](double bytes) { return bytes / (1 << 20); };
        const auto held_mib = [&](Memory category) { return mib(double(held[int(category)])); };
        const std::string note = same ? "" : "  NOT as predicted";
        if (first_table)
            print(fmt::format(
                "  {:<23} {:<13} {:>7.2f} {:>6.2f} {:>6.2f} {:>6.2f} {:>5.2f} "
                "{:>6.2f} {:>5.2f} {:>5.2f} {:>6.1f}{}",
                way.name, way.cuts, held_mib(Memory::parameter), held_mib(Memory::gradient),
                held_mib(Memory::optimizer), held_mib(Memory::activation),
                held_mib(Memory::communication), mib(sent.layers), mib(sent.stages),
                mib(sent.states), m.step_seconds * 1e3, note));
        else
            print(fmt::format("  {:<26} {:>10.2f} MiB {:>10.2f} MiB {:>10.2f} MiB {:>10.1f}{}",
                              way.name, mib(sent.stages), mib(sent.states),
                              held_mib(Memory::activation), m.step_seconds * 1e3, note));
        report_.row({{"table", first_table ? "techniques" : "pipeline_zero3"},
                     {"way", way.name},
                     {"parameters", held[int(Memory::parameter)]},
                     {"gradients", held[int(Memory::gradient)]},
                     {"optimizer", held[int(Memory::optimizer)]},
                     {"peak_activations", held[int(Memory::activation)]},
                     {"peak_communication", held[int(Memory::communication)]},
                     {"sent_in_layers", sent.layers},
                     {"sent_between_stages", sent.stages},
                     {"sent_for_states", sent.states},
                     {"step_ms", m.step_seconds * 1e3},
                     {"exposed_ms", m.exposed_seconds * 1e3},
                     {"loss", loss},
                     {"as_predicted", same}});
        if (first_table) picture_.add(way.name, held, sent.all());
    }
    bool equal() const {
        return apart_ <= (options_.dtype == DType::fp32 ? 1e-5 : 1e-2) * std::abs(first_loss_);
    }

    const Options& options_;
    StepShape shape_;
    Techniques given_;
    StepOfAll train_step_;
    TokenFile file_;
    Report report_;
    TechniquesPicture picture_;
    bool ok_ = true;
    double first_loss_ = 0, apart_ = 0;
};

}  // namespace ultrascale::five_d
