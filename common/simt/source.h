// From an instruction's address to its place in the source, by the debugging information in the
// executable (addr2line).
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace simt {

// Distance from where the executable begins, which is what its tables know; it may lie anywhere in
// memory.
size_t in_executable(const void* address);

// One of the functions that an instruction belongs to: where functions are inlined in one another
// it has several.
struct Frame {
    std::string function;  // demangled
    std::string path;      // "" if unknown
    int line = 0;
    std::string file() const { return path.substr(path.rfind('/') + 1); }
    bool stand_in() const { return file().starts_with("cuda_"); }  // of include/
};

// Of each address, the innermost function first. An address is a call's return address, or one byte
// into a function. Those that nobody asked for before are looked up in one run of addr2line, which
// reads all debugging information.
std::vector<std::vector<Frame>> source_frames(std::span<const void* const> addresses);

// Of a kernel, which is asked for as a function is.
inline const void* inside(const void* function) { return static_cast<const char*>(function) + 1; }

// "ops_rmsnorm.cu:93": the innermost place that is in no stand-in for a CUDA header.
std::string source_line(const void* code);

}  // namespace simt
