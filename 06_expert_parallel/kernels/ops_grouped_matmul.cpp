// Products in groups: one matmul for each group that has rows; the trace shows these.
#include "cpu/ops_common.h"
#include "ops_experts_checks.h"

namespace ultrascale::ops {

namespace {

// Calls product(group, its first row, end) for the groups in order.
template <class Product>
void for_each_group(const Tensor& counts, int64_t R, Product&& product) {
    const int32_t* count = counts.as<int32_t>();
    int64_t begin = 0;
    for (int64_t g = 0; g < counts.numel(); ++g) {
        const int64_t end = begin + count[g];
        check(count[g] >= 0 && end <= R, "grouped_matmul: more rows in groups than there are");
        product(g, begin, end);
        begin = end;
    }
}
// Group g's matrix of w (G, out, in).
Tensor matrix(const Tensor& w, int64_t g) { return w.slice(g, g + 1).view({w.size(1), w.size(2)}); }
Tensor as_rows(const Tensor& x, const GroupSizes& n, int64_t cols) { return x.view({n.R, cols}); }

}  // namespace

void grouped_matmul(Tensor y, const Tensor& x, const Tensor& w, const Tensor& counts) {
    const GroupSizes n = group_sizes(y, x, w, counts);
    const Tensor rows = as_rows(x, n, n.in), out = as_rows(y, n, n.out);
    for_each_group(counts, n.R, [&](int64_t g, int64_t begin, int64_t end) {
        if (begin < end)
            matmul(out.slice(begin, end), rows.slice(begin, end), Transpose::no, matrix(w, g),
                   Transpose::yes);
    });
}

void grouped_matmul_backward_input(Tensor dx, const Tensor& dy, const Tensor& w,
                                   const Tensor& counts) {
    const GroupSizes n = group_sizes(dy, dx, w, counts);
    const Tensor rows = as_rows(dy, n, n.out), out = as_rows(dx, n, n.in);
    for_each_group(counts, n.R, [&](int64_t g, int64_t begin, int64_t end) {
        if (begin < end)
            matmul(out.slice(begin, end), rows.slice(begin, end), Transpose::no, matrix(w, g),
                   Transpose::no);
    });
}

void grouped_matmul_backward_weight(Tensor dw, const Tensor& dy, const Tensor& x,
                                    const Tensor& counts, const Tensor& addend) {
    const GroupSizes n = group_sizes(dy, x, dw, counts);
    check(!addend || (addend.numel() == dw.numel() && addend.dtype() == dw.dtype()),
          "grouped_matmul_backward_weight: addend is (G, out, in), like dw");
    const Tensor gradients = as_rows(dy, n, n.out), rows = as_rows(x, n, n.in);
    const Tensor add = addend ? addend.view(dw.shape()) : addend;
    for_each_group(counts, n.R, [&](int64_t g, int64_t begin, int64_t end) {
        // Without rows the gradient is the addend, or zero: an empty sum.
        matmul(matrix(dw, g), gradients.slice(begin, end), Transpose::yes, rows.slice(begin, end),
               Transpose::no, add ? matrix(add, g) : add);
    });
}

}  // namespace ultrascale::ops
