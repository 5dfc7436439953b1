// --simulate p=64,m=512,v=4: what every schedule would cost on any number of ranks. Only the
// simulator runs. Its figures stand beside the closed formulas (formulas.h), and are followed by
// those that the playbook's figures of pipelines show.
#pragma once

#include <charconv>
#include <cmath>

#include "formulas.h"
#include "lab/report/report.h"
#include "scale_pictures.h"

namespace ultrascale::pipeline {

// The sizes that --simulate asks for. Times are in any unit; F, B and W are those of a rank's whole
// share.
struct Scale {
    int ranks = 64, micro_batches = 512;
    ScheduleOptions options{.chunks = 4, .group = 0};
    StageCost cost{1, 1, 1};
    double hop = 0;
    std::string own = "";      // "file:PATH": a schedule of your own, as an additional row
    double message_bytes = 0;  // of one micro-batch's activations between stages; 0: not known

    // Reads "p=64,m=512,v=4", each with its default, and N, F, B, W and hop. Throws UserError if it
    // cannot.
    static Scale parse(const std::string& text) {
        Scale scale;
        double p = scale.ranks, m = scale.micro_batches, v = scale.options.chunks, n = 0;
        const std::vector<std::pair<std::string_view, double*>> known = {
            {"p", &p},
            {"m", &m},
            {"v", &v},
            {"N", &n},
            {"F", &scale.cost.forward},
            {"B", &scale.cost.backward_input},
            {"W", &scale.cost.backward_weight},
            {"hop", &scale.hop}};
        for (size_t at = 0; at <= text.size();) {
            const size_t end = std::min(text.find(',', at), text.size());
            const std::string_view pair = std::string_view(text).substr(at, end - at);
            const size_t equals = std::min(pair.find('='), pair.size());
            const auto its = std::ranges::find(known, pair.substr(0, equals),
                                               &std::pair<std::string_view, double*>::first);
            const std::string_view digits = pair.substr(std::min(equals + 1, pair.size()));
            if (its == known.end() ||
                std::from_chars(digits.data(), digits.data() + digits.size(), *its->second) !=
                    std::from_chars_result{digits.data() + digits.size(), std::errc()})
                user_error(
                    "--simulate {}: \"{}\" is not p, m, v, N, F, B, W or hop with a number; "
                    "write p=64,m=512,v=4",
                    text, pair);
            at = end + 1;
        }
        const auto whole = [&](std::string_view name, double value, double least, double most) {
            if (!(value >= least && value <= most && value == std::floor(value)))
                user_error("--simulate {}: {} = {} is not a whole number from {} to {}", text, name,
                           value, least, most);
            return int(value);
        };
        scale.ranks = whole("p", p, 1, 1024);
        scale.micro_batches = whole("m", m, 1, 65536);
        scale.options = {.chunks = whole("v", v, 2, most_chunks),
                         .group = whole("N", n, 0, scale.micro_batches)};
        if (double(scale.ranks) * scale.micro_batches * scale.options.chunks > 4e6)
            user_error("--simulate {}: p m v is more than 4 million, which takes too long", text);
        for (const double time :
             {scale.cost.forward, scale.cost.backward_input, scale.cost.backward_weight, scale.hop})
            if (!(time >= 0 && time < 1e12) || scale.cost.forward == 0)
                user_error("--simulate {}: F must be above 0, and B, W and hop not below", text);
        return scale;
    }

