#include "microscope.h"

#include <algorithm>
#include <fstream>
#include <map>
#include <mutex>
#include <set>
#include <stdexcept>
#include <unordered_map>

#include "races.h"
#include "requests.h"
#include "source.h"

namespace simt {

namespace {

constexpr int accesses_in_a_turn = 256;  // of a thread, before the others continue
constexpr size_t most_races = 50;

}  // namespace

// The observations of all cores about one kernel.
struct SeenKernel {
    int64_t launches = 0, blocks = 0, threads = 0;
    std::map<std::pair<const void*, Access>, InstructionCounts> instructions;
    Races::All races;
};

struct Microscope::Seen {
    std::mutex mutex;
    std::vector<const void*> order;  // of the kernels
    std::map<const void*, SeenKernel> kernels;
};

namespace {

// One core's share of a launch. Its destructor adds its observations to the rest.
struct Core : CoreObserver {
    Microscope::Seen& seen;
    const void* kernel;
    Requests requests;
    Races races;
    uint32_t thread = 0;  // the thread that made the last access
    int turn = 0;         // its accesses since its turn began
    bool stored = false;  // whether the last access was a store

    Core(Microscope::Seen& seen, const void* kernel) : seen(seen), kernel(kernel) {}
    ~Core() override {
        std::lock_guard lock(seen.mutex);
        SeenKernel& all = seen.kernels[kernel];
        for (const auto& [instruction, counts] : requests.all())
            all.instructions[instruction].add(counts);
        for (const auto& [instructions, found] : races.all()) all.races[instructions].add(found);
    }

    void block_begins(uint3 index, uint32_t threads, const void* shared,
                      size_t shared_bytes) override {
        requests.block_begins(threads);
        races.block_begins(index, threads, shared, shared_bytes);
        turn = 0;
    }
    void access(uint32_t self, const void* first, size_t bytes, Access access,
                const void* code) override {
        if (self != thread) thread = self, turn = 0;
        ++turn;
        stored = access == Access::global_store || access == Access::shared_store;
        requests.access(self, first, bytes, access, code);
        if (is_shared(access)) races.access(self, first, bytes, {code, access});
    }
    // This keeps one lane from running through a long loop and leaving all its requests to wait for
    // the other lanes. It must not interrupt the copy of a struct between the write and the read:
    // these are reported in this order, before either is done.
    bool far_ahead(uint32_t self, Access access) override {
        if (self != thread || turn < accesses_in_a_turn) return false;
        if (stored && (access == Access::global_load || access == Access::shared_load))
            return false;
        turn = 0;
        return true;
    }
    void barrier() override {
        requests.barrier();
        races.barrier();
    }
    void lanes_met(uint32_t warp, uint32_t mask, bool orders_memory) override {
        requests.lanes_met(warp, mask);
        if (orders_memory) races.lanes_met(warp, mask);
    }
    void block_ends() override {
        requests.block_ends();
        races.block_ends();
    }
};

// Shortens "void a::(anonymous namespace)::copy<a::b, 4>(float*)" to copy<b, 4>.
std::string short_name(std::string name) {
    for (const std::string hidden = "(anonymous namespace)::";
         name.find(hidden) != std::string::npos;)
        name.erase(name.find(hidden), hidden.size());
    int depth = 0;
    std::string kept, word;
    for (const char c : name) {
        if (c == '(' && depth == 0) break;
        if (c == '<') ++depth;
        if (c == '>') --depth;
        if (c == ':' || (c == ' ' && depth == 0)) {
            word.clear();  // the qualifier of a name
            if (depth == 0) kept.clear();
        } else if (std::isalnum(static_cast<unsigned char>(c)) || c == '_') {
            word += c;
        } else {
            kept += word + c;
            word.clear();
        }
    }
    return kept + word;
}

// Lines of source files. Each file is read once.
class Text {
public:
    std::string line(const std::string& path, int number) {
        const auto [entry, is_new] = files_.try_emplace(path);
        if (is_new) {
            std::ifstream file(path);
            for (std::string text; std::getline(file, text);) entry->second.push_back(text);
        }
        if (number < 1 || size_t(number) > entry->second.size()) return "";
        const std::string& text = entry->second[size_t(number - 1)];
        const size_t begin = text.find_first_not_of(" \t");
        return begin == std::string::npos ? "" : text.substr(begin);
    }

private:
    std::map<std::string, std::vector<std::string>> files_;
};

class SourceLines {
public:
    // The place of a kernel's instruction: the innermost line in the kernel's own file, else the
    // innermost line that is not in a stand-in.
    Frame of(const void* code, const void* kernel) const {
        const std::vector<Frame>& frames = known_.at(code);
        const std::string path = kernel_frame(kernel).path;
        for (const Frame& frame : frames)
            if (frame.path == path) return frame;
        for (const Frame& frame : frames)
            if (!frame.stand_in()) return frame;
        return {};
    }
    Frame kernel_frame(const void* kernel) const {
        const std::vector<Frame>& frames = known_.at(inside(kernel));
        return frames.empty() ? Frame{"unknown kernel"} : frames.back();
    }

