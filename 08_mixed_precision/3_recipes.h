// Recipes: the format of each of a parameter's tensors. The playbook's table, as data.
//
//     weights       read by forward and backward
//     master        updated by the optimizer; none: it updates the weights themselves
//     accumulated   the sum over micro-batches; none: they add to the gradients
//     gradients     summed over ranks, and read by the optimizer; none: the accumulated ones are
//     m, v          Adam's moments
//
//                  weights  master  accumulated  gradients  m     v       bytes   the book's
//     bf16         bf16     fp32    -            bf16       fp32  fp32    16      16
//     bf16-fp32    bf16     fp32    fp32         -          fp32  fp32    18      20
//     te           fp32     -       -            fp32       fp32  fp32    16      16
//     fp8-lm       e4m3     fp16    fp16         e4m3       e4m3  fp16     9       9 (its paper: 6)
//     deepseek     e4m3     fp32    fp32         bf16       bf16  bf16    15      15
//     nanotron     e4m3     bf16    fp32         e4m3       e4m3  e4m3    10      10
//
// Our products add in place, so bf16-fp32 needs no gradients in bf16 beside those in fp32. FP8-LM's
// paper counts 6 bytes: master weights 2, gradients 1, m 1 and v 2. It leaves out the weights in
// e4m3 (1) and the accumulated gradients (2).
//
// Only the linears of the layers multiply in fp8. The operations that read embedding, norms and
// head know no fp8, so these weights are bf16, and so are their gradients where the table says fp8,
// and their sums of gradients with FP8-LM (rest_recipe()). Every tensor in fp8, and master weights
// and moments in fp16, have a scale. The bytes above leave it out; 8_storage.h counts it.
//
// bf16 and fp16: Micikevicius et al. 2018 (arXiv 1710.03740). Transformer Engine: NVIDIA's
// documentation. FP8-LM: Peng et al. 2023 (arXiv 2310.18313), level O3. DeepSeek-V3: arXiv
// 2412.19437. nanotron: its FP8 branch, as the playbook describes it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/tensor.h"

namespace ultrascale::mixed_precision {

// The operands of the linears' products. plain: in the activations' dtype. The others: in fp8, with
// scales of the whole tensor, measured now (tensor) or in earlier steps (delayed); of each row; of
// tiles and blocks. mx and nvfp4: in blocks of 32 and 16, emulated (5_mx_blocks.h, 5_nvfp4.h).
enum class Products { plain, tensor, delayed, row, tile, mx, nvfp4 };

// What a training in nvfp4 needs (5_nvfp4.h).
struct Nvfp4Tricks {
    bool hadamard = true, stochastic = true, square = true, last_layers = true;
};

struct Recipe {
    std::string name;
    DType activations = DType::fp32;  // of all operations besides fp8 products
    Products products = Products::plain;
    DType weights = DType::fp32;
    std::optional<DType> master, accumulated, gradients;
    DType m = DType::fp32, v = DType::fp32;
    // Gradients are too small for fp16, so the loss is multiplied (4_loss_scale.h).
    bool loss_scale = false;
    bool stochastic = false;  // the update rounds stochastically (8_stochastic_rounding.h)
    double book_bytes = 0;    // bytes of a parameter in the playbook's table; 0: not in it
    bool plain = false;       // the linears are 2_plain_fp8_linear.h's, with nothing fused
    bool round_up = true;     // mx: scales are such that nothing saturates (5_mx_blocks.h)
    Nvfp4Tricks nvfp4 = {};

