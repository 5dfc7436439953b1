// How a linear rounds one of its matrices, x, W or dy, in each step. The plain linear knows one
// current scale; here scales can also be remembered (5_delayed_scales.h) or belong to parts of a
// matrix (5_tiles.h), and one pass writes both orientations of a matrix if both are needed.
//
// A current scale of the whole tensor is measured once a step: code that rounds the tensor again
// passes the scale as `known`, and so reads the tensor once instead of twice.
#pragma once

#include "5_delayed_scales.h"
#include "5_mx_blocks.h"
#include "5_nvfp4.h"
#include "5_tiles.h"
#include "precision_options.h"

namespace ultrascale::mixed_precision {

// The state that a model's linears share.
struct Fp8Shared {
    explicit Fp8Shared(const PrecisionOptions& options)
        : options(options), histories(options.history, options.margin) {}
    virtual ~Fp8Shared() = default;
    const PrecisionOptions options;
    AmaxHistories histories;
    bool observes = true;  // false in validation, whose magnitudes do not enter the history

    Products products() const { return options.recipe.products; }
    ops::ScaleGroup tokens() const { return group_of_tokens(products()); }
    ops::ScaleGroup weights() const { return group_of_weights(products()); }
    bool delayed() const { return products() == Products::delayed; }
    // Whether x transposed has the same numbers; otherwise it is rounded with scales of its own.
    bool one_scale() const { return tokens() == ops::ScaleGroup::tensor; }
    // Whether that scale is measured, once in a step; otherwise it is remembered.
    bool measures_once() const { return one_scale() && !delayed(); }

    // Makes a linear of a recipe whose numbers are in blocks.
    virtual std::unique_ptr<Linear> linear_of_blocks(std::vector<Parameter*> rows) const {
        const Recipe& r = options.recipe;
        if (r.products == Products::nvfp4)
            return std::make_unique<Nvfp4Linear>(std::move(rows), r.nvfp4, options.seed);
        return std::make_unique<MxLinear>(std::move(rows), options.gradient_format, r.round_up);
    }
    // y = x W^T (+ residual)
    virtual void multiply(Tensor y, const ops::Quantised& x, const ops::Quantised& w,
                          const Tensor& residual) {
        ops::matmul_fp8(y, x, w, {tokens(), weights(), options.fast_forward()}, residual);
    }
};

// Both orientations of a matrix; one may be empty.
struct RowsAndColumns {
    ops::Quantised rows, columns;
};

class Rounding {
public:
    // `group`: which part of the matrix has a scale of its own.
    Rounding(Fp8Shared& shared, DType dtype, ops::ScaleGroup group)
        : shared_(shared), dtype_(dtype), group_(group) {
        if (shared.delayed()) history_ = shared.histories.add(dtype);
    }

    struct Wanted {
        bool rows = true, columns = false;
        bool observes = true;  // the step's history takes its amax from this use
        Memory columns_are = Memory::workspace;
        Tensor known = {};  // the scale, if it has been measured
    };
    RowsAndColumns both(const Tensor& x, const Wanted& wanted) const {
        RowsAndColumns result;
        if (wanted.rows) result.rows = empty(x.rows(), x.cols(), Memory::workspace, wanted.known);
        if (wanted.columns)
            result.columns = empty(x.cols(), x.rows(), wanted.columns_are, wanted.known);
        ops::quantise(result.rows, result.columns, x, scaling(wanted.known),
                      wanted.observes ? amax() : Tensor());
        return result;
    }
    ops::Quantised rows(const Tensor& x, bool observes = true) const {
        return both(x, {.observes = observes}).rows;
    }
    ops::Quantised columns(const Tensor& x, const Tensor& known = {}) const {
        return both(x, {.rows = false, .columns = true, .observes = false, .known = known}).columns;
    }

    // ---- for parts that round by themselves ----
    ops::Scaling scaling(const Tensor& known = {}) const {
        return {.group = group_,
                .powers_of_two = shared_.options.powers_of_two,
                .given = known || (shared_.delayed() && !shared_.histories.is_empty())};
    }
    // Allocates such a matrix, with the scale that is known or remembered, if there is one.
    ops::Quantised empty(int64_t r, int64_t c, Memory category, const Tensor& known = {}) const {
        if (!scaling(known).given) return ops::empty_quantised(r, c, dtype_, group_, category);
        return {Tensor::empty({r, c}, dtype_, category),
                known ? known : shared_.histories.scale(history_)};
    }
    // The place for its largest magnitude; empty if nobody needs it.
    Tensor amax() const { return shared_.delayed() ? shared_.histories.amax(history_) : Tensor(); }
    DType dtype() const { return dtype_; }

private:
    Fp8Shared& shared_;
    DType dtype_;
    ops::ScaleGroup group_;
    size_t history_ = 0;
};

}  // namespace ultrascale::mixed_precision
