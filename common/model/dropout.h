// Dropout on the residual stream (after the embedding, and on the outputs of attention and
// feed-forward), with random numbers that agree across ranks.
//
// Tensor-parallel ranks hold the same residual stream and must drop the same elements, or their
// copies diverge. Under sequence parallelism ranks hold different tokens and should draw different
// masks, and so should data-parallel ranks. Recomputation must repeat the mask of the first
// forward. A stateful generator needs a state for each of these cases (Megatron-LM keeps two). A
// counter-based generator needs none: an element's mask is a function of (seed, place in the model,
// number of the element in the whole run), no matter which rank computes it and how often:
//
//     number = (sample T + token) h + feature      the same on one device and on any grid of ranks
//
// 03_tensor_parallel's --same-seed off gives every rank a seed of its own, to show what goes wrong.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "activation.h"
#include "core/ops_gpt.h"
#include "llama.h"

namespace ultrascale {

// Consecutive rows of the residual stream on this rank, which hold consecutive tokens of the
// micro-batch.
struct TokenRange {
    int64_t first_row, first_token, count;
};

// Adds a row and its token to the last range, or begins a new range.
inline void add_token(std::vector<TokenRange>& ranges, int64_t row, int64_t token) {
    if (!ranges.empty() && ranges.back().first_token + ranges.back().count == token)
        ++ranges.back().count;
    else
        ranges.push_back({row, token, 1});
}

// The tokens that a rank's `rows` rows hold. Empty: all tokens of the micro-batch, in order.
using TokensOfRows = std::function<std::vector<TokenRange>(int64_t rows)>;

struct Dropout {
    float p = 0;
    uint64_t seed = 0;
    TokensOfRows tokens = {};
    bool keeps_masks = false;  // in `saved`, for backward; false: it draws them again

    // y = dropout(x) (+ addend).
    void forward(Tensor y, const Tensor& x, const std::string& path, Saved& saved,
                 const Context& context, const Tensor& addend = {}) const {
        const bool keeps = keeps_masks && saved.enabled();
        Tensor mask = keeps ? activation({x.rows(), x.cols()}, DType::e4m3) : Tensor();
        apply(y, x, mask, path, context, addend);
        if (keeps) saved.keep("mask", std::move(mask));
    }
    // Returns the gradient of x. (Not in place: dy is the residual's gradient, too.)
    Tensor backward(const Tensor& dy, const std::string& path, Saved& saved,
                    const Context& context) const {
        Tensor dx = activation_like(dy);
        if (keeps_masks)
            ops::dropout_by_mask(dx, saved.take("mask"), dy, p);
        else
            apply(dx, dy, {}, path, context);
        return dx;
    }

private:
    void apply(Tensor y, const Tensor& x, Tensor mask, const std::string& path,
               const Context& context, const Tensor& addend = {}) const {
        const Random random(seed, "dropout " + path);
        const int64_t rows = x.rows(), h = x.cols();
        const auto matrix = [&](const Tensor& t) { return t ? t.view({rows, h}) : Tensor(); };
        const Tensor to = matrix(y), from = matrix(x), add = matrix(addend), keeps = matrix(mask);
        const auto first = uint64_t(context.batch.first_sample * context.batch.sample_length());
        const auto part = [&](int64_t row, int64_t token, int64_t count) {
            const auto slice = [&](const Tensor& t) {
                return t ? t.slice(row, row + count) : Tensor();
            };
            ops::dropout_keeping_mask(slice(to), slice(keeps), slice(from), p, random,
                                      (first + uint64_t(token)) * uint64_t(h), slice(add));
        };
        if (!tokens) return part(0, 0, rows);
        for (const TokenRange& range : tokens(rows))
            part(range.first_row, range.first_token, range.count);
    }
};

// y = residual + dropout(inner(x)).
class DropoutLinear : public Linear {
public:
    DropoutLinear(std::unique_ptr<Linear> inner, const Dropout& dropout)
        : Linear(inner->parameters()),
          inner_(std::move(inner)),
          dropout_(dropout),
          path_(parameters_.front()->name) {}

    Tensor forward(const Tensor& x, Saved& saved, Context& context,
                   const Tensor& residual) override {
        if (!context.drops()) return inner_->forward(x, saved, context, residual);
        Tensor y = inner_->forward(x, saved, context, {});
        dropout_.forward(y, y, path_, saved, context, residual);
        return y;
    }
    Tensor backward_input(const Tensor& dy, Saved& saved, Context& context) override {
        return inner_->backward_input(dropout_.backward(dy, path_, saved, context), saved, context);
    }
    void backward_weight(Saved& saved, Context& context) override {
        inner_->backward_weight(saved, context);
    }

private:
    std::unique_ptr<Linear> inner_;
    Dropout dropout_;
    std::string path_;
};

class DropoutEmbedding : public Embedding {
public:
    DropoutEmbedding(std::unique_ptr<Embedding> inner, const Dropout& dropout)
        : Embedding(nullptr), inner_(std::move(inner)), dropout_(dropout) {}

    Tensor forward(Saved& saved, Context& context) override {
        Tensor x = inner_->forward(saved, context);
        if (context.drops()) dropout_.forward(x, x, "embedding", saved, context);
        return x;
    }
    void backward_input(const Tensor& dy, Saved& saved, Context& context) override {
        inner_->backward_input(dropout_.backward(dy, "embedding", saved, context), saved, context);
    }
    void backward_weight(Saved& saved, Context& context) override {
        inner_->backward_weight(saved, context);
    }

private:
    std::unique_ptr<Embedding> inner_;
    Dropout dropout_;
};

// Wraps every part whose output goes to the residual stream in dropout.
inline void add_dropout(ModuleFactories& factories, const Dropout& dropout) {
    if (dropout.p == 0) return;
    factories.linear = [dropout, linear = factories.linear](
                           ParameterList& list, const ModuleFactories& factories,
                           const ModulePath& path, LinearRole role,
                           const ModuleFactories::LinearShape& shape) -> std::unique_ptr<Linear> {
        std::unique_ptr<Linear> inner = linear(list, factories, path, role, shape);
        if (role == LinearRole::column) return inner;
        return std::make_unique<DropoutLinear>(std::move(inner), dropout);
    };
    factories.embedding = [dropout, embedding = factories.embedding](ParameterList& list) {
        return std::make_unique<DropoutEmbedding>(embedding(list), dropout);
    };
}

}  // namespace ultrascale
