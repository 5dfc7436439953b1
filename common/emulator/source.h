// Finds the place in the source for an instruction's address, by the debugging information in the
// executable (addr2line).
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace simt {

// The offset from the beginning of the executable, which may be loaded anywhere in memory. The
// executable's tables use these offsets.
size_t in_executable(const void* address);

// One of the functions that an instruction belongs to: it has several if functions are inlined into
// one another.
struct Frame {
    std::string function;  // demangled
    std::string path;      // "" if unknown
    int line = 0;
    std::string file() const { return path.substr(path.rfind('/') + 1); }
    bool stand_in() const { return file().starts_with("cuda_"); }  // a header in include/
};

// The frames of each address, innermost function first. An address is a call's return address, or
// one byte into a function. All new addresses are looked up in one run of addr2line, because each
// run reads all debugging information.
std::vector<std::vector<Frame>> source_frames(std::span<const void* const> addresses);

// The address to pass for a function, such as a kernel.
inline const void* inside(const void* function) { return static_cast<const char*>(function) + 1; }

// "ops_rmsnorm.cu:93": the innermost place that is not in a stand-in for a CUDA header.
std::string source_line(const void* code);

}  // namespace simt
