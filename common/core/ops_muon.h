// Muon's element-wise passes (model/muon.h); between them are matrix products. The conventions are
// those of ops.h.
#pragma once

#include "ops.h"

namespace ultrascale::ops {

// momentum (fp32) += (1 - beta) (g - momentum), then direction (fp32) = g + beta (momentum - g),
// where g = gradient * min(1, max_norm / (sqrt(squared_norm) + 1e-6)), or the gradient itself if
// max_norm is 0. squared_norm (1) fp64 stays on the device. The three have n elements.
void nesterov(Tensor direction, Tensor momentum, const Tensor& gradient, float beta,
              const Tensor& squared_norm, float max_norm);
// x = from / max(sqrt(squared_norm), 1e-7), rounded to x's dtype; from is fp32, squared_norm (1)
// fp64 on the device.
void divide_by_norm(Tensor x, const Tensor& from, const Tensor& squared_norm);
// gram (m, m) = a I + b gram + c squared; squared (m, m) has gram's dtype.
void polynomial(Tensor gram, const Tensor& squared, float a, float b, float c);
// master (fp32) = keep * master - step * direction; value receives it, rounded, and may be master.
// direction has value's dtype.
void move_weights(Tensor value, Tensor master, const Tensor& direction, float keep, float step);

}  // namespace ultrascale::ops