    // Whether the linears multiply numbers of few bits; `blocks`: in bf16, which emulates them.
    bool fp8() const { return products != Products::plain; }
    bool blocks() const { return products == Products::mx || products == Products::nvfp4; }
    // Whether their linears only multiply: nothing is fused, or kept in 8 bits.
    bool only_multiplies() const { return plain || blocks(); }
    // The dtype of the sum to which the micro-batches add.
    DType sum() const { return accumulated ? *accumulated : *gradients; }
    // The dtype of the gradients that the optimizer reads.
    DType read() const { return gradients ? *gradients : *accumulated; }
    // The recipe of parameters that other operations than fp8 products read.
    Recipe rest_recipe() const;
};

inline bool is_fp8(DType dtype) { return dtype == DType::e4m3 || dtype == DType::e5m2; }

inline Recipe Recipe::rest_recipe() const {
    Recipe rest = *this;
    rest.products = Products::plain;
    rest.weights = activations;
    if (!master && weights == DType::fp32 && activations != DType::fp32) rest.master = DType::fp32;
    if (gradients && is_fp8(*gradients)) rest.gradients = activations;
    // An operation on bf16 can add only to gradients in bf16 or fp32.
    if (accumulated == DType::fp16 && activations == DType::bf16) rest.accumulated.reset();
    return rest;
}

// Returns the bytes of one parameter of a linear, without scales.
inline int64_t bytes_per_parameter(const Recipe& r) {
    int64_t bytes = dtype_bytes(r.weights) + dtype_bytes(r.m) + dtype_bytes(r.v);
    for (const auto& tensor : {r.master, r.accumulated, r.gradients})
        if (tensor) bytes += dtype_bytes(*tensor);
    return bytes;
}

// A recipe like bf16, with other products.
inline Recipe with_products(const char* name, Products products, bool plain = false) {
    return {.name = name,
            .activations = DType::bf16,
            .products = products,
            .weights = DType::bf16,
            .master = DType::fp32,
            .gradients = DType::bf16,
            .plain = plain};
}

// All recipes that --recipe knows. The first four multiply without fp8; "row" is torchao's rowwise
// recipe; "plain-fp8" computes the same bits as "tensor". (NVIDIA adds up nvfp4's gradients in
// fp32.)
inline const std::vector<Recipe>& all_recipes() {
    using enum DType;
    static const std::vector<Recipe> recipes = {{.name = "fp32",
                                                 .activations = fp32,
                                                 .weights = fp32,
                                                 .gradients = fp32,
                                                 .m = fp32,
                                                 .v = fp32},
                                                {.name = "fp16",
                                                 .activations = fp16,
                                                 .weights = fp16,
                                                 .master = fp32,
                                                 .accumulated = fp32,
                                                 .m = fp32,
                                                 .v = fp32,
                                                 .loss_scale = true},
                                                {.name = "bf16",
                                                 .activations = bf16,
                                                 .weights = bf16,
                                                 .master = fp32,
                                                 .gradients = bf16,
                                                 .m = fp32,
                                                 .v = fp32,
                                                 .book_bytes = 16},
                                                {.name = "bf16-fp32",
                                                 .activations = bf16,
                                                 .weights = bf16,
                                                 .master = fp32,
                                                 .accumulated = fp32,
                                                 .m = fp32,
                                                 .v = fp32,
                                                 .book_bytes = 20},
                                                {.name = "te",
                                                 .activations = bf16,
                                                 .products = Products::delayed,
                                                 .weights = fp32,
                                                 .gradients = fp32,
                                                 .m = fp32,
                                                 .v = fp32,
                                                 .book_bytes = 16},
                                                {.name = "fp8-lm",
                                                 .activations = bf16,
                                                 .products = Products::tensor,
                                                 .weights = e4m3,
                                                 .master = fp16,
                                                 .accumulated = fp16,
                                                 .gradients = e4m3,
                                                 .m = e4m3,
                                                 .v = fp16,
                                                 .loss_scale = true,
                                                 .book_bytes = 9},
                                                {.name = "deepseek",
                                                 .activations = bf16,
                                                 .products = Products::tile,
                                                 .weights = e4m3,
                                                 .master = fp32,
                                                 .accumulated = fp32,
                                                 .gradients = bf16,
                                                 .m = bf16,
                                                 .v = bf16,
                                                 .book_bytes = 15},
                                                {.name = "nanotron",
                                                 .activations = bf16,
                                                 .products = Products::tensor,
                                                 .weights = e4m3,
                                                 .master = bf16,
                                                 .accumulated = fp32,
                                                 .gradients = e4m3,
                                                 .m = e4m3,
                                                 .v = e4m3,
                                                 .book_bytes = 10},
                                                with_products("plain-fp8", Products::tensor, true),
                                                with_products("tensor", Products::tensor),
                                                with_products("row", Products::row),
                                                with_products("mxfp8", Products::mx),
                                                with_products("nvfp4", Products::nvfp4)};
    return recipes;
}

// Returns nullptr if there is no recipe of this name.
inline const Recipe* find_recipe(const std::string& name) {
    for (const Recipe& recipe : all_recipes())
        if (recipe.name == name) return &recipe;
    return nullptr;
}

// Whether a recipe changes only the products.
inline bool is_of_products(const Recipe& r) {
    return r.weights == r.activations && !r.loss_scale && r.m == DType::fp32 &&
           r.v == DType::fp32 && !r.only_multiplies();
}
// Returns a recipe that changes only the products: weights and states are those of --dtype, so
// chapter 09 can shard them. Throws UserError if there is none of this name, or if it changes more.
inline const Recipe& recipe_of_products(const std::string& name) {
    const Recipe* found = find_recipe(name);
    if (!found) {
        std::string names;
        for (const Recipe& r : all_recipes())
            if (is_of_products(r)) names += (names.empty() ? "" : ", ") + r.name;
        user_error("--recipe {}: there is no such recipe; there are {}", name, names);
    }
    if (found->only_multiplies())
        user_error("--recipe {}: only 08_mixed_precision has it; tensor and row multiply in fp8",
                   name);
    if (!is_of_products(*found))
        user_error(
            "--recipe {}: 08_mixed_precision keeps its weights and states in formats that shards "
            "do not have here; tensor and row multiply in fp8",
            name);
    return *found;
}
// Throws UserError if matrices with sides of these sizes cannot be multiplied in fp8.
inline void check_sizes(const Recipe& recipe, std::initializer_list<int64_t> sizes) {
    for (const int64_t size : sizes)
        if (size % 16 != 0)
            user_error(
                "--recipe {}: a rank's products in fp8 have {} rows or columns, which must be a "
                "multiple of 16",
                recipe.name, size);
}

// Names the formats of a training's states, for a checkpoint: "fp16 --without master".
inline std::string formats_of_states(const Recipe& r) {
    return r.name + (find_recipe(r.name)->master && !r.master ? " --without master" : "");
}

// The layers at the end whose linears stay in bf16: in nvfp4 15 %, rounded up.
inline int64_t layers_in_bf16(const Recipe& r, int64_t layers) {
    const bool some = r.products == Products::nvfp4 && r.nvfp4.last_layers;
    return some ? (15 * layers + 99) / 100 : 0;
}

// Whether backward draws random numbers, others in each step.
inline bool draws_gradients(const Recipe& r) {
    return r.products == Products::nvfp4 && r.nvfp4.stochastic;
}

// Leaves out one of the tricks on which mixed precision rests (--without).
//   master        the weights in 16 bits are updated themselves
//   scaling       the loss is not scaled
//   accumulation  gradients are added up in 16 bits
//   up            scales of mxfp8 are OCP's, and large numbers saturate
//   hadamard, stochastic, square, last-layers       of nvfp4
// Returns false if the recipe does not use the trick.
inline bool leave_out(Recipe& recipe, const std::string& trick) {
    if (trick == "master" && recipe.master && !is_fp8(recipe.weights)) {
        recipe.master.reset();
    } else if (trick == "scaling" && recipe.loss_scale) {
        recipe.loss_scale = false;
    } else if (trick == "accumulation" && recipe.accumulated && !recipe.fp8()) {
        recipe.accumulated.reset(), recipe.gradients = recipe.activations;
    } else if (trick == "up" && recipe.products == Products::mx && recipe.round_up) {
        recipe.round_up = false;
    } else {
        bool* const has = trick == "hadamard"      ? &recipe.nvfp4.hadamard
                          : trick == "stochastic"  ? &recipe.nvfp4.stochastic
                          : trick == "square"      ? &recipe.nvfp4.square
                          : trick == "last-layers" ? &recipe.nvfp4.last_layers
                                                   : nullptr;
        if (recipe.products != Products::nvfp4 || !has) return false;
        return std::exchange(*has, false);
    }
    recipe.book_bytes = 0;  // the table has it with all tricks
    return true;
}

}  // namespace ultrascale::mixed_precision
