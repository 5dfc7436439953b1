// What a layer of a GPT keeps for its backward, tensor by tensor: the terms of the playbook's
// s b h (34 + 5 a s / h) (Korthikanti et al. 2022, section 4.1).
#pragma once

#include <vector>

namespace ultrascale {

// The bytes that a layer keeps for its backward, in units of s b h (first number) and of a s^2 b
// (second number). A 16-bit number counts 2, a dropout mask 1.
struct KeptTerm {
    const char* what;
    double sbh, assb;
};
inline std::vector<KeptTerm> gpt_layer_activations() {
    // exercise 00.4 begin: an entry for each tensor: name, bytes / (s b h), bytes / (a s^2 b)
    return {{"attention: input of q, k, v", 2, 0},
            {"q and k, for their product", 4, 0},
            {"softmax's output", 0, 2},
            {"its dropout's mask", 0, 1},
            {"its dropout's output, for the product with v", 0, 2},
            {"v", 2, 0},
            {"input of the output projection", 2, 0},
            {"dropout's mask", 1, 0},
            {"feed-forward: input of up", 2, 0},
            {"input of GELU", 8, 0},
            {"input of down", 8, 0},
            {"dropout's mask", 1, 0},
            {"the inputs of two layer norms", 4, 0}};
    // exercise 00.4 end
}

}  // namespace ultrascale