    double work() const {
        return micro_batches * (cost.forward + cost.backward_input + cost.backward_weight);
    }
};

// How many messages the rank that sends most sends for each micro-batch: outputs or gradients whose
// next stage is on another rank.
inline double messages_a_micro_batch(const Schedule& schedule) {
    const Dependencies needs(schedule);
    std::vector<double> sent(size_t(schedule.ranks()), 0.0);
    for (int rank = 0; rank < schedule.ranks(); ++rank)
        for (const Action& action : schedule.actions[size_t(rank)])
            if (const auto input = needs.input(rank, action); input && input->rank != rank)
                sent[size_t(input->rank)] += 1.0 / schedule.micro_batches;
    return *std::ranges::max_element(sent);
}

// A schedule's row, simulated beside its formulas.
struct ScaleRow {
    std::string name;
    std::string refused = "";  // why there is no schedule
    Formulas formula = {};
    double seconds = 0, step_bubble = 0, own_bubble = 0, peak = 0;
    double messages = 0;  // a micro-batch
    bool as_formula() const {
        const auto same = [&](const std::optional<double>& exact, double simulated) {
            return !exact || std::abs(*exact - simulated) <= 1e-9 * std::max(1.0, seconds);
        };
        return same(formula.step_bubble, step_bubble) && same(formula.own_bubble, own_bubble) &&
               same(formula.peak, peak);
    }
};

inline ScaleRow simulate_row(const std::string& name, const Schedule& schedule,
                             const Scale& scale) {
    const Simulation result = simulate(schedule, Costs::even(schedule, scale.cost, scale.hop));
    return {.name = name,
            .seconds = result.seconds,
            .step_bubble = result.mean_step_bubble(),
            .own_bubble = result.worst_own_bubble(),
            .peak = result.peak(),
            .messages = messages_a_micro_batch(schedule)};
}
inline ScaleRow simulate_row(const std::string& name, const Scale& scale) {
    const ScheduleKind& kind = schedule_kind(name);
    ScheduleOptions options = scale.options;
    if (!kind.takes_chunks) options.chunks = 0;
    if (!kind.takes_group) options.group = 0;
    Schedule schedule;
    try {
        schedule = make_schedule(name, scale.ranks, scale.micro_batches, options);
    } catch (const UserError& refused) {
        return {.name = name, .refused = refused.what()};
    }
    ScaleRow row = simulate_row(name, schedule, scale);
    if (options.group == 0) options.group = scale.ranks;
    if (scale.hop == 0)  // the formulas leave it out
        row.formula = formulas(name, scale.ranks, scale.micro_batches, options, scale.cost);
    return row;
}

// Throws UserError if your own schedule cannot run.
inline std::vector<ScaleRow> simulate_all(const Scale& scale) {
    std::vector<ScaleRow> rows;
    for (const std::string& name : schedule_names()) rows.push_back(simulate_row(name, scale));
    if (!scale.own.empty())
        rows.push_back(simulate_row(
            "your file", make_schedule(scale.own, scale.ranks, scale.micro_batches), scale));
    return rows;
}

// The share of a step for which a rank works, in 1F1B, or in interleaved 1F1B with v > 1.
inline double efficiency(int ranks, int micro_batches, int chunks) {
    const Schedule schedule = chunks == 1 ? one_f_one_b(ranks, micro_batches)
                                          : interleaved(ranks, micro_batches, chunks, ranks);
    const Simulation result = simulate(schedule, Costs::even(schedule, {1, 1, 1}));
    return result.work[0] / result.seconds;
}

namespace scale_tables {

// A figure and its formula, with "=" between them if they agree.
inline std::string beside(double simulated, const std::optional<double>& formula) {
    if (!formula) return fmt::format("{:>9.2f} {:<10}", simulated, "");
    const bool same = std::abs(simulated - *formula) <= 1e-9 * std::max(1.0, simulated);
    return fmt::format("{:>9.2f} {:<10}", simulated,
                       fmt::format("{} {:.2f}", same ? "=" : "not", *formula));
}

inline bool print_schedules(const Scale& scale, const std::vector<ScaleRow>& rows) {
    const auto [f, b, w] = scale.cost;
    print(
        fmt::format("{} ranks, {} micro-batches, {} chunks a rank where it can be chosen; F {} B "
                    "{} W {} hop {}",
                    scale.ranks, scale.micro_batches, scale.options.chunks, f, b, w, scale.hop));
    print(fmt::format("a rank works for {:.2f}; bubbles and activations as simulated, = formula",
                      scale.work()));
    print("");
    print(
        "  schedule            step   %      bubble of the step  worst own bubble    most "
        "activations    sent");
    bool ok = true;
    for (const ScaleRow& row : rows) {
        if (!row.refused.empty()) continue;
        print(fmt::format("  {:<13} {:>10.2f} {:>3.0f} {} {} {} {:>4.1f}", row.name, row.seconds,
                          100 * scale.work() / row.seconds,
                          beside(row.step_bubble, row.formula.step_bubble),
                          beside(row.own_bubble, row.formula.own_bubble),
                          beside(row.peak, row.formula.peak), row.messages));
        ok = row.as_formula() && ok;
    }
    print("");
    print(
        "  %: the part of the step in which a rank works; activations: of so many micro-batches;");
    print(fmt::format("  sent: tensors of a micro-batch, by the rank that sends most{}",
                      scale.message_bytes > 0
                          ? fmt::format(", {} each", format_bytes(scale.message_bytes))
                          : ""));
    for (const ScaleRow& row : rows)
        if (!row.refused.empty()) print("  " + row.refused);
    return ok;
}

// The playbook's figures, as bubbles only: the originals show throughput measured on GPUs.
inline bool print_playbook() {
    print("");
    print("1F1B: the part of a step in which a rank works, simulated = m / (m + p-1)");
    print("      p    m = 7                m = 32");
    bool ok = true;
    const auto share = [&](int p, int m) {
        const double simulated = efficiency(p, m, 1), formula = double(m) / (m + p - 1);
        ok = std::abs(simulated - formula) < 1e-9 && ok;
        return fmt::format("{:>7.1f} % {} {:>5.1f} %", 100 * simulated,
                           std::abs(simulated - formula) < 1e-9 ? "=" : "not", 100 * formula);
    };
    for (const int p : scale_ranks)
        print(fmt::format("  {:>5} {} {}", p, share(p, few_micro_batches),
                          share(p, many_micro_batches)));
    print(
        fmt::format("from 8 to 16 ranks with m = 32: {:+.1f} %. The playbook measured -14 %, in "
                    "steps that are",
                    100 * (efficiency(16, 32, 1) / efficiency(8, 32, 1) - 1)));
    print("not only pipeline.");
    print("");
    print("interleaved, 8 ranks: bubble / work, simulated = (p-1) / (v m)");
    std::string head = "      v";
    for (const int m : interleaved_micro_batches)
        head += fmt::format("{:>18}", fmt::format("m = {}", m));
    print(head);
    for (const int v : interleaved_chunks) {
        std::string line = fmt::format("  {:>5}", v);
        for (const int m : interleaved_micro_batches) {
            const double simulated = 1 / efficiency(8, m, v) - 1, formula = 7.0 / (v * m);
            const bool same = std::abs(simulated - formula) < 1e-9;
            ok = same && ok;
            line += fmt::format("   {:.4f} {} {:.4f}", simulated, same ? "=" : "/", formula);
        }
        print(line);
    }
    return ok;
}

}  // namespace scale_tables

// Prints the tables, and draws schedules.svg and scaling.svg (--svg). Returns whether every figure
// agrees with its formula.
inline bool simulate_at_scale(const Scale& scale, const std::string& svg_directory) {
    const std::vector<ScaleRow> rows = simulate_all(scale);
    bool ok = scale_tables::print_schedules(scale, rows);
    ok = scale_tables::print_playbook() && ok;
    if (!svg_directory.empty()) {
        std::vector<ScheduleBar> bars;
        for (const ScaleRow& row : rows)
            if (row.refused.empty() && row.name != "naive")  // which would not fit into the chart
                bars.push_back({row.name, row.step_bubble / scale.work(),
                                row.own_bubble / scale.work(), row.peak});
        draw_schedules(svg_directory, bars, scale.ranks, scale.micro_batches);
        draw_scaling(svg_directory, efficiency);
    }
    return ok;
}

}  // namespace ultrascale::pipeline
