#include "report_tables.h"

#include <algorithm>
#include <set>

#include "core/device.h"
#include "report.h"

namespace ultrascale {
namespace {

// ---- memory ------------------------------------------------------------------------------------

// Peaks may be slightly off; persistent memory must be equal.
struct MemoryRow {
    const char* name;
    int64_t predicted, measured;
    bool is_peak = false;
    bool as_predicted() const {
        return is_peak ? peak_as_predicted(predicted, measured) : predicted == measured;
    }
};

std::vector<MemoryRow> memory_rows(const MemoryEstimate& want) {
    const MemoryByCategory now = memory_now(), peak = memory_peak_by_category();
    const auto of = [](const MemoryByCategory& bytes, Memory category) {
        return bytes[size_t(category)];
    };
    return {
        {"parameters", want.parameters, of(now, Memory::parameter)},
        {"gradients", want.gradients, of(now, Memory::gradient)},
        {"optimizer", want.optimizer, of(now, Memory::optimizer)},
        {"activations, peak", want.peak_activations, of(peak, Memory::activation), true},
        {"communication, peak", want.peak_communication, of(peak, Memory::communication), true}};
}

void print_line(const char* name, const std::string& predicted, int64_t measured,
                const std::string& note = "") {
    print(fmt::format("  {:<20} {:>14} {:>14}{}{}", name, predicted, format_bytes(double(measured)),
                      note.empty() ? "" : "   ", note));
}

// A row per rank with its measured memory, because e.g. the ranks of a pipeline hold different
// layers. Prints nothing if no column differs by more than the tolerance.
void print_ranks(const Json& by_rank) {
    struct Column {
        const char *category, *title;
        bool compared = true;
    };
    const Column columns[] = {{"parameters", "parameters"},
                              {"gradients", "gradients"},
                              {"optimizer", "optimizer"},
                              {"activations, peak", "activations"},
                              {"communication, peak", "buffers", false},
                              {"on the host", "on host"},
                              {"checkpoint copies", "copies", false},
                              {"peak", "at the peak", false}};
    std::vector<std::pair<const char*, std::vector<int64_t>>> shown;
    bool differ = false;
    for (const Column& column : columns) {
        std::vector<int64_t> bytes;
        for (const Json& rank : by_rank)
            bytes.push_back(rank.value(
                Json::json_pointer(fmt::format("/{}/measured", column.category)), int64_t(0)));
        const auto [least, most] = std::ranges::minmax(bytes);
        differ = differ || (column.compared && !peak_as_predicted(most, least));
        if (most > 0) shown.emplace_back(column.title, std::move(bytes));
    }
    if (!differ) return;
    std::string header = fmt::format("\n{:<20}", "measured by rank");
    for (const auto& [title, bytes] : shown) header += fmt::format("{:>13}", title);
    print(header);
    constexpr size_t most_rows = 16;
    for (size_t rank = 0; rank < std::min(by_rank.size(), most_rows); ++rank) {
        std::string line = fmt::format("  rank {:<13}", rank);
        for (const auto& [title, bytes] : shown)
            line += fmt::format("{:>13}", format_bytes(double(bytes[rank])));
        print(line);
    }
    if (by_rank.size() > most_rows) print("  ...");
}

// ---- communication -----------------------------------------------------------------------------

using Kind = PredictedCommunication::Kind;

// Averages per step over the calls of a run of `steps` steps, of which `timed` were timed.
class CommunicationRow {
public:
    CommunicationRow(const Kind& predicted, const CommunicationCount& counted,
                     const CommunicationCount& in_warmup, int64_t steps, int64_t timed)
        : predicted_(predicted),
          counted_(counted),
          steps_(double(steps)),
          seconds_((counted.seconds - in_warmup.seconds) / double(timed)),
          exposed_((counted.exposed - in_warmup.exposed) / double(timed)) {}

    bool is_empty() const { return predicted_.calls == 0 && counted_.calls == 0; }

    std::string line(const std::string& name, const char* result) const {
        const auto figures = [&](const auto& count) {
            return fmt::format("{:>6.5g} {:>10} {:>10}", double(count.calls) / steps_,
                               format_bytes(double(count.bytes) / steps_),
                               format_bytes(count.sent / steps_));
        };
        const auto ms = [&](double seconds) {  // replays of CUDA graphs are not timed
            return seconds_ > 0 ? fmt::format("{:.2f}", seconds * 1e3) : "-";
        };
        return fmt::format("  {:<14} {}   {} {:>8} {:>8}{}{}", name, figures(predicted_),
                           figures(counted_), ms(seconds_), ms(exposed_), *result ? " " : "",
                           result);
    }

