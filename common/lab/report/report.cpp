// What a report says before and while a run trains, and how it ends.
#include <cmath>
#include <cstdio>
#include <sstream>

#include "comm/nodes.h"
#include "core/device.h"
#include "lab/options/option_list.h"
#include "report_impl.h"

namespace ultrascale {

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
    if (!c.gpt && !c.latent) formulas(settings_of_run(impl_->shape, o));
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
