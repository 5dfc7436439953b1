// --plan, --explain-layout: what the planner prints. The headers in this folder compute it.
#include "asked.h"
#include "lab/report/report.h"
#include "nearest.h"
#include "playbook.h"
#include "rule_of_thumb.h"
#include "scale_pictures.h"
#include "spread.h"

namespace ultrascale::five_d {
namespace {

constexpr size_t shown = 10;  // layouts of --plan

void print_for(const PlanFor& f, const Options& options) {
    const std::string gradients =
        f.shape.grad_dtype == f.shape.model.dtype
            ? ""
            : fmt::format(" with {} gradients", dtype_name(f.shape.grad_dtype));
    print(
        fmt::format("{}, {:.2f} B parameters in {}{};\n{} of {} with {:.0f} GB; {} of {} tokens a "
                    "step",
                    options.model_name(), double(parameter_count(f.shape.config)) / 1e9,
                    f.fp8 ? "bf16, products in fp8" : dtype_name(f.shape.model.dtype), gradients,
                    format_count(f.gpus, "GPU"), f.hardware.name, f.hardware.memory / 1e9,
                    format_count(f.sequences, "sequence"), f.shape.seq));
    if (f.shape.model.dtype == DType::fp32 && f.hardware.fp32_peak > 0)
        print(
            fmt::format("in fp32 a GPU has no more than {:.0f} TFLOP/s; --dtype bf16 plans for "
                        "tensor cores",
                        f.hardware.peak / 1e12));
}

JsonFields row_of(const Planner& planner, const Ranked& r, int64_t pp_rank) {
    const Plan& p = r.plan;
    const StepCost& c = r.cost;
    return {{"table", "plan"},
            {"pp_rank", pp_rank},
            {"dp", p.dp},
            {"tp", p.tp},
            {"cp", p.cp},
            {"ep", p.ep},
            {"pp", p.pp},
            {"chunks", int64_t(p.chunks)},
            {"zero", int64_t(p.zero)},
            {"micro_batch", p.micro_batch},
            {"micro_batches", p.micro_batches},
            {"recompute", p.recompute == Recompute::full},
            {"seconds", r.seconds},
            {"mfu", planner.mfu(r)},
            {"memory_bytes", r.memory.most},
            {"memory_rank", int64_t(r.memory.pp_rank)},
            {"process_bytes", int64_t(double(r.memory.most) + planner.what().hardware.process)},
            {"compute_seconds", c.compute},
            {"tensor_seconds", c.tensor},
            {"context_seconds", c.context},
            {"experts_seconds", c.experts},
            {"uneven_seconds", c.uneven},
            {"bubble_seconds", c.bubble + c.messages},
            {"data_seconds", c.data},
            {"optimizer_seconds", c.optimizer}};
}

void print_head() {
    print(fmt::format("  {:<33} {:>5} {:>8} {:>5} {:>5}   {:>7} {:>5} {:>5} {:>5} {:>5}", "", "",
                      "", "", "", "compute", "tp", "cp ep", "pp", "dp"));
    print(fmt::format("  {:<33} {:>5} {:>8} {:>5} {:>5}   {:>33}", "layout", "b x m", "ms", "MFU",
                      "GB", "% of the step"));
}
void print_row(const Planner& planner, const Ranked& r) {
    const StepCost& c = r.cost;
    const auto part = [&](double seconds) { return 100 * seconds / r.seconds; };
    print(fmt::format(
        "  {:<33} {:>5} {:>8.1f} {:>5.1f} {:>5.1f}   {:>7.0f} {:>5.1f} {:>5.1f} "
        "{:>5.1f} {:>5.1f}",
        describe(r.plan), fmt::format("{}x{}", r.plan.micro_batch, r.plan.micro_batches),
        1e3 * r.seconds, 100 * planner.mfu(r), double(r.memory.most) / 1e9, part(c.compute),
        part(c.tensor), part(c.context + c.experts), part(c.uneven + c.bubble + c.messages),
        part(c.data + c.optimizer)));
}

void print_rule(Planner& planner, const Planned& all) {
    const RuleOfThumb rule = rule_of_thumb(planner);
    print("\nby the playbook's rule of thumb");
    for (size_t i = 0; i < rule.steps.size(); ++i)
        print(fmt::format("  {}. {}", i + 1, rule.steps[i]));
    if (!rule.chosen || all.fit.empty()) return;
    print_row(planner, *rule.chosen);
    const double times = rule.chosen->seconds / all.fit.front().seconds;
    const auto before = std::ranges::count_if(
        all.fit, [&](const Ranked& r) { return r.seconds < rule.chosen->seconds * (1 - 1e-9); });
    print(fmt::format("  {}: {:.2f} times the best one's step; {} faster",
                      times <= 1.05 ? "it agrees" : "it does not agree", times,
                      before == 1 ? "1 layout is" : fmt::format("{} layouts are", before)));
}

// Returns why there is no plan, and for how many GPUs there would be one.
std::string no_plan(const PlanFor& what, const Planned& all) {
    if (all.refused > 0)
        return fmt::format("a run would refuse {}: {}",
                           all.refused == 1 ? "the only layout that fits"
                                            : fmt::format("all {} layouts that fit", all.refused),
                           all.why_refused);
    std::string why =
        all.considered > 0
            ? fmt::format("none of {} layouts fits in {:.1f} GB; the smallest, {}, needs {:.1f} GB",
                          all.considered, double(what.limit()) / 1e9, describe(all.smallest.plan),
                          double(all.smallest.memory.most) / 1e9)
        : all.why_not.empty()
            ? fmt::format("the axes that are given do not divide {}",
                          format_count(what.gpus, "GPU"))
            : fmt::format("no layout of {}: {}", format_count(what.gpus, "GPU"), all.why_not);
    PlanFor other = what;
    other.gpus = nearest_that_fits(what);
    if (other.gpus == 0) return why;
    Planner planner(other);
    const Planned some = planner.plan();
    if (some.fit.empty()) return why;
    why += fmt::format("; on {} one fits", format_count(other.gpus, "GPU"));
    const Ranked& best = some.fit.front();
    const std::optional<Fewer> fewer = as_fast_with_fewer(other, planner.mfu(best), best.seconds);
    return fewer ? fmt::format("{}, and {} of them are as fast", why, fewer->gpus) : why;
}

void print_fewer(Report& report, const PlanFor& what, double mfu, double seconds) {
    const std::optional<Fewer> fewer = as_fast_with_fewer(what, mfu, seconds);
    if (!fewer) return;
    print(fmt::format("\n{} of the {} are as fast: {}, {}x{}, {:.1f} ms", fewer->gpus,
                      format_count(what.gpus, "GPU"), describe(fewer->best.plan),
                      fewer->best.plan.micro_batch, fewer->best.plan.micro_batches,
                      1e3 * fewer->best.seconds));
    report.value("plan", "gpus_as_fast", double(fewer->gpus));
}

bool print_plan(const PlannerOptions& given, const Options& options, const StepShape& shape,
                const Techniques& techniques) {
    PlanFor what = asked(given, options, shape, techniques);
    what.fixed = asked_fixed(options, techniques);
    Planner planner(what);
    const double begin = now_seconds();
    const Planned all = planner.plan();
    const double seconds = now_seconds() - begin;
    Report report("09_5d_parallel", options, shape, 0);
    print_for(what, options);
    const int64_t fit = int64_t(all.fit.size()) + all.refused;
    print(fmt::format("{} layouts, {} fit; planned in {:.1f} s", all.considered, fit, seconds));
    report.value("plan", "considered", double(all.considered));
    report.value("plan", "fit", double(fit));
    report.value("plan", "seconds", seconds);
    if (all.fit.empty()) {
        const std::string why = no_plan(what, all);
        print(wrapped(why));
        report.finish();
        throw UserError("--plan: " + why, Exit::no_plan);
    }
    print("");
    print_head();
    for (size_t i = 0; i < std::min(shown, all.fit.size()); ++i) {
        print_row(planner, all.fit[i]);
        report.row(row_of(planner, all.fit[i], int64_t(i) + 1));
    }
    print(
        "  b x m: sequences of a micro-batch x micro-batches. Not compute: what is waited for; "
        "pp: uneven\n  stages and bubble; dp: sums, gathers and the optimizer");
    print("\nthe best one, to be run with the options that were given:\n" +
          wrapped("  " + all.fit.front().plan.options(), 4));
    print_fewer(report, what, planner.mfu(all.fit.front()), all.fit.front().seconds);
    print_rule(planner, all);
    report.finish();
    return true;
}

// ---- one layout -------------------------------------------------------------------------------

Plan plan_of(const Techniques& t, const Options& options, int64_t gpus) {
    Techniques completed = t;
    complete(completed, int(gpus), layout_names[int(t.context.layout)]);
    const Axes& a = completed.axes;
    Plan plan = alike(t);
    plan.dp = a.dp, plan.tp = a.tp, plan.cp = a.cp, plan.ep = a.ep, plan.pp = a.pp;
    plan.zero = t.zero.stage;
    plan.micro_batch = options.micro_batch, plan.micro_batches = options.grad_accum;
    plan.chunks = t.schedule == "1f1b" ? 1 : t.sizes.chunks > 0 ? t.sizes.chunks : 2;
    plan.recompute = options.recompute;
    plan.fp8 = t.precision.recipe.fp8();
    return plan;
}

bool print_layout(const PlannerOptions& given, const Options& options, const StepShape& shape,
                  const Techniques& techniques) {
    PlanFor what = asked(given, options, shape, techniques);
    const Plan plan = plan_of(techniques, options, what.gpus);
    what.sequences = plan.sequences();
    for (const std::string& reason : {what.refused(plan), why_not(what, plan)})
        if (!reason.empty()) user_error("--explain-layout: {}", reason);
    Planner planner(what);
    const Ranked r = planner.one(plan);
    Report report("09_5d_parallel", options, shape, 0);
    print_for(what, options);
    print(describe(plan));
    const StepCost& c = r.cost;
    print("\na step, by formula              ms      %");
    const auto line = [&](const char* words, double seconds) {
        if (seconds > 0)
            print(fmt::format("  {:<24} {:>9.2f} {:>6.1f}", words, 1e3 * seconds,
                              100 * seconds / r.seconds));
    };
    line("compute", c.compute), line("tensor parallelism", c.tensor);
    line("context parallelism", c.context), line("experts' rows", c.experts);
    line("the slowest stage", c.uneven), line("bubble", c.bubble);
    line("messages between stages", c.messages), line("gradients and weights", c.data);
    line("optimizer", c.optimizer), line("all", r.seconds);
    print(fmt::format("  {:.0f} tokens/s per GPU, MFU {:.1f} %",
                      double(plan.sequences() * shape.seq) / r.seconds / double(plan.ranks()),
                      100 * planner.mfu(r)));
    print("\nmemory by rank in the pipeline, GB");
    print("   rank layers  parameters  gradients  optimizer  activations  buffers    all");
    for (int pp_rank = 0; pp_rank < plan.pp; ++pp_rank) {
        if (plan.pp > 8 && pp_rank > 2 && pp_rank < plan.pp - 2 && pp_rank != r.memory.pp_rank)
            continue;
        const MemoryModel::RankMemory held = planner.memory().of(plan, pp_rank);
        const MemoryEstimate& m = held.memory;
        int64_t layers = 0;
        for (int chunk = 0; chunk < plan.chunks; ++chunk) {
            const Stage& stage = planner.memory().stages(plan)[size_t(chunk * plan.pp + pp_rank)];
            layers += stage.last_layer - stage.first_layer;
        }
        const auto gb = [](int64_t bytes) { return double(bytes) / 1e9; };
        print(fmt::format(
            "  {:>5} {:>6} {:>11.2f} {:>10.2f} {:>10.2f} {:>12.2f} {:>8.2f} {:>6.2f}{}", pp_rank,
            layers, gb(m.parameters), gb(m.gradients), gb(m.optimizer), gb(m.peak_activations),
            gb(m.peak_communication), gb(held.most), pp_rank == r.memory.pp_rank ? "  most" : ""));
    }
    print(fmt::format("  of {:.1f} GB for tensors: it {}; the process holds {:.2f} GB besides",
                      double(what.limit()) / 1e9,
                      r.memory.most <= what.limit() ? "fits" : "does not fit",
                      what.hardware.process / 1e9));
    report.row(row_of(planner, r, 1));
    report.finish();
    return true;
}

}  // namespace

int64_t tokens_of(const std::string& text) {
    size_t read = 0;
    double number = -1;
    try {
        number = std::stod(text, &read);
    } catch (const std::exception&) {  // not a number
    }
    const std::string unit = number >= 0 ? text.substr(read) : "?";
    const double times = unit.empty()  ? 1
                         : unit == "K" ? 1024
                         : unit == "M" ? 1048576
                         : unit == "B" ? 1073741824
                                       : -1;
    if (times < 0 || !(number * times >= 1) || number * times > 1e15)
        user_error("--batch-tokens {}: give a number of tokens, like 4M (K, M, B: times 1024)",
                   text);
    return int64_t(number * times);
}

Rehearsed rehearsed_rank(const std::string& text) {
    Rehearsed of{-1, 0};
    char end = 0;
    if (std::sscanf(text.c_str(), "%d/%d%c", &of.rank, &of.ranks, &end) != 2 || of.ranks < 1 ||
        of.ranks > 1 << 24 || of.rank < 0 || of.rank >= of.ranks)
        user_error("--rehearse {}: give a rank and the number of ranks, like 17/6144", text);
    return of;
}

void imagine_hardware(const PlannerOptions& given, const Options& options, const Axes& axes) {
    imagine_links([links = asked_hardware(given, options).links(), axes](
                      const std::string& group, Collective kind, double bytes, int ranks) {
        return links.call(kind, bytes, spread_of(group, ranks, axes, links.nodes));
    });
}

bool run_planner(const PlannerOptions& planner, const Options& options, const StepShape& shape,
                 const Techniques& techniques) {
    if (planner.published) return print_published(options, shape);
    if (planner.playbook) {
        Report report("09_5d_parallel", options, shape, 0);
        print_playbook_tables(report, options.svg);
        if (draws(options.svg)) playbook::draw_at_scale(options.svg);
        report.finish();
        return true;
    }
    if (planner.plan) return print_plan(planner, options, shape, techniques);
    return print_layout(planner, options, shape, techniques);
}

}  // namespace ultrascale::five_d