    explicit SourceLines(const std::map<const void*, SeenKernel>& kernels) {
        std::set<const void*> codes;
        for (const auto& [kernel, seen] : kernels) {
            codes.insert(inside(kernel));
            for (const auto& [instruction, counts] : seen.instructions)
                codes.insert(instruction.first);
        }
        const std::vector<const void*> all(codes.begin(), codes.end());
        const std::vector<std::vector<Frame>> frames = source_frames(all);
        for (size_t i = 0; i < all.size(); ++i) known_[all[i]] = frames[i];
    }

private:
    std::unordered_map<const void*, std::vector<Frame>> known_;
};

KernelCounts by_lines(const void* kernel, const SeenKernel& seen, const SourceLines& source_lines,
                      Text& text) {
    const Frame self = source_lines.kernel_frame(kernel);
    KernelCounts counts{short_name(self.function),
                        self.file(),
                        self.line,
                        seen.launches,
                        seen.blocks,
                        seen.threads,
                        {}};
    std::map<std::tuple<std::string, int, Access>, InstructionCounts> lines;
    for (const auto& [instruction, its_counts] : seen.instructions) {
        const Frame location = source_lines.of(instruction.first, kernel);
        lines[{location.path, location.line, instruction.second}].add(its_counts);
    }
    for (const auto& [key, sums] : lines) {
        const auto& [path, line, access] = key;
        counts.lines.push_back(
            {Frame{"", path}.file(), line, text.line(path, line), access, sums.bytes, sums.counts});
    }
    return counts;
}

void add_races(std::vector<Race>& races, const void* kernel, const SeenKernel& seen,
               const SourceLines& source_lines, Text& text) {
    using Side = std::tuple<std::string, int, Access>;
    std::map<std::pair<Side, Side>, Races::Found> lines;
    for (const auto& [instructions, found] : seen.races) {
        const auto side = [&](const Races::Instruction& instruction) {
            const Frame location = source_lines.of(instruction.first, kernel);
            return Side(location.path, location.line, instruction.second);
        };
        Side one = side(instructions.first), other = side(instructions.second);
        Races::Found in_order = found;
        if (other < one) std::swap(one, other), std::swap(in_order.threads[0], in_order.threads[1]);
        lines[{one, other}].add(in_order);
    }
    for (const auto& [sides, found] : lines) {
        if (races.size() == most_races) return;
        const auto side = [&](const Side& s, uint32_t thread) {
            const auto& [path, line, access] = s;
            return Race::Side{Frame{"", path}.file(), line, text.line(path, line), access, thread};
        };
        races.push_back({short_name(source_lines.kernel_frame(kernel).function),
                         side(sides.first, found.threads[0]), side(sides.second, found.threads[1]),
                         found.block, found.offset, found.count});
    }
}

}  // namespace

Counts KernelCounts::total(Access access) const { return at("", access); }

Counts KernelCounts::total() const {
    Counts sum;
    for (const LineCounts& line : lines) sum += line.counts;
    return sum;
}

Counts KernelCounts::at(const std::string& text, Access access) const {
    Counts sum;
    for (const LineCounts& line : lines)
        if (line.access == access && line.source.find(text) != std::string::npos)
            sum += line.counts;
    return sum;
}

KernelCounts Observation::kernel(const std::string& name) const {
    for (const KernelCounts& kernel : kernels)
        if (kernel.name.starts_with(name)) return kernel;
    return {};
}

Microscope::Microscope() : seen_(std::make_unique<Seen>()) {
    if (observer) throw std::logic_error("a second observer of kernels at the same time");
    observer = this;
}
Microscope::~Microscope() { observer = nullptr; }

void Microscope::launched(const Call& call, dim3 grid, dim3 block) {
    std::lock_guard lock(seen_->mutex);
    if (!seen_->kernels.contains(call.kernel)) seen_->order.push_back(call.kernel);
    SeenKernel& kernel = seen_->kernels[call.kernel];
    const int64_t blocks = int64_t(grid.x) * grid.y * grid.z;
    ++kernel.launches, kernel.blocks += blocks,
        kernel.threads += blocks * block.x * block.y * block.z;
}

std::unique_ptr<CoreObserver> Microscope::on_core(const Call& call) {
    return std::make_unique<Core>(*seen_, call.kernel);
}

Observation Microscope::take() {
    const SourceLines source_lines(seen_->kernels);
    Text text;
    Observation observation;
    for (const void* kernel : seen_->order) {
        observation.kernels.push_back(
            by_lines(kernel, seen_->kernels.at(kernel), source_lines, text));
        add_races(observation.races, kernel, seen_->kernels.at(kernel), source_lines, text);
    }
    seen_ = std::make_unique<Seen>();
    return observation;
}

}  // namespace simt
