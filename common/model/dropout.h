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
inline std::vector<TokenRange> ranges_of(const TokensOfRows& tokens, int64_t rows) {
    return tokens ? tokens(rows) : std::vector<TokenRange>{{0, 0, rows}};
}

struct Dropout {
    float p = 0;
    uint64_t seed = 0;
    TokensOfRows tokens = {};
    bool keeps_masks = false;  // in `saved`, for backward; false: it draws them again

    // y = dropout(x) (+ addend).
    void forward(Tensor y, const Tensor& x, const std::string& path, Saved& saved,
                 const Context& context, const Tensor& addend = {}) const {
        const auto matrix = [&](const Tensor& t) { return t ? t.view({x.rows(), x.cols()}) : t; };
        const Tensor to = matrix(y), from = matrix(x), add = matrix(addend);
        const bool keeps = keeps_masks && saved.enabled();
        const Tensor mask = keeps ? activation(to.shape(), DType::e4m3) : Tensor();
        for_each_range(x, path, context, [&](Range rows, const Random& random, uint64_t first) {
            const auto part = [&](const Tensor& t) {
                return t ? t.slice(rows.begin, rows.end) : t;
            };
            if (!keeps) return ops::dropout(part(to), part(from), p, random, first, part(add));
            ops::dropout_mask(part(mask), p, random, first);
            ops::dropout_by_mask(part(to), part(mask), part(from), p, part(add));
        });
        if (keeps) saved.keep("mask", mask);
    }
    // Returns the gradient of x. (Not in place: dy is the residual's gradient, too.)
    Tensor backward(const Tensor& dy, const std::string& path, Saved& saved,
                    const Context& context) const {
        Tensor dx = activation_like(dy);
        if (keeps_masks) {
            ops::dropout_by_mask(dx, saved.take("mask"), dy, p);
            return dx;
        }
        const Tensor to = dx.view({dy.rows(), dy.cols()}), from = dy.view(to.shape());
        for_each_range(dy, path, context, [&](Range rows, const Random& random, uint64_t first) {
            ops::dropout(to.slice(rows.begin, rows.end), from.slice(rows.begin, rows.end), p,
                         random, first);
        });
        return dx;
    }

private:
    // Calls part(rows of x, their random numbers: stream and first) for tokens that follow each
    // other.
    template <class Part>
    void for_each_range(const Tensor& x, const std::string& path, const Context& context,
                        Part part) const {
        const Random random(seed, "dropout " + path);
        const auto first = uint64_t(context.batch.first_sample * context.batch.sample_length());
        for (const TokenRange& t : ranges_of(tokens, x.rows()))
            part(Range{t.first_row, t.first_row + t.count}, random,
                 (first + uint64_t(t.first_token)) * uint64_t(x.cols()));
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
