#include "shared_arrays.h"

#include <cxxabi.h>
#include <elf.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <mutex>
#include <set>
#include <string_view>

#include "simt.h"
#include "source.h"

namespace simt {

namespace {

// Static functions of different files may have the same name. -1: not static.
using Function = std::pair<std::string, int>;

struct Table {
    struct Array : SharedArray {
        Function function;  // the one that declares it
    };
    bool known = false;
    std::vector<Array> arrays;
    std::map<size_t, Function> function_at;  // by in_executable()
    std::set<Function> functions;
    size_t thread_index = 0;  // threadIdx's offset

    void read(const char* file);
    void add(const Elf64_Sym& symbol, const char* name, int number);
};

// "_ZZ<function>E4tileB6shared": the tag is from cuda_runtime.h.
void Table::add(const Elf64_Sym& symbol, const char* name, int number) {
    const std::string_view mangled = name;
    if (ELF64_ST_BIND(symbol.st_info) != STB_LOCAL) number = -1;
    if (ELF64_ST_TYPE(symbol.st_info) == STT_FUNC && symbol.st_shndx != SHN_UNDEF) {
        function_at[symbol.st_value] = {name, number};
        functions.emplace(name, number);
    }
    if (ELF64_ST_TYPE(symbol.st_info) != STT_TLS) return;
    if (mangled == "threadIdx") thread_index = symbol.st_value, known = true;
    if (!mangled.starts_with("_ZZ") || mangled.find("B6shared") == mangled.npos) return;
    char* const demangled =
        abi::__cxa_demangle(name, nullptr, nullptr, nullptr);  // "f(int)::tile[abi:shared]"
    if (!demangled) return;
    std::string own = demangled;
    std::free(demangled);
    own.erase(std::min(own.rfind("[abi:shared]"), own.size()));
    own.erase(0, own.rfind("::") + 2);
    const size_t end = mangled.rfind("E" + std::to_string(own.size()) + own + "B6shared");
    if (end == mangled.npos) return;
    arrays.push_back({{symbol.st_value, symbol.st_size, own},
                      {"_Z" + std::string(mangled.substr(3, end - 3)), number}});
}

void Table::read(const char* file) {
    const auto* const header = reinterpret_cast<const Elf64_Ehdr*>(file);
    const auto* const sections = reinterpret_cast<const Elf64_Shdr*>(file + header->e_shoff);
    for (int i = 0; i < header->e_shnum; ++i) {
        if (sections[i].sh_type != SHT_SYMTAB) continue;
        const auto* const symbols =
            reinterpret_cast<const Elf64_Sym*>(file + sections[i].sh_offset);
        const char* const names = file + sections[sections[i].sh_link].sh_offset;
        int number = 0;  // of the file: its name comes before its symbols
        for (size_t k = 0; k < sections[i].sh_size / sizeof(Elf64_Sym); ++k) {
            if (ELF64_ST_TYPE(symbols[k].st_info) == STT_FILE) ++number;
            add(symbols[k], names + symbols[k].st_name, number);
        }
    }
    std::ranges::sort(arrays, {}, &SharedArray::offset);
}

const Table& table_of_program() {
    static const Table& table = *[] {
        auto* const result = new Table;
        const int file = open("/proc/self/exe", O_RDONLY);
        struct stat status;
        if (file < 0 || fstat(file, &status) != 0) return result;
        void* const memory = mmap(nullptr, size_t(status.st_size), PROT_READ, MAP_PRIVATE, file, 0);
        close(file);
        if (memory == MAP_FAILED) return result;
        result->read(static_cast<const char*>(memory));
        munmap(memory, size_t(status.st_size));
        return result;
    }();
    return table;
}

}  // namespace

const SharedArray* SharedArrays::before(const void* address) const {
    if (all.empty()) return nullptr;
    const char* const storage = begin(all[0]) - all[0].offset;
    const auto behind = std::ranges::upper_bound(
        all, static_cast<const char*>(address) - storage, {},
        [](const SharedArray& array) { return std::ptrdiff_t(array.offset); });
    return behind == all.begin() ? nullptr : &*std::prev(behind);
}

char* SharedArrays::begin(const SharedArray& array) {
    return reinterpret_cast<char*>(&threadIdx) - table_of_program().thread_index + array.offset;
}

const SharedArrays& shared_arrays(const void* kernel) {
    static std::mutex mutex;
    static auto& found = *new std::map<const void*, SharedArrays>;
    std::lock_guard lock(mutex);
    const auto [at, is_new] = found.try_emplace(kernel);
    SharedArrays& arrays = at->second;
    if (!is_new) return arrays;
    const Table& table = table_of_program();
    arrays.known = table.known;
    const auto self = table.function_at.find(in_executable(kernel));
    for (const Table::Array& array : table.arrays)
        if (self == table.function_at.end() || array.function == self->second ||
            !table.functions.contains(array.function))
            arrays.all.push_back(array);
    return arrays;
}

}  // namespace simt
