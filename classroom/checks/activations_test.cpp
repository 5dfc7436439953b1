// Exercise 00.4: checks each tensor that a GPT's layer keeps, not only their sum.
#include <gtest/gtest.h>

#include <algorithm>

#include "00_single_gpu/4_formulas.h"

namespace ultrascale {
using namespace ultrascale::single_gpu;
namespace {

TEST(KeptTensors, AreThirteen) {
    std::vector<double> sbh, assb;
    for (const KeptTerm& term : gpt_layer_activations()) {
        if (term.sbh != 0) sbh.push_back(term.sbh);
        if (term.assb != 0) assb.push_back(term.assb);
    }
    EXPECT_EQ(gpt_layer_activations().size(), 13) << "one entry a tensor";
    std::ranges::sort(sbh), std::ranges::sort(assb);
    EXPECT_EQ(sbh, (std::vector<double>{1, 1, 2, 2, 2, 2, 4, 4, 8, 8})) << "in units of s b h";
    EXPECT_EQ(assb, (std::vector<double>{1, 2, 2})) << "in units of a s^2 b";
}

}  // namespace
}  // namespace ultrascale
