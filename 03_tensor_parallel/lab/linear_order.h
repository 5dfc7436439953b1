// --demo linear, second part: two linears with an activation function between them, Y = f(X A) B,
// as a feed-forward has them, split in both orders. X is (rows, K), A (K, F), B (F, K).
//
//     column, then row                          row, then column
//     H_r = f(X A_r)     columns of H           S_r = X_r A_r        a summand of X A
//     Y_r = H_r B_r      a summand of Y         S   = all-reduce     (rows, F)
//     Y   = all-reduce   (rows, K)              Y_r = f(S) B_r       columns of Y
//                                               Y   = all-gather     (rows, K)
//
// f works element by element, so it can be computed of a part of the columns, but not of a summand:
// f(a + b) is not f(a) + f(b). So the second order has to add up between the linears, where rows
// are widest, and every rank then computes f of all F features instead of F / n. With n ranks and
// F = 4 K it sends, forward as backward,
//
//     (2 * 4 K + K) / (2 K) = 4.5 times as much,     in two calls instead of one.
//
// Shoeybi et al. 2019, Megatron-LM, section 3.
#pragma once

#include "linear_demo.h"

namespace ultrascale::tensor_parallel {

// Elements that a rank sends for one row in one pass, by the formulas of comm.h.
inline double sent_by_column_then_row(double n, double K) { return 2 * (n - 1) / n * K; }
inline double sent_by_row_then_column(double n, double K, double F) {
    return (n - 1) / n * (2 * F + K);
}

namespace linear_demo {

inline Matrix activated(Matrix m) {
    for (float& x : m.values) x = std::max(x, 0.0f);
    return m;
}
inline Matrix times(const Matrix& x, const Matrix& w) {
    return Matrix::of(product(x.on_device(), w.on_device()));
}
// The ranks' columns side by side, on every rank.
inline Matrix gathered_columns(const Communicator& ranks, const Matrix& mine) {
    const int64_t n = ranks.size();
    const Tensor all = empty(n * mine.rows, mine.cols);
    ranks.all_gather(all, mine.on_device());
    const Matrix pieces = Matrix::of(all);
    Matrix side{mine.rows, n * mine.cols, {}};
    for (int64_t i = 0; i < mine.rows; ++i)
        for (int64_t r = 0; r < n; ++r)
            for (int64_t j = 0; j < mine.cols; ++j)
                side.values.push_back(pieces.at(r * mine.rows + i, j));
    return side;
}
inline Matrix summed(const Communicator& ranks, const Matrix& mine) {
    const Tensor sum = mine.on_device();
    ranks.all_reduce(sum);
    return Matrix::of(sum);
}

}  // namespace linear_demo

// All ranks call it. Returns false if any rank's result is wrong.
inline bool demo_linear_order(const Communicator& ranks) {
    using namespace linear_demo;
    const int64_t n = ranks.size(), r = ranks.rank(), part = std::max<int64_t>(1, 4 / n),
                  K = n * part, F = n == 1 || K > 4 ? K : 2 * K, wide = F / n, rows = 2;
    const Range my_K{r * part, (r + 1) * part}, my_F{r * wide, (r + 1) * wide}, all_K{0, K},
        all_F{0, F}, all_rows{0, rows};
    Matrix X{rows, K, {}}, A{K, F, {}}, B{F, K, {}};
    for (int64_t i = 0; i < rows * K; ++i) X.values.push_back(float(i % 3 + 1));
    for (int64_t i = 0; i < K * F; ++i) A.values.push_back(float((i * i + i / F) % 5) - 2);
    for (int64_t i = 0; i < F * K; ++i) B.values.push_back(float((i * i + i / K) % 3) - 1);
    const Matrix Y = times(activated(times(X, A)), B);  // as one device computes it

    const std::string start = fmt::format("  rank {}", r), number = fmt::format("{}", r);
    const bool fits = K <= 8;  // the screen's width
    const auto show = [&](const std::vector<std::pair<std::string, Matrix>>& matrices, bool ok) {
        return print_ranks(ranks, fits ? side_by_side(start, matrices) : start + "\n", ok,
                           "f(X A) B");
    };
    const auto sent = [&](const std::function<Matrix()>& run) {
        const CommunicationCounts before = communication_counts();
        const Matrix result = run();
        return std::pair(result, difference(communication_counts(), before));
    };

    print("\ntwo linears with f(x) = max(x, 0) between them: Y = f(X A) B");
    print(
        "column, then row: H_r = f(X A_r) are columns of H, Y_r = H_r B_r is a summand; "
        "all-reduce");
    const Matrix H = activated(times(X, A.block(all_K, my_F))),
                 summand = times(H, B.block(my_F, all_K));
    const auto [y_good, good] = sent([&] { return summed(ranks, summand); });
    bool ok =
        show({{"H_" + number, H}, {"Y_" + number, summand}, {"Y, summed", y_good}}, y_good == Y);

    print("row, then column: X_r A_r is a summand; all-reduce; f(S) B_r are columns; all-gather");
    const Matrix partial_S = times(X.block(all_rows, my_K), A.block(my_K, all_F));
    Matrix S, columns;
    const auto [y_bad, bad] = sent([&] {
        S = summed(ranks, partial_S);
        columns = times(activated(S), B.block(all_F, my_K));
        return gathered_columns(ranks, columns);
    });
    ok = show({{"X_" + number + " A_" + number, partial_S},
               {"S, summed", S},
               {"Y_" + number, columns}},
              y_bad == Y) &&
         ok;

    const Matrix too_early = times(summed(ranks, activated(partial_S)), B);
    int64_t wrong = 0;
    for (size_t i = 0; i < Y.values.size(); ++i) wrong += too_early.values[i] != Y.values[i];
    const auto calls = [](const CommunicationCounts& counts) {
        int64_t all = 0;
        for (size_t k = 0; k < collective_kinds; ++k) all += counts[k].calls;
        return all;
    };
    print(
        fmt::format("f of a summand is no summand of f: without the all-reduce in the middle, {} "
                    "of {} numbers",
                    wrong, Y.values.size()));
    print("of Y are wrong. And the middle is wide. A rank sends");
    const auto line = [&](const char* order, const CommunicationCounts& counts, double elements) {
        const double formula = elements * double(rows) * 4;
        const bool equal = std::abs(bytes_sent_in_all(counts) - formula) < 1e-6;
        print(fmt::format("  {:<18} {:>4.0f} bytes in {}, by formula {:.0f}   {}", order,
                          bytes_sent_in_all(counts), format_count(calls(counts), "call"), formula,
                          equal ? "equal" : "MISMATCH"));
        ok = ok && equal;
    };
    line("column, then row", good, sent_by_column_then_row(double(n), double(K)));
    line("row, then column", bad, sent_by_row_then_column(double(n), double(K), double(F)));
    print(fmt::format("  and where F = 4 K {:.3g} times as much, forward as backward",
                      sent_by_row_then_column(2, 1, 4) / sent_by_column_then_row(2, 1)));
    return ok;
}

}  // namespace ultrascale::tensor_parallel
