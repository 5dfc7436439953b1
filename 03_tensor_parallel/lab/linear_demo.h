// --demo linear: the two ways to split Y = X W, on matrices small enough to print. W is drawn as in
// the playbook, (inputs, outputs).
//
//     by columns    X broadcast to all,       Y_r = X W_r    is a part of Y's columns:   all-gather
//     by rows       X scattered by columns,   X_r W_r        is a summand of Y:          all-reduce
#pragma once

#include "comm/comm.h"
#include "core/ops.h"
#include "lab/report/report.h"

namespace ultrascale::tensor_parallel {

namespace linear_demo {

// A row-major matrix on the host, for printing and checking what the devices hold.
struct Matrix {
    int64_t rows, cols;
    std::vector<float> values;

    Tensor on_device() const {
        return Tensor::from_host<float>(values, {rows, cols}, Memory::workspace);
    }
    static Matrix of(const Tensor& t) { return {t.rows(), t.cols(), t.to_host<float>()}; }
    float at(int64_t i, int64_t j) const { return values[size_t(i * cols + j)]; }
    Matrix block(Range r, Range c) const {
        Matrix part{r.size(), c.size(), {}};
        for (int64_t i = r.begin; i < r.end; ++i)
            for (int64_t j = c.begin; j < c.end; ++j) part.values.push_back(at(i, j));
        return part;
    }
    bool operator==(const Matrix&) const = default;
};

inline Tensor empty(int64_t rows, int64_t cols) {
    return Tensor::empty({rows, cols}, DType::fp32, Memory::workspace);
}

inline Tensor product(const Tensor& x, const Tensor& w) {
    Tensor y = empty(x.rows(), w.cols());
    ops::matmul(y, x, ops::Transpose::no, w, ops::Transpose::no);
    return y;
}

// Matrices side by side, their titles above them.
inline std::string side_by_side(const std::string& start,
                                const std::vector<std::pair<std::string, Matrix>>& all) {
    int64_t height = 0;
    for (const auto& [title, m] : all) height = std::max(height, m.rows);
    std::string text;
    for (int64_t i = -1; i < height; ++i) {
        std::string line = i < 0 ? start : std::string(start.size(), ' ');
        for (const auto& [title, m] : all) {
            std::string row;
            for (int64_t j = 0; i >= 0 && i < m.rows && j < m.cols; ++j)
                row += fmt::format("{:>4.0f}", m.at(i, j));
            if (!row.empty()) row = "[" + row + " ]";
            line += fmt::format("  {:<{}}", i < 0 ? title : row,
                                std::max(title.size(), size_t(4 * m.cols + 3)));
        }
        text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
    }
    return text;
}

// Prints every rank's lines, in rank order. `ok`: whether this rank's result is right. Returns
// whether all ranks' are. `product`: what Y should be.
inline bool print_ranks(const Communicator& ranks, const std::string& mine, bool ok,
                        const char* product = "X W") {
    for (const std::string& text : ranks.gather_strings((ok ? "+" : "-") + mine)) {
        print(text.substr(1, text.size() - 2));  // without the last line break
        ok = ok && text[0] == '+';
    }
    print(ok ? fmt::format("  Y is {} on every rank: ok\n", product) : "  WRONG\n");
    return ok;
}

}  // namespace linear_demo

// All ranks call it. Returns false if any rank's result is wrong.
inline bool demo_linear(const Communicator& ranks) {
    using namespace linear_demo;
    const int64_t n = ranks.size(), r = ranks.rank(), part = std::max<int64_t>(1, 4 / n),
                  K = n * part, rows = 2;
    const Range mine{r * part, (r + 1) * part}, all{0, K};
    Matrix X{rows, K, {}}, W{K, K, {}}, Y{rows, K, std::vector<float>(size_t(rows * K))};
    for (int64_t i = 0; i < rows * K; ++i) X.values.push_back(float(i % 5 + 1));
    for (int64_t i = 0; i < K * K; ++i) W.values.push_back(float((i * i + i / K) % 7) - 3);
    for (int64_t i = 0; i < rows; ++i)
        for (int64_t j = 0; j < K; ++j)
            for (int64_t k = 0; k < K; ++k) Y.values[size_t(i * K + j)] += X.at(i, k) * W.at(k, j);

    if (K <= 4) {
        print(side_by_side("  whole ", {{"X", X}, {"W", W}, {"Y = X W", Y}}));
    } else {  // three matrices do not fit side by side
        print(side_by_side("  whole ", {{"X", X}, {"Y = X W", Y}}) +
              side_by_side("        ", {{"W", W}}));
    }
    print(
        "column linear: W is split by columns, X broadcast; rank r has the columns Y_r = X W_r; "
        "all-gather");
    const Tensor x = r == 0 ? X.on_device() : empty(rows, K);
    ranks.broadcast(x, 0);
    const Matrix W_columns = W.block(all, mine);
    const Tensor y_columns = product(x, W_columns.on_device()), gathered = empty(n * rows, part);
    ranks.all_gather(gathered, y_columns);
    Matrix side{rows, K, std::vector<float>(size_t(rows * K))};  // the ranks' columns, side by side
    const Matrix pieces = Matrix::of(gathered);
    for (int64_t i = 0; i < n * rows; ++i)
        for (int64_t j = 0; j < part; ++j)
            side.values[size_t(i % rows * K + i / rows * part + j)] = pieces.at(i, j);
    const std::string start = fmt::format("  rank {}", r), number = fmt::format("{}", r);
    bool ok = print_ranks(ranks,
                          side_by_side(start, {{"X", Matrix::of(x)},
                                               {"W_" + number, W_columns},
                                               {"Y_" + number, Matrix::of(y_columns)},
                                               {"Y, gathered", side}}),
                          side == Y);

    print(
        "row linear: W is split by rows, X scattered by columns; each rank has a summand of Y; "
        "all-reduce");
    Matrix packed{
        n * rows, part, {}};  // X's column blocks, one after the other, as scatter sends them
    for (int64_t s = 0; s < n; ++s)
        for (float value : X.block({0, rows}, {s * part, (s + 1) * part}).values)
            packed.values.push_back(value);
    const Tensor x_part = empty(rows, part);
    ranks.scatter(x_part, packed.on_device(), 0);
    const Matrix W_rows = W.block(mine, all);
    const Tensor y = product(x_part, W_rows.on_device());
    const Matrix summand = Matrix::of(y);
    ranks.all_reduce(y);
    ok = print_ranks(ranks,
                     side_by_side(start, {{"X_" + number, Matrix::of(x_part)},
                                          {"W_" + number, W_rows},
                                          {"X_" + number + " W_" + number, summand},
                                          {"Y, summed", Matrix::of(y)}}),
                     Matrix::of(y) == Y) &&
         ok;
    print("A row linear after a column linear takes Y_r as its X_r:");
    print("this saves the all-gather and the scatter between them.");
    return ok;
}

}  // namespace ultrascale::tensor_parallel
