#include "checksums.h"

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "core/fnv.h"

namespace ultrascale {

using Json = nlohmann::ordered_json;

namespace {

std::string hash(const void* data, size_t bytes) {
    return fmt::format("{:016x}", fnv1a(data, bytes));
}
std::string hash(const std::vector<int32_t>& values) {
    return hash(values.data(), values.size() * sizeof(int32_t));
}

// {"hash": "8c3f...", "norm": 0.25, "zeros": 0.01}
Json checksum(const Tensor& tensor) {
    std::vector<char> bytes(size_t(tensor.bytes()));
    tensor.copy_to_host(bytes.data());
    const std::vector<float> values = tensor.to_host_float();
    double squares = 0;
    for (const float x : values) squares += double(x) * double(x);
    return {{"hash", hash(bytes.data(), bytes.size())},
            {"norm", std::sqrt(squares)},
            {"zeros", double(std::ranges::count(values, 0.f)) / double(values.size())}};
}

// "model.norm.weight", or with the ranges of a part: "lm_head.weight[0:64,0:128]", and if it is a
// piece of that, its first element and the one after its last: "...{0:4096}".
std::string name_of(const std::string& name, const Shape& shape, const std::vector<Range>& slice,
                    int64_t begin, int64_t count) {
    std::string ranges, words = name;
    Shape local;
    for (const Range& range : slice) {
        ranges += fmt::format("{}{}:{}", ranges.empty() ? "" : ",", range.begin, range.end);
        local.push_back(range.size());
    }
    if (local != shape) words += "[" + ranges + "]";
    if (count != numel(local)) words += fmt::format("{{{}:{}}}", begin, begin + count);
    return words;
}

Json checksums_of(const std::vector<TensorPart>& parts) {
    Json all = Json::object();
    for (const TensorPart& p : parts)
        if (p.tensor.numel() > 0)
            all[name_of(p.name, p.shape, p.slice, p.begin, p.tensor.numel())] = checksum(p.tensor);
    return all;
}

}  // namespace

struct Checksums::Impl {
    Report& report;
    int64_t replica;
    bool alike;
    std::map<int64_t, Json> steps = {};  // that are not finished
    struct Kind {                        // of checksums that are compared, on rank 0
        int64_t compared = 0, different = 0;
        std::string first = {};  // the first step and tensor that differ, in words
        Json place = {};
    };
    std::map<std::string, Kind> kinds = {};
    int64_t rows = 0, distinct_rows = 0;  // that a step reads, over the steps

