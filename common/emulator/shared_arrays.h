// The __shared__ arrays of a fixed size, according to the program's symbol table. (cuda_runtime.h
// makes them thread_local variables, which the linker places side by side.)
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace simt {

struct SharedArray {
    size_t offset, bytes;  // from the beginning of each core's thread-local storage
    std::string name;      // "tile"
};

struct SharedArrays {
    bool known = false;                 // false: the program has no symbol table
    std::vector<SharedArray> all = {};  // by offset

    // The last array that begins at or before an address, if this core's thread-local storage has
    // one.
    const SharedArray* before(const void* address) const;
    static char* begin(const SharedArray& array);  // on this core
};

// The arrays that a kernel may use: its own and those of device functions. Device functions are
// inlined, so an array whose function has its own address belongs to another kernel.
const SharedArrays& shared_arrays(const void* kernel);

}  // namespace simt
