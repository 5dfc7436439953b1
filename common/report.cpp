#include "report.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "device.h"
#include "file.h"
#include "threads.h"
#include "trace.h"
#include "training.h"

namespace ultrascale {

using Json = nlohmann::ordered_json;

struct Report::Impl {
    std::string chapter;
    Options options;
    StepShape shape;
    int64_t total_steps;
    Json summary = Json::object();
    std::string json_lines;
    std::vector<StepRecord> records;
    double first_step_end = 0;
    int64_t timed_from = 0;  // so many steps were warm-up, in which so much was communicated
    CommunicationCounts in_warmup{};
    std::optional<double> best_validation;
    int64_t best_validation_step = 0;
    bool rank0 = Communicator::world().rank() == 0, terminal = isatty(STDOUT_FILENO);

    static int64_t warmup(int64_t steps) { return std::min<int64_t>(3, steps - 1); }
    // The median over the steps after warm-up of f(record).
    template <class F>
    double median(F f) const {
        std::vector<double> values;
        for (size_t i = size_t(warmup(int64_t(records.size()))); i < records.size(); ++i) values.push_back(f(records[i]));
        return ultrascale::median(std::move(values));
    }
};

void print(const std::string& line) {
    if (Communicator::world().rank() == 0) fmt::print("{}\n", line);
}

Report::Report(std::string chapter, const Options& options, const StepShape& shape, int64_t total_steps)
    : impl_(new Impl{.chapter = std::move(chapter), .options = options, .shape = shape, .total_steps = total_steps}) {
    if (options.trace != "" || options.profile) trace_record(true);
    if (options.trace != "") memory_timeline_record(true);
}

Report::~Report() = default;

void Report::configuration(int64_t global_batch, const std::string& data_description, int64_t replicas) {
    const LlamaConfig& c = impl_->shape.config;
    const Options& o = impl_->options;
    const int64_t seq = impl_->shape.seq;
    print(fmt::format("{}: {} on {}", impl_->chapter, o.model_name(), device_description()));
    print(fmt::format("  model   {:.3f} M parameters: L {} h {} H {} K {} D {} F {} V {}{}", double(parameter_count(c)) / 1e6, c.layers,
                      c.hidden, c.heads, c.kv_heads, c.head_dim, c.ffn, c.vocab, c.tied ? ", tied head" : ""));
    const bool each_rank = replicas == 0;
    if (each_rank) replicas = Communicator::world().size();
    print(fmt::format("  batch   {} sequences ({} per micro-batch x {} accumulated x {} {}) of {} tokens = {} tokens a step", global_batch,
                      o.micro_batch, global_batch / o.micro_batch / replicas, replicas, each_rank ? "ranks" : "replicas", seq,
                      global_batch * seq));
    print(fmt::format("  data    {}", data_description));
    const char* recompute[] = {"none", "selective", "full"};
    print(fmt::format("  dtype   {}, gradients {}; recomputation {}; AdamW lr {} {}, weight decay {}, clip {}", dtype_name(o.dtype),
                      dtype_name(o.grad_dtype()), recompute[int(o.recompute)], o.optimizer.lr, o.optimizer.cosine ? "cosine" : "constant",
                      o.optimizer.weight_decay, o.optimizer.clip));
    impl_->summary["configuration"] = {{"chapter", impl_->chapter},
                                       {"model", o.model_name()},
                                       {"parameters", parameter_count(c)},
                                       {"global_batch", global_batch},
                                       {"seq", seq},
                                       {"micro_batch", o.micro_batch},
                                       {"dtype", dtype_name(o.dtype)},
                                       {"ranks", Communicator::world().size()}};
}

void Report::step(const StepRecord& r) {
    Impl& self = *impl_;
    self.records.push_back(r);
    if (self.records.size() == 1) self.first_step_end = now_seconds();
    if (int64_t(self.records.size()) == self.total_steps)
        trace_record(false);  // what follows belongs to no step
    const double rate = double(r.tokens) / r.seconds;
    // A validation's communication would be among it.
    const int64_t done = int64_t(self.records.size()), left = self.total_steps - done;
    if (done == Impl::warmup(self.total_steps) && !r.val_loss && !self.best_validation)
        self.timed_from = done, self.in_warmup = communication_counts();
    if (!self.rank0) return;
    if (!self.options.json.empty()) {
        Json line = {{"step", r.step},           {"loss", r.loss}, {"grad_norm", r.grad_norm}, {"lr", r.lr}, {"step_ms", r.seconds * 1e3},
                     {"tokens_per_second", rate}};
        if (r.val_loss) line["val_loss"] = *r.val_loss;
        self.json_lines += line.dump() + "\n";
    }
    const double remaining = self.median([](const StepRecord& s) { return s.seconds; }) * double(left);
    const std::string line = fmt::format("step {:>5}   loss {:.4f}   grad norm {:.3f}   lr {:.2e}   {:>8.0f} tokens/s   {:.0f} s left",
                                         r.step, r.loss, r.grad_norm, r.lr, rate, remaining);
    if (self.terminal)
        fmt::print("\r{}\033[K{}", line, left == 0 || r.val_loss || self.options.explain ? "\n" : "");
    else
        fmt::print("{}\n", line);
    if (r.val_loss) validation(r.step, *r.val_loss);
    std::fflush(stdout);
}

void Report::validation(int64_t step, double loss) {
    Impl& self = *impl_;
    if (!self.best_validation || loss < *self.best_validation) self.best_validation = loss, self.best_validation_step = step;
    print(fmt::format("validation at step {}: loss {:.4f} (best {:.4f} at step {})", step, loss, *self.best_validation,
                      self.best_validation_step));
    self.summary["validation"] = {{"best", *self.best_validation}, {"best_step", self.best_validation_step}, {"last", loss}};
}

bool as_predicted_everywhere(bool here) {
    const std::vector<std::string> wrong = Communicator::world().gather_strings(here ? "" : "wrong");
    for (size_t rank = 1; rank < wrong.size(); ++rank)
        if (!wrong[rank].empty()) print(fmt::format("  on rank {}: not as predicted   MISMATCH", rank));
    return std::ranges::all_of(wrong, &std::string::empty);
}

bool Report::memory(const MemoryEstimate& predicted) {
    const MemoryByCategory now = memory_now(), peak = memory_peak_by_category();
    bool ok = true;
    Json json = Json::object();
    print("\nmemory per rank             predicted       measured");
    const auto row = [&](const char* name, int64_t want, int64_t got, double tolerance) {
        const double off = want > 0 ? double(got - want) / double(want) : got == 0 ? 0 : 1;
        const bool fits = std::abs(off) <= tolerance;
        ok = ok && fits;
        print(fmt::format("  {:<20} {:>14} {:>14}   {}{}", name, format_bytes(double(want)), format_bytes(double(got)),
                          got == want ? "equal" : fmt::format("{:+.2f} %", 100 * off), fits ? "" : "   MISMATCH"));
        json[name] = {{"predicted", want}, {"measured", got}};
    };
    row("parameters", predicted.parameters, now[int(Memory::parameter)], 0);
    row("gradients", predicted.gradients, now[int(Memory::gradient)], 0);
    row("optimizer", predicted.optimizer, now[int(Memory::optimizer)], 0);
    row("activations, peak", predicted.peak_activations, peak[int(Memory::activation)], 0.01);
    row("communication, peak", predicted.peak_communication, peak[int(Memory::communication)], 0.01);
    print(fmt::format("  {:<20} {:>14} {:>14}", "workspace, peak", "-", format_bytes(double(peak[int(Memory::workspace)]))));
    json["workspace"] = {{"measured", peak[int(Memory::workspace)]}};
    if (predicted.host > 0) row("on the host", predicted.host, peak[int(Memory::host)], 0);
    print(fmt::format("  {:<20} {:>14} {:>14}   of {}", "all, at the peak", format_bytes(double(predicted.total())),
                      format_bytes(double(total(memory_at_peak()))), format_bytes(double(memory_limit()))));
    json["peak"] = {{"predicted", predicted.total()}, {"measured", total(memory_at_peak())}};
    if (device_is_gpu()) {  // the playbook's two extra occupants of a GPU
        const DeviceOverhead extra = device_overhead();
        print(fmt::format("  {:<20} {:>14} {:>14}   kernels, cuBLAS and NCCL, of all processes here", "CUDA context", "-",
                          format_bytes(double(extra.context))));
        print(fmt::format("  {:<20} {:>14} {:>14}   reserved beyond the most that tensors used", "fragmentation", "-",
                          format_bytes(double(extra.fragmentation))));
        json["context"] = {{"measured", extra.context}};
        json["fragmentation"] = {{"measured", extra.fragmentation}};
    }
    impl_->summary["memory"] = json;
    return as_predicted_everywhere(ok);
}

bool counted_as_predicted(const PredictedCommunication& of_step, int64_t steps) {
    const CommunicationCounts counts = communication_counts();
    for (size_t k = 0; k < counts.size(); ++k)
        if (counts[k].calls != of_step.kinds[k].calls * steps || counts[k].bytes != of_step.kinds[k].bytes * steps) return false;
    return true;
}

bool Report::communication(const PredictedCommunication& predicted, int64_t steps, const CommunicationCounts& not_of_steps) {
    PredictedCommunication of_run = predicted;
    for (auto& kind : of_run.kinds) kind.calls *= steps, kind.bytes *= steps;
    return communication_of_run(of_run, steps, not_of_steps);
}

bool Report::communication_of_run(const PredictedCommunication& predicted, int64_t steps, const CommunicationCounts& not_of_steps) {
    const CommunicationCounts counts = difference(communication_counts(), not_of_steps);
    bool ok = true, any = false;
    Json json = Json::object();
    for (int k = 0; k < collective_kinds; ++k) {
        const auto want = predicted.kinds[size_t(k)];
        const CommunicationCount& got = counts[size_t(k)];
        if (want.calls == 0 && got.calls == 0) continue;
        if (!any) print("\ncommunication per step     predicted calls  bytes           counted calls  bytes       time ms  exposed ms");
        any = true;
        const bool equal = got.calls == want.calls && got.bytes == want.bytes;
        ok = ok && equal;
        const double n = double(steps), timed = double(steps - impl_->timed_from);
        const CommunicationCount& warmup = impl_->in_warmup[size_t(k)];
        const double seconds = (got.seconds - warmup.seconds) / timed, exposed = (got.exposed - warmup.exposed) / timed;
        print(fmt::format("  {:<22} {:>17.6g} {:>12} {:>17.6g} {:>12} {:>9.3f} {:>11.3f}   {}", collective_names[size_t(k)],
                          double(want.calls) / n, format_bytes(double(want.bytes) / n), double(got.calls) / n,
                          format_bytes(double(got.bytes) / n), seconds * 1e3, exposed * 1e3, equal ? "equal" : "MISMATCH"));
        json[collective_names[size_t(k)]] = {{"calls", double(got.calls) / n},
                                             {"bytes", double(got.bytes) / n},
                                             {"predicted_calls", double(want.calls) / n},
                                             {"predicted_bytes", double(want.bytes) / n},
                                             {"seconds", seconds},
                                             {"exposed_seconds", exposed}};
    }
    if (!any) print("\ncommunication: none");
    impl_->summary["communication"] = json;
    return as_predicted_everywhere(ok);
}

void Report::throughput() {
    const Impl& self = *impl_;
    if (self.records.empty()) return;
    memory_timeline_record(false);
    const double devices = double(Communicator::world().size());
    const double rate = self.median([](const StepRecord& r) { return double(r.tokens) / r.seconds; }) / devices;
    const double seconds = self.median([](const StepRecord& r) { return r.seconds; });
    const double flops = model_flops_per_token(self.shape.config, self.shape.seq) * rate;
    const double with_recomputation = flops + recomputed_flops_per_token(self.shape) * rate;
    const DevicePeak peak =
        self.options.peak_tflops > 0 ? DevicePeak{self.options.peak_tflops * 1e12, "given"} : device_peak(self.options.dtype);
    print(fmt::format("\nspeed per device (median step {:.1f} ms)", seconds * 1e3));
    print(fmt::format("  {:.0f} tokens/s   {:.4g} TFLOP/s   MFU {:.1f} %   HFU {:.1f} %   of {:.4g} TFLOP/s ({})", rate, flops / 1e12,
                      100 * flops / peak.flops, 100 * with_recomputation / peak.flops, peak.flops / 1e12, peak.source));
    impl_->summary["speed"] = {{"tokens_per_second", rate},
                               {"step_ms", seconds * 1e3},
                               {"tflops", flops / 1e12},
                               {"mfu", flops / peak.flops},
                               {"hfu", with_recomputation / peak.flops},
                               {"peak_tflops", peak.flops / 1e12}};
}

void Report::value(const std::string& section, const std::string& key, double number) { impl_->summary[section][key] = number; }
void Report::text(const std::string& section, const std::string& key, const std::string& words) { impl_->summary[section][key] = words; }

void Report::finish() {
    Impl& self = *impl_;
    if (self.options.profile && !self.records.empty()) {
        // The first step touches its memory for the first time, which costs more than the operations do.
        const bool several = self.records.size() > 1;
        print(fmt::format("\nmost expensive operations{}", several ? " after the first step" : ""));
        print(profile_table(several ? self.first_step_end : 0, double(self.records.size()) - (several ? 1 : 0)));
    }
    if (!self.options.trace.empty()) {
        trace_write(self.options.trace);
        print(fmt::format("\ntrace written to {} (open it in https://ui.perfetto.dev)", self.options.trace));
    }
    if (self.rank0 && !self.options.json.empty())
        write_file(self.options.json, self.json_lines + Json{{"summary", self.summary}}.dump() + "\n");
}

}  // namespace ultrascale