    Json json() const {
        return {{"calls", double(counted_.calls) / steps_},
                {"tensor_bytes", double(counted_.bytes) / steps_},
                {"sent_bytes", counted_.sent / steps_},
                {"predicted_calls", double(predicted_.calls) / steps_},
                {"predicted_tensor_bytes", double(predicted_.bytes) / steps_},
                {"predicted_sent_bytes", predicted_.sent / steps_},
                {"seconds", seconds_},
                {"exposed_seconds", exposed_}};
    }

private:
    Kind predicted_;
    CommunicationCount counted_;
    double steps_, seconds_, exposed_;
};

template <class Groups>
auto kinds_of(const Groups& groups, const std::string& name) {
    const auto found = groups.find(name);
    return found == groups.end() ? typename Groups::mapped_type{} : found->second;
}

}  // namespace

Json predicted_memory(const MemoryEstimate& predicted) {
    Json json;
    for (const MemoryRow& row : memory_rows(predicted))
        json[row.name] = {{"predicted", row.predicted}};
    if (predicted.host > 0) json["on the host"] = {{"predicted", predicted.host}};
    json["peak"] = {{"predicted", predicted.total()}};
    return json;
}

MemoryTable print_memory(const MemoryEstimate& predicted, bool full) {
    MemoryTable table{"", Json::object(), Json::array()};
    Json& json = table.by_category;
    const int64_t at_peak = total(memory_at_peak()),
                  workspace = memory_peak_by_category()[size_t(Memory::workspace)];
    print("\nmemory per rank             predicted       measured");
    const auto print_row = [&](const MemoryRow& row) {
        const double off = row.predicted > 0
                               ? double(row.measured - row.predicted) / double(row.predicted)
                               : double(row.measured != 0);
        const bool same = row.measured == row.predicted;
        const std::string result = same ? "equal" : fmt::format("{:+.2f} %", 100 * off);
        print_line(row.name, format_bytes(double(row.predicted)), row.measured,
                   result + (row.as_predicted() ? "" : "   MISMATCH"));
        if (!row.as_predicted())
            table.wrong +=
                (table.wrong.empty() ? ": " : "; ") + fmt::format("{} {}", row.name, result);
        json[row.name] = {{"predicted", row.predicted}, {"measured", row.measured}};
    };
    for (const MemoryRow& row : memory_rows(predicted)) print_row(row);
    print_line("workspace, peak", "-", workspace);
    json["workspace"] = {{"measured", workspace}};
    if (predicted.host > 0)
        print_row({"on the host", predicted.host, memory_peak_by_category()[size_t(Memory::host)]});
    if (const int64_t copies = memory_peak_by_category()[size_t(Memory::checkpoint)];
        copies > 0 || predicted.checkpoint > 0)
        print_row({"checkpoint copies", predicted.checkpoint, copies});
    print_line("all, at the peak", format_bytes(double(predicted.total())), at_peak,
               fmt::format("of {}", format_bytes(double(memory_limit()))));
    print(predicted.total() <= at_peak
              ? "  (the measured peak includes the workspace, which no formula predicts)"
              : "  (the prediction adds up peaks of different moments, so it is an upper bound)");
    json["peak"] = {{"predicted", predicted.total()}, {"measured", at_peak}};
    for (const std::string& rank_json : Communicator::world().gather_strings(json.dump()))
        table.by_rank.push_back(Json::parse(rank_json));
    if (device_is_gpu()) {  // the playbook's two further uses of GPU memory
        const DeviceOverhead extra = device_overhead();
        print_line("CUDA context", "-", extra.context, "kernels, cuBLAS, NCCL of all processes");
        print_line("fragmentation", "-", extra.fragmentation, "reserved beyond the tensors' peak");
        json["context"] = {{"measured", extra.context}};
        json["fragmentation"] = {{"measured", extra.fragmentation}};
    }
    if (full) print_ranks(table.by_rank);
    return table;
}

CommunicationTable print_communication(const PredictedCommunication& predicted,
                                       const CommunicationCounts& counted,
                                       const CommunicationCounts& in_warmup, int64_t steps,
                                       int64_t timed, bool full) {
    CommunicationTable table{true, Json::object(), Json::object()};
    std::set<std::string> names;
    for (const auto& [name, kinds] : predicted.groups) names.insert(name);
    for (const auto& [name, kinds] : counted.groups) names.insert(name);
    for (size_t k = 0; k < collective_kinds; ++k) {
        const char* const kind = collective_names[k];
        bool same = true;
        std::vector<std::string> group_lines;
        for (const std::string& name : names) {
            const Kind want = kinds_of(predicted.groups, name)[k];
            const CommunicationCount got = kinds_of(counted.groups, name)[k];
            const CommunicationRow row(want, got, kinds_of(in_warmup.groups, name)[k], steps,
                                       timed);
            if (row.is_empty()) continue;
            const bool as_predicted = is_as_predicted(want, got);
            same = same && as_predicted;
            group_lines.push_back(row.line("  " + name, as_predicted ? "" : "MISMATCH"));
            table.by_group[name][kind] = row.json();
        }
        const CommunicationRow row(predicted.of(Collective(k)), counted[k], in_warmup[k], steps,
                                   timed);
        if (row.is_empty()) continue;
        if (table.by_kind.empty()) {
            print("\ncommunication per step       predicted                        counted");
            print(fmt::format("{:16} {:>6} {:>10} {:>10}   {:>6} {:>10} {:>10} {:>8} {:>8}", "",
                              "calls", "tensors", "sent", "calls", "tensors", "sent", "ms",
                              "exposed"));
        }
        print(row.line(kind, same ? "equal" : "MISMATCH"));
        // Sums can be equal although groups differ: a mismatch is always printed by group.
        if (group_lines.size() > 1 && (full || !same))
            for (const std::string& line : group_lines) print(line);
        table.as_predicted = table.as_predicted && same;
        table.by_kind[kind] = row.json();
    }
    if (table.by_kind.empty()) print("\ncommunication: none");
    return table;
}

}  // namespace ultrascale
