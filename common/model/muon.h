// Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon): the update of a matrix is
// its momentum, orthogonalized: of M = U S V^T only U V^T is left. So a step moves the matrix
// equally far in all directions, and not mostly in the few that dominate the gradient.
//
//     momentum += (1 - mu) (gradient - momentum)            fp32, mu = 0.95
//     X = gradient + mu (momentum - gradient)               (Nesterov's)
//     X /= |X|  (Frobenius)                                 now no singular value s is above 1
//     five times:  G = X X^T,  X = (a I + b G + c G^2) X    each s becomes a s + b s^3 + c s^5
//     weight -= lr (0.2 sqrt(max(rows, columns)) X + weight_decay weight)
//
// The polynomial (Newton-Schulz, with a, b, c chosen to be steep at 0) drives all singular values
// above 0.002 into about [0.7, 1.2] without computing them. (A tall X is multiplied by its X^T X.)
// For m = min(rows, columns), n = max(rows, columns) the five steps cost 5 (4 m^2 n + 2 m^3) FLOPs.
// The factor 0.2 sqrt(n) gives an update the size of AdamW's, so that the same learning rate serves
// both (Liu et al. 2025, arXiv 2502.16982).
//
// A matrix has one state, the momentum, instead of AdamW's two: 4 bytes less for each number. What
// is not a layer's matrix (embedding, head, norms, biases) is updated by AdamW.
//
// Each number of X depends on the whole matrix. So unlike AdamW, Muon cannot update a piece of a
// matrix alone (02_zero/7_muon.h).
#pragma once

#include "optimizer.h"

namespace ultrascale {

class Muon : public AdamW {
public:
    // An item that is a layer's matrix must have all of it.
    Muon(std::vector<Item> items, const OptimizerOptions& options);
    void step(double lr, const Tensor& squared_norm) override;
    // "momentum.<parameter>" and, for 16-bit values, "master.<parameter>"; and AdamW's.
    std::vector<TensorPart> states() override;

    static bool updates(const Parameter& parameter);        // or does AdamW?
    static int64_t flops(const Shape& matrix);              // of the five steps
    static int64_t numel(const ParameterList& parameters);  // of those that it updates

private:
    std::vector<Item> matrices_;
    std::vector<Tensor> momentum_, master_;  // one per matrix
};

// Returns U V^T, about, of the matrix X (rows, columns) = U S V^T: X is divided by its Frobenius
// norm, whose square is `squared_norm` (1) fp64, then come the five steps. The products have
// `dtype`.
Tensor orthogonalized(const Tensor& x, const Tensor& squared_norm, DType dtype);

}  // namespace ultrascale
