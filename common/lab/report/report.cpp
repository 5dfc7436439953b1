#include "report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <sstream>

#include "comm/nodes.h"
#include "core/device.h"
#include "core/threads.h"
#include "core/trace.h"
#include "lab/options/option_list.h"
#include "lab/page/page.h"
#include "lab/page/trace_file.h"
#include "median_seconds.h"
#include "rank_times.h"
#include "report_tables.h"
#include "settings_of_run.h"

namespace ultrascale {

struct Report::Impl {
    std::string chapter;
    Options options;
    StepShape shape;
    int64_t total_steps;
    JsonLines json{options.json, !options.html.empty()};
    Json summary = Json::object();
    std::vector<StepRecord> records;
    std::vector<RankStep> rank_steps;
    int64_t group_of_times = 0;
    double first_step_end = 0;
    int64_t timed_from = 0;  // the steps before it are warm-up, with this communication
    CommunicationCounts in_warmup{};
    std::optional<double> best_validation;
    int64_t best_validation_step = 0;
    int64_t checkpoint_copies = 0;  // predicted, in bytes

    std::optional<MemorySettings> formulas;

    double page_since = 0, page_until = 0;  // what --html's timeline shows, in seconds

    // --html records only two steps: all steps of a long run would be too much for a page.
    void record_for_page(bool on) {
        if (options.html.empty() || on == (page_since > 0 && page_until == 0)) return;
        (on ? page_since : page_until) = now_seconds();
        if (options.trace.empty()) memory_timeline_record(on);
        if (options.trace.empty() && !options.profile) trace_record(on);
    }
    static int64_t warmup(int64_t steps) { return std::min<int64_t>(3, steps - 1); }
    // The median over the steps after warm-up of f(record).
    template <class F>
    double median(F f) const {
        std::vector<double> values;
        for (size_t i = size_t(warmup(int64_t(records.size()))); i < records.size(); ++i)
            values.push_back(f(records[i]));
        return ultrascale::median(std::move(values));
    }
};

void print(const std::string& line) {
    if (Communicator::world().rank() == 0) fmt::print("{}\n", line);
}

static Json json_of(const JsonFields& fields) {
    Json object = Json::object();
    for (const auto& [name, value] : fields)
        std::visit([&](const auto& v) { object[name] = v; }, value);
    return object;
}

Report::Report(std::string chapter, const Options& options, const StepShape& shape,
               int64_t total_steps)
    : impl_(new Impl{.chapter = std::move(chapter),
                     .options = options,
                     .shape = shape,
                     .total_steps = total_steps}) {
    Json& json = impl_->summary["configuration"];
    json["chapter"] = impl_->chapter, json["ranks"] = Communicator::world().size();
    json["layout"] = {{"dp", Communicator::world().size()}};
    json["options"] = json_of(options.values);
    if (options.trace != "" || options.profile) trace_record(true);
    if (options.trace != "") memory_timeline_record(true);
    if (total_steps == 1) impl_->record_for_page(true);  // there is no step to warm up
}

Report::~Report() = default;

bool Report::full() const { return impl_->options.full_report; }

// "4: n1 (ranks 0 to 1), n2 (ranks 2 to 3), ..."
static std::string describe_hosts(const Nodes& hosts) {
    constexpr size_t shown = 8;
    std::string words = fmt::format("{}: ", hosts.names.size());
    for (size_t i = 0; i < std::min(shown, hosts.names.size()); ++i) {
        const auto first = std::ranges::find(hosts.placed, int(i)) - hosts.placed.begin(),
                   count = std::ranges::count(hosts.placed, int(i));
        words += fmt::format("{}{} ({})", i > 0 ? ", " : "", hosts.names[i],
                             count == 1 ? fmt::format("rank {}", first)
                                        : fmt::format("ranks {} to {}", first, first + count - 1));
    }
    return words + (hosts.names.size() > shown ? ", ..." : "");
}

void Report::formulas(const MemorySettings& settings) { impl_->formulas = settings; }

void Report::configuration(int64_t global_batch, const std::string& data_description,
                           int64_t replicas) {
    const LlamaConfig& c = impl_->shape.config;
    const Options& o = impl_->options;
    const int64_t seq = impl_->shape.seq, ranks = Communicator::world().size();
    print(fmt::format("{}: {} on {}", impl_->chapter, o.model_name(), device_description()));
    print(fmt::format("  model   {:.3f} M parameters: L {} h {} H {} K {} D {} F {} V {}{}",
                      double(parameter_count(c)) / 1e6, c.layers, c.hidden, c.heads, c.kv_heads,
                      c.head_dim, c.ffn, c.vocab, c.tied ? ", tied head" : ""));
    if (const LatentConfig& l = c.latent)
        print(fmt::format(
            "          latent attention: Rq {} Rkv {}, a head of {} + {} with position, "
            "values of {}",
            l.q_rank, l.kv_rank, l.nope_dim, l.rope_dim, l.v_dim));
    const std::string copies =
        replicas == 0 ? format_count(ranks, "rank") : format_count(replicas, "replica");
    if (replicas == 0) replicas = ranks;
    print(fmt::format(
        "  batch   {} x {} tokens = {:.0f} a step: micro-batch {} x {} accumulated x {}",
        format_count(global_batch, "sequence"), seq, double(global_batch) * double(seq),
        o.micro_batch, global_batch / o.micro_batch / replicas, copies));
    const Nodes& hosts = machines();
    if (hosts.names.size() > 1) print(wrapped("  hosts   " + describe_hosts(hosts), 10));
    if (!data_description.empty()) print(fmt::format("  data    {}", data_description));
    const Recompute& recompute = impl_->shape.model.recompute;
    print(fmt::format("  dtype   {}, gradients {}; recomputation {}", dtype_name(o.dtype),
                      dtype_name(o.grad_dtype()), recompute.text()));
    print(fmt::format("  update  {}, lr {} {}, weight decay {}, clip {}",
                      o.optimizer.muon ? "Muon for matrices, else AdamW" : "AdamW", o.optimizer.lr,
                      o.optimizer.cosine ? "cosine" : "constant", o.optimizer.weight_decay,
                      o.optimizer.clip));
    formulas(settings_of_run(impl_->shape, o));
    Json& json = impl_->summary["configuration"];
    json["model"] = o.model_name(), json["parameters"] = parameter_count(c);
    json["global_batch"] = global_batch, json["seq"] = seq, json["micro_batch"] = o.micro_batch;
    json["dtype"] = dtype_name(o.dtype), json["learning_rate"] = o.optimizer.lr,
    json["seed"] = o.seed;
    for (const auto& [name, kind] :
         {std::pair("full", Recompute::full), {"selective", Recompute::selective}})  // layers
        json["recompute"][name] = recompute.count(kind, c.layers);
    for (const int node : hosts.placed) json["hosts"].push_back(hosts.names[size_t(node)]);
}

void Report::technique(const std::string& label, const std::string& words,
                       const JsonFields& layout) {
    std::istringstream lines(fmt::format("  {:<7} {}", label, words));
    for (std::string line; std::getline(lines, line);) print(wrapped(line, 10));
    Json& json = impl_->summary["configuration"];
    json["technique"] = words, json["layout"] = json_of(layout);
    if (!impl_->formulas) return;
    for (const auto& [axis, ranks] : layout)
        for (const char* known : {"dp", "tp", "cp", "ep", "pp"})
            if (const auto* size = std::get_if<int64_t>(&ranks); size && axis == known)
                impl_->formulas->set(axis, double(*size));
}

void Report::step(const StepRecord& r) {
    Impl& self = *impl_;
    self.records.push_back(r);
    self.rank_steps.push_back({r.step, now_seconds(), total(memory_now())});
    if (self.records.size() == 1) self.first_step_end = now_seconds();
    const int64_t warm = Impl::warmup(self.total_steps), number = int64_t(self.records.size());
    if (number == warm) self.record_for_page(true);
    if (number == warm + page_steps || number == self.total_steps) self.record_for_page(false);
    if (number == self.total_steps) trace_record(false);  // the following work belongs to no step
    const double rate = double(r.tokens) / r.seconds;
    // Not after a validation, because its communication would be included.
    const int64_t done = int64_t(self.records.size()), left = self.total_steps - done;
    if (done == Impl::warmup(self.total_steps) && !r.val_loss && !self.best_validation)
        self.timed_from = done, self.in_warmup = communication_counts();
    Json line = {{"step", r.step},
                 {"loss", r.loss},
                 {"grad_norm", r.grad_norm},
                 {"lr", r.lr},
                 {"step_ms", r.seconds * 1e3},
                 {"tokens_per_second", rate}};
    if (r.val_loss) line["val_loss"] = *r.val_loss;
    if (!r.note.empty()) line["note"] = r.note;
    self.json.write(line.dump());
    const bool finite = std::isfinite(r.loss) && std::isfinite(r.grad_norm);
    if (done == 1 || left == 0 || !finite || !r.note.empty() ||
        done % self.options.log_every == 0) {
        const double remaining =
            self.median([](const StepRecord& s) { return s.seconds; }) * double(left);
        const std::string norm =
            fmt::format(fmt::runtime(r.grad_norm < 1e6 ? "{:.3f}" : "{:.3g}"), r.grad_norm);
        print(fmt::format(
            "step {:>5}  loss {:.4f}  norm {}  lr {:.2e} {:>9.0f} tokens/s  {:.0f} s left{}",
            r.step, r.loss, norm, r.lr, rate, remaining, r.note.empty() ? "" : "  " + r.note));
    }
    if (r.val_loss) validation(r.step, *r.val_loss);
    std::fflush(stdout);
}

void Report::validation(int64_t step, double loss) {
    Impl& self = *impl_;
    if (!self.best_validation || loss < *self.best_validation)
        self.best_validation = loss, self.best_validation_step = step;
    print(fmt::format("validation at step {}: loss {:.4f} (best {:.4f} at step {})", step, loss,
                      *self.best_validation, self.best_validation_step));
    self.summary["validation"] = {
        {"best", *self.best_validation}, {"best_step", self.best_validation_step}, {"last", loss}};
}

namespace {
// For a check in which each rank describes what is wrong, or passes an empty text.
bool as_predicted_everywhere(const std::string& wrong_here) {
    const std::vector<std::string> wrong = Communicator::world().gather_strings(wrong_here);
    for (size_t rank = 1; rank < wrong.size(); ++rank)
        if (!wrong[rank].empty())
            print(fmt::format("  on {}: not as predicted{}   MISMATCH", rank_name(int(rank)),
                              wrong[rank]));
    return std::ranges::all_of(wrong, &std::string::empty);
}
}  // namespace

bool as_predicted_everywhere(bool here) {
    return as_predicted_everywhere(std::string(here ? "" : "."));
}

void Report::checkpoint_copies(int64_t bytes) { impl_->checkpoint_copies = bytes; }

bool Report::memory(const Prediction& predicted) {
    MemoryEstimate memory = predicted.memory;
    memory.checkpoint += impl_->checkpoint_copies;
    const MemoryTable table = print_memory(memory, full());
    impl_->summary["memory"] = table.by_category;
    impl_->summary["memory_by_rank"] = table.by_rank;
    return as_predicted_everywhere(table.wrong);
}

bool Report::communication(const Prediction& step_prediction, int64_t steps,
                           const CommunicationCounts& not_of_steps) {
    return communication_of_run(step_prediction.times(steps), steps, not_of_steps);
}

// Prints which of the groups that have communicated have ranks on several nodes, and returns their
// names.
static std::string print_groups_across_nodes(const Options& options, const Json& by_group) {
    const Nodes nodes = options.inter_gbps > 0 ? Nodes{.ranks = options.node_size} : machines();
    std::string across, inside;
    for (const auto& [name, kinds] : by_group.items()) {
        std::string& words = spans_nodes(name, nodes) ? across : inside;
        words += (words.empty() ? "" : ", ") + name;
    }
    const auto or_none = [](const std::string& words) { return words.empty() ? "none" : words; };
    print(wrapped(fmt::format("  groups across nodes: {}; inside one: {}", or_none(across),
                              or_none(inside))));
    return across;
}

bool Report::communication_of_run(const Prediction& run_prediction, int64_t steps,
                                  const CommunicationCounts& not_of_steps) {
    const CommunicationTable table = print_communication(
        run_prediction.communication, difference(communication_counts(), not_of_steps),
        impl_->in_warmup, steps, steps - impl_->timed_from, full());
    impl_->summary["communication"] = table.by_kind;
    impl_->summary["communication_by_group"] = table.by_group;
    if (impl_->options.node_size > 0)
        impl_->summary["groups_across_nodes"] =
            print_groups_across_nodes(impl_->options, table.by_group);
    return as_predicted_everywhere(table.as_predicted);
}

void Report::throughput(const Prediction& predicted) {
    const Impl& self = *impl_;
    if (self.records.empty()) return;
    memory_timeline_record(false);
    const double devices = double(Communicator::world().size());
    const double rate =
        self.median([](const StepRecord& r) { return double(r.tokens) / r.seconds; }) / devices;
    const double seconds = self.median([](const StepRecord& r) { return r.seconds; });
    const double flops = predicted.flops_per_token * rate;
    const double with_recomputation = flops + predicted.recomputed_flops_per_token * rate;
    const DevicePeak peak = self.options.peak_tflops > 0
                                ? DevicePeak{self.options.peak_tflops * 1e12, "given"}
                                : device_peak(self.options.dtype);
    print(fmt::format("\nspeed per device (median step {:.1f} ms)", seconds * 1e3));
    print(fmt::format("  {:.0f} tokens/s   {:.4g} TFLOP/s   MFU {:.1f} %   HFU {:.1f} %", rate,
                      flops / 1e12, 100 * flops / peak.flops,
                      100 * with_recomputation / peak.flops));
    // The usual count includes the keys that a causal mask or a window hides; the difference
    // matters if attention is most of the work.
    const double hidden = (1 - predicted.seen) * rate,
                 seen = flops - hidden * predicted.attention_flops_per_token,
                 seen_with_recomputation =
                     with_recomputation - hidden * (predicted.attention_flops_per_token +
                                                    predicted.recomputed_attention_flops_per_token);
    if (self.shape.seq > 8192 || predicted.seen < 0.5)
        print(fmt::format(
            "  counting only keys that a token sees: {:.4g} TFLOP/s   MFU {:.1f} %   "
            "HFU {:.1f} %",
            seen / 1e12, 100 * seen / peak.flops, 100 * seen_with_recomputation / peak.flops));
    print(fmt::format("  of {:.4g} TFLOP/s ({})", peak.flops / 1e12, peak.source));
    impl_->summary["speed"] = {{"tokens_per_second", rate * devices},
                               {"tokens_per_second_per_device", rate},
                               {"step_ms", seconds * 1e3},
                               {"tflops", flops / 1e12},
                               {"mfu", flops / peak.flops},
                               {"hfu", with_recomputation / peak.flops},
                               {"mfu_seen_keys", seen / peak.flops},
                               {"hfu_seen_keys", seen_with_recomputation / peak.flops},
                               {"peak_tflops", peak.flops / 1e12}};
}

void Report::estimate(const Prediction& run_prediction, int64_t steps, const std::string& advice) {
    impl_->summary.update(print_estimate(run_prediction, steps, advice));
}

void Report::value(const std::string& section, const std::string& key, double number) {
    impl_->summary[section][key] = number;
}
void Report::text(const std::string& section, const std::string& key, const std::string& words) {
    impl_->summary[section][key] = words;
}

void Report::group_of_times(int64_t group) { impl_->group_of_times = group; }
void Report::line(const std::string& object) { impl_->json.write(object, false); }
void Report::section(const std::string& name, const std::string& object) {
    impl_->summary[name] = Json::parse(object);
}

void Report::row(const JsonFields& fields) {
    impl_->json.write(Json{{"row", json_of(fields)}}.dump());
}

void Report::finish() {
    Impl& self = *impl_;
    if (!self.records.empty() && int64_t(self.records.size()) < self.total_steps)  // it ended early
        self.record_for_page(false), trace_record(false);
    if (self.options.profile && !self.records.empty()) {
        // The first step touches its memory for the first time, which takes longer than the
        // operations.
        const bool several = self.records.size() > 1;
        print(fmt::format("\nmost expensive operations{}", several ? " after the first step" : ""));
        print(profile_table(several ? self.first_step_end : 0,
                            double(self.records.size()) - (several ? 1 : 0)));
    }
    if ((self.options.profile || !self.options.trace.empty()) && !self.records.empty()) {
        const int64_t warm = Impl::warmup(int64_t(self.records.size()));
        const RankTimes times = rank_times(self.rank_steps, warm, self.group_of_times);
        for (const Json& line : times.lines) self.json.write(Json{{"by_rank", line}}.dump(), false);
        self.summary["times_by_rank"] = times.by_rank;
        if (self.options.profile && times.by_rank.size() > 1) print_rank_times(times.by_rank);
    }
    if (!self.options.trace.empty()) {
        trace_write(self.options.trace);
        print(fmt::format("\ntrace written to {} (open it in https://ui.perfetto.dev)",
                          self.options.trace));
    }
    self.json.write(Json{{"summary", self.summary}}.dump());
    if (!self.options.html.empty())
        write_page(self.options.html, self.json.kept(),
                   page_timeline(self.page_since, self.page_until),
                   self.formulas ? memory_page_data(*self.formulas) : "null");
}

}  // namespace ultrascale
