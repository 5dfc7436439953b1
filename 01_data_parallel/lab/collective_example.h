// How --demo collectives prints a collective: each rank's tensor before and after it, and whether
// the result is the expected one.
#pragma once

#include <fmt/format.h>

#include <string>
#include <vector>

#include "comm/comm.h"
#include "lab/report/report.h"

namespace ultrascale::data_parallel {

// A table with a line per rank, from each rank's own cells. All ranks call it; rank 0 prints.
inline void print_by_rank(const Communicator& world, const std::vector<std::string>& heads,
                          const std::vector<std::string>& cells) {
    std::vector<std::string> lines(size_t(world.size()) + 1, "        ");
    for (size_t r = 1; r < lines.size(); ++r) lines[r] = fmt::format("  rank {}", r - 1);
    std::vector<std::string> column(lines.size());
    for (size_t c = 0; c <= cells.size(); ++c) {
        size_t width = 0;
        for (size_t l = 0; l < lines.size(); ++l)
            width = std::max(width, (lines[l] += column[l]).size());
        if (c == cells.size()) break;
        for (std::string& line : lines) line.resize(width + 3, ' ');
        column = world.gather_strings(cells[c]);
        column.insert(column.begin(), heads[c]);
        column.resize(lines.size());
    }
    for (std::string& line : lines)
        if (line.erase(line.find_last_not_of(' ') + 1) != "") print(line);
}

// One collective: remembers the rank's tensor before the call, prints it next to the tensor after
// it, and checks the result.
class CollectiveExample {
public:
    // Prints the values in groups of `slice` elements, one rank's share each. Prints an empty
    // tensor as "-".
    CollectiveExample(const Communicator& world, const std::string& title, const Tensor& before,
                      size_t slice)
        : world_(world), slice_(slice), before_(in_words(before)) {
        print("\n" + title);
    }
    bool finish(const Tensor& after, const std::vector<double>& expected) const {
        const bool ok = !after || after.to_host<double>() == expected;
        print_by_rank(
            world_, {"before", "after", ""},
            {before_, in_words(after), ok ? "ok" : "WRONG: expected " + in_words(expected)});
        return ok;
    }

private:
    std::string in_words(const Tensor& x) const { return x ? in_words(x.to_host<double>()) : "-"; }
    std::string in_words(const std::vector<double>& values) const {
        std::string text;
        const size_t slices = values.size() / slice_;
        for (size_t s = 0; s < slices; ++s) {
            if (slices > 8 && s == 3) text += " | ...", s = slices - 1;
            for (size_t i = 0; i < slice_; ++i)
                text += fmt::format("{}{:g}",
                                    i > 0   ? " "
                                    : s > 0 ? " | "
                                            : "",
                                    values[s * slice_ + i]);
        }
        return "[" + text + "]";
    }

    const Communicator& world_;
    size_t slice_;
    std::string before_;
};

}  // namespace ultrascale::data_parallel
