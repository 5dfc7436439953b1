// What one training step holds in memory, and which tensors forward keeps for backward.
//
//   weights        n parameters x e bytes       e = 4 (fp32) or 2 (bf16)
//   gradients      n x 4 or 2                   accumulated in fp32 or in the weights' dtype
//   optimizer      n x 8 (fp32) or 12 (bf16)    Adam's two moments, and the fp32 master copy of
//                                               bf16 weights
//   activations    L x s x b x (bytes kept per token and layer), plus the loss's logits and what
//                  the layer being computed needs
//
//   fp32                            4 + 4 + 8        = 16 bytes a parameter
//   bf16, fp32 master weights       2 + 2 + 12       = 16
//   bf16 with fp32 gradients        2 + 4 + 12       = 18 here, where the GEMM accumulates straight
//                                                      into fp32;
//                                   2 + 2 + 4 + 12   = 20 in the playbook, where bf16 gradients are
//                                                      added to an fp32 copy
//
// The activations are in `Saved` (model/parts.h): a tree of named tensors, with a branch for each
// layer. Each part of the model puts in what its backward will take out. So we can list them:
//
//     layers/attention/q   8 x (8, 128, 8, 16)      of each of the 8 layers, one tensor
#pragma once

#include <map>
#include <set>
#include <string>

#include "model/parts.h"

namespace ultrascale::single_gpu {

// The bytes that a forward kept, by the tensor's name within a unit, summed over layers. A tensor
// that two parts share is counted once, under the first name (attention's o is also the x of
// o_proj).
class KeptByForward {
public:
    struct Entry {
        int64_t bytes = 0, tensors = 0;
        std::string shape;  // of one of them
    };
    void collect(const Saved& saved) {
        std::set<const void*> seen;
        saved.for_each([&](const std::string& path, const Tensor& t) {
            if (!seen.insert(t.data()).second) return;
            const size_t slash = path.find('/');
            const bool layer = path.starts_with("layers.");
            Entry& entry = entries_[layer ? "layers/" + path.substr(slash + 1) : path];
            entry.bytes += t.bytes();
            entry.shape = to_string(t.shape());
            ++entry.tensors;
        });
    }

    const std::map<std::string, Entry>& entries() const { return entries_; }

private:
    std::map<std::string, Entry> entries_;
};

}  // namespace ultrascale::single_gpu
