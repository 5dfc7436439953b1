// Writes a tensor's values to a safetensors file.
#pragma once

#include "files/safetensors.h"

namespace ultrascale::test {

inline void write(SafetensorsWriter& writer, const Tensor& tensor) {
    std::vector<char> values(size_t(tensor.bytes()));
    tensor.copy_to_host(values.data());
    writer.write(values, tensor.dtype());
}

}  // namespace ultrascale::test
