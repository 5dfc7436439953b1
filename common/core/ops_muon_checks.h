// Shared by both backends' ops_muon: each operation's checks, and the span that it opens. Private
// to common/cpu and common/cuda.
#pragma once

#include "ops_list.h"
#include "ops_muon.h"
#include "trace.h"

namespace ultrascale::ops {

inline OpSpan nesterov_span(const Tensor& direction, const Tensor& momentum,
                            const Tensor& gradient) {
    check_sizes("nesterov: sizes differ", {direction, momentum, gradient});
    return OpSpan("nesterov", 7.0 * double(direction.numel()),
                  double(direction.bytes() + 2 * momentum.bytes() + gradient.bytes()));
}
inline OpSpan divide_by_norm_span(const Tensor& x, const Tensor& from) {
    check_sizes("divide_by_norm: sizes differ", {x, from});
    return OpSpan("divide_by_norm", double(x.numel()), double(x.bytes() + from.bytes()));
}
inline OpSpan polynomial_span(const Tensor& gram, const Tensor& squared) {
    check(gram.cols() == gram.rows(), "polynomial: gram is square");
    check_sizes("polynomial: sizes differ", {gram, squared});
    return OpSpan("polynomial", 3.0 * double(gram.numel()),
                  double(2 * gram.bytes() + squared.bytes()));
}
inline OpSpan move_weights_span(const Tensor& value, const Tensor& master,
                                const Tensor& direction) {
    check_sizes("move_weights: sizes differ", {value, master, direction});
    const int64_t written = value.data() == master.data() ? 0 : master.bytes();
    return OpSpan("move_weights", 3.0 * double(value.numel()),
                  double(value.bytes() + master.bytes() + direction.bytes() + written));
}

}  // namespace ultrascale::ops