    Json& newest() { return steps.rbegin()->second; }
    void compare(const std::string& kind, int64_t step, const std::vector<Json>& of_ranks);
};

Checksums::Checksums(Report& report, int64_t replica, bool alike)
    : impl_(new Impl{.report = report, .replica = replica, .alike = alike}) {}
Checksums::~Checksums() = default;

void Checksums::begin_step(int64_t step) { impl_->steps[step]; }

void Checksums::batch(int64_t micro_batch, const HostBatch& batch,
                      const std::vector<int64_t>& rows) {
    impl_->newest()["data"][std::to_string(micro_batch)] = {
        {"rows", rows},
        {"tokens", hash(batch.tokens)},
        {"targets", hash(batch.targets)},
        {"positions", hash(batch.positions)},
        {"document_starts", hash(batch.document_starts)}};
}

void Checksums::gradient_complete(Parameter& p, const Context&) {
    const std::string name = name_of(p.name, p.shape, p.slice, 0, p.local_numel());
    impl_->newest()["own_gradients"][name] = checksum(p.grad);
}

void Checksums::gradients(const std::vector<TensorPart>& parts) {
    impl_->newest()["gradients"] = checksums_of(parts);
}

void Checksums::end_step(int64_t step, const std::vector<TensorPart>& weights) {
    Impl& self = *impl_;
    const Communicator& world = Communicator::world();
    Json mine = {{"step", step}, {"rank", world.rank()}, {"replica", self.replica}};
    mine.update(self.steps[step]);
    mine["weights"] = checksums_of(weights);
    self.steps.erase(step);
    const std::vector<std::string> lines = world.gather_strings(mine.dump());
    std::vector<Json> of_ranks, data;
    std::map<int64_t, std::multiset<int64_t>> rows;  // by replica
    for (const std::string& line : lines) {
        self.report.line(fmt::format(R"({{"checksums":{}}})", line));
        of_ranks.push_back(Json::parse(line));
        const Json& rank = of_ranks.back();
        Json& batches = data.emplace_back(Json{{"data", Json::object()}})["data"];
        std::multiset<int64_t>& read = rows[rank["replica"]];
        read.clear();
        const Json own = rank.value("data", Json::object());
        for (const auto& [micro_batch, batch] : own.items()) {
            batches[fmt::format("replica {}, micro-batch {}", rank["replica"].get<int64_t>(),
                                micro_batch)] = {{"hash", batch.dump()}};
            for (const int64_t row : batch["rows"]) read.insert(row);
        }
    }
    std::set<int64_t> distinct;
    for (const auto& [replica, read] : rows) {
        self.rows += int64_t(read.size());
        distinct.insert(read.begin(), read.end());
    }
    self.distinct_rows += int64_t(distinct.size());
    self.compare("data", step, data);
    if (!self.alike) return;
    self.compare("gradients", step, of_ranks);
    self.compare("weights", step, of_ranks);
}

// Compares what has the same name on several ranks.
void Checksums::Impl::compare(const std::string& kind, int64_t step,
                              const std::vector<Json>& of_ranks) {
    Kind& sum = kinds[kind];
    std::vector<std::string> names;  // in the order of the first rank that has it
    std::map<std::string, std::map<std::string, std::vector<int>>> holders;  // by name and hash
    for (size_t rank = 0; rank < of_ranks.size(); ++rank) {
        const Json own = of_ranks[rank].value(kind, Json::object());
        for (const auto& [name, value] : own.items()) {
            if (!holders.contains(name)) names.push_back(name);
            holders[name][value["hash"]].push_back(int(rank));
        }
    }
    for (const std::string& name : names) {
        const auto& groups = holders[name];
        size_t ranks = 0, most = 0;
        for (const auto& [value, holding] : groups)
            ranks += holding.size(), most = std::max(most, holding.size());
        if (ranks < 2) continue;
        ++sum.compared;
        if (groups.size() == 1) continue;
        if (sum.different++ > 0) continue;
        std::vector<int> odd;  // all but the largest group; if there are several, all
        size_t largest = 0;
        for (const auto& [value, holding] : groups) largest += holding.size() == most;
        for (const auto& [value, holding] : groups)
            if (holding.size() < most || largest > 1)
                odd.insert(odd.end(), holding.begin(), holding.end());
        std::ranges::sort(odd);
        sum.first = fmt::format("step {}, {}: {} {}", step, name,
                                odd.size() == 1 ? "rank" : "ranks", fmt::join(odd, ", "));
        sum.place = {{"step", step}, {"name", name}, {"ranks", odd}};
    }
}

void Checksums::finish() {
    Impl& self = *impl_;
    print("\nchecksums of copies           compared  different");
    if (!self.alike)
        print("  (ranks train on their own between meetings, so their weights may differ)");
    Json section = Json::object();
    for (const char* kind : {"data", "gradients", "weights"}) {
        const Impl::Kind& sum = self.kinds[kind];
        const std::string shown = kind == std::string("gradients") ? "gradients, summed" : kind;
        if (sum.compared == 0)
            print(fmt::format("  {:<25} {:>10} {:>10}", shown, "-", "-"));
        else
            print(fmt::format("  {:<25} {:>10} {:>10}", shown, sum.compared, sum.different));
        if (sum.different > 0) print("    first: " + sum.first);
        section[kind] = {{"compared", sum.compared}, {"different", sum.different}};
        if (sum.different > 0) section[kind]["first"] = sum.place;
    }
    print(fmt::format("  the replicas have read {}; {} if a row counts once a step",
                      format_count(self.rows, "row"), self.distinct_rows));
    section["rows"] = {{"read", self.rows}, {"distinct", self.distinct_rows}};
    self.report.section("checksums", section.dump());
}

}  // namespace ultrascale
