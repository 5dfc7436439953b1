#include <algorithm>
#include <filesystem>
#include <tuple>
#include <utility>

#include "kernel.h"

namespace ultrascale::kernels {
namespace {

std::vector<Kernel>& registry() {
    static std::vector<Kernel> kernels;
    return kernels;
}
std::vector<LaunchNote>& notes() {
    static std::vector<LaunchNote> notes;
    return notes;
}

}  // namespace

Registered::Registered(const char* problem, const char* idea, void (*run)(const Arguments&),
                       Needs needs, const std::source_location& at) {
    const std::filesystem::path path = at.file_name();
    const std::string file = path.stem(), folder = path.parent_path().filename();
    const bool numbered =
        file.find('_') != std::string::npos && file[0] >= '0' && file[0] <= '9';  // mine.cu is not
    std::vector<Kernel>& list = registry();
    list.push_back({numbered ? std::stoi(folder) : 0, numbered ? std::stoi(file) : 0,
                    numbered ? file.substr(file.find('_') + 1) : file, problem, idea, run,
                    folder + "/" + path.filename().string(), needs});
    std::ranges::sort(list, {}, [](const Kernel& k) { return std::tuple(k.family, k.number); });
}

const std::vector<Kernel>& all_kernels() { return registry(); }

std::string why_skipped(const Kernel& kernel) {
    if (kernel.needs == Needs::hopper && !hopper()) return "it needs Hopper (sm_90a: H100, H200)";
    return kernel.run ? "" : "it uses tensor cores (PTX), which need a GPU";
}

void note_launch(const void* kernel, const char* name, dim3 block, size_t shared_bytes) {
    if (notes().size() < 64) notes().push_back({kernel, name, block, shared_bytes});
}
std::vector<LaunchNote> take_launches() { return std::exchange(notes(), {}); }

}  // namespace ultrascale::kernels
