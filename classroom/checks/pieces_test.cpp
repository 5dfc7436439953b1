// Exercise 02.4: the pieces of parameters in every range of a flat tensor, element by element.
#include <gtest/gtest.h>

#include "02_zero/2_flat_layout.h"

namespace ultrascale {
using namespace ultrascale::zero;
namespace {

struct Element {
    Parameter* parameter;
    int64_t at;
};

std::string words(const FlatLayout::Piece& piece) {
    return fmt::format("{} from {} at {} .. {}", piece.parameter->name, piece.begin, piece.at.begin,
                       piece.at.end);
}

TEST(Pieces, OfEveryRange) {
    ParameterList list;
    Unit unit{.name = "unit", .parameters = {}, .index = 0};
    const auto add = [&](const char* name, int64_t rows, int64_t local_rows) {
        unit.parameters.push_back(
            list.add({.name = name, .shape = {rows, 3}, .slice = {{0, local_rows}, {0, 3}}}));
    };
    add("norm", 1, 1), add("q", 6, 3), add("o", 5, 5);
    const Communicator& ranks = Communicator::world();
    const Mesh mesh(ranks, {{"dp", ranks.size()}});
    const FlatLayout layout({&unit}, mesh);
    std::vector<Element> elements;
    for (Parameter* parameter : unit.parameters)
        for (int64_t i = 0; i < parameter->local_numel(); ++i) elements.push_back({parameter, i});

    for (int64_t begin = 0; begin <= layout.padded(); ++begin)
        for (int64_t end = begin; end <= layout.padded(); ++end) {
            std::vector<std::string> want, got;
            for (int64_t i = begin; i < std::min<int64_t>(end, std::ssize(elements));) {
                const auto [parameter, first] = elements[size_t(i)];
                int64_t last = i;
                while (last < std::min<int64_t>(end, std::ssize(elements)) &&
                       elements[size_t(last)].parameter == parameter)
                    ++last;
                want.push_back(words({parameter, first, {i - begin, last - begin}}));
                i = last;
            }
            for (const FlatLayout::Piece& piece : layout.pieces(0, {begin, end}))
                got.push_back(words(piece));
            ASSERT_EQ(got, want) << "range " << begin << " .. " << end;
        }
}

}  // namespace
}  // namespace ultrascale
