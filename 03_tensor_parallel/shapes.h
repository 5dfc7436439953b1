// The playbook's table of shapes in each region of a layer, read from the tensors that really ran.
#pragma once

#include <string>
#include <vector>

#include "report.h"
#include "tensor.h"

namespace ultrascale {

class ShapeTable {
public:
    // Of each region and tensor the first is kept. whole_width: the columns that it has on one device.
    void note(const std::string& region, const char* what, const Tensor& tensor, int64_t whole_width) {
        for (const Row& row : rows_)
            if (row.region == region && row.what == what) return;
        rows_.push_back({region, what, {tensor.rows(), tensor.cols()}, whole_width});
    }

    // tokens: of a micro-batch, B T.
    void print_table(int64_t tokens, int ranks) const {
        print(fmt::format("\nshapes on rank 0 in forward, as they ran (b s = {} tokens, tp {})", tokens, ranks));
        print(fmt::format("  {:<24} {:<22} {:>16}   {:<14} {}", "region", "tensor", "shape", "tokens", "features"));
        std::string before;
        for (const Row& row : rows_) {
            const auto share = [](int64_t part, int64_t whole) {
                return part == whole ? std::string("full") : fmt::format("1/{:.4g}", double(whole) / double(part));
            };
            print(fmt::format("  {:<24} {:<22} {:>16}   {:<14} {}", row.region == before ? "" : row.region, row.what, to_string(row.shape),
                              share(row.shape[0], tokens), share(row.shape[1], row.whole_width)));
            before = row.region;
        }
    }

private:
    struct Row {
        std::string region, what;
        Shape shape;
        int64_t whole_width;
    };
    std::vector<Row> rows_;
};

}  // namespace ultrascale
