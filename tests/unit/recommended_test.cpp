// Errors say what would work. The numbers they recommend do work, under all conditions on the
// layout at once.
#include <gtest/gtest.h>

#include <regex>

#include "09_5d_parallel/lab/options.h"

namespace ultrascale {
using namespace ultrascale::context_parallel;
using namespace ultrascale::data_parallel;
using namespace ultrascale::expert_parallel;
using namespace ultrascale::five_d;
using namespace ultrascale::mixed_precision;
using namespace ultrascale::pipeline;
using namespace ultrascale::tensor_parallel;
using namespace ultrascale::zero;
namespace {

std::string error_of(const std::function<void()>& check) {
    try {
        check();
    } catch (const UserError& error) {
        return error.what();
    }
    return "";
}
// Returns the number that an error recommends, or 0.
int64_t recommended(const std::string& error, const std::string& before) {
    std::smatch found;
    const std::regex number(before + "([0-9]+) would work");
    return std::regex_search(error, found, number) ? std::stoll(found[1]) : 0;
}

Techniques techniques(int tp, int cp, bool sequence_parallel, const std::string& layout) {
    Techniques t;
    t.axes.tp = tp, t.axes.cp = cp;
    complete(t, tp * cp, layout);
    t.tensor.sequence_parallel = sequence_parallel && tp > 1;
    return t;
}

TEST(Recommended, LengthsCanBeCut) {
    const LlamaConfig config{.layers = 2,
                             .hidden = 48,
                             .heads = 12,
                             .kv_heads = 12,
                             .head_dim = 4,
                             .ffn = 96,
                             .vocab = 99};
    int64_t refused = 0;
    for (int tp = 1; tp <= 4; ++tp)
        for (int cp = 1; cp <= 4; ++cp)
            for (int64_t micro_batch = 1; micro_batch <= 3; ++micro_batch)
                for (const char* layout : {"zigzag", "striped"})
                    for (const char* recipe : {"fp32", "row"})
                        for (int64_t seq = 1; seq <= 70; seq += 3) {
                            Techniques t = techniques(tp, cp, micro_batch != 2, layout);
                            t.precision.recipe = *find_recipe(recipe);
                            t.tensor.partition_checkpoints = !t.tensor.sequence_parallel;
                            StepShape shape{.config = config, .model = {}};
                            shape.micro_batch = micro_batch, shape.seq = seq;
                            const std::string error = error_of([&] { check_length(t, shape); });
                            if (!error.empty()) {
                                ++refused;
                                shape.seq = recommended(error, "--seq ");
                                ASSERT_GT(shape.seq, 0) << error;
                            }
                            EXPECT_EQ(error_of([&] {
                                          check_length(t, shape);
                                          check_shares(config, t.context, shape.seq);
                                          check_splits(config, t.tensor, micro_batch,
                                                       shape.seq / cp);
                                          EXPECT_EQ(shape.seq % cp, 0);
                                          if (t.precision.recipe.fp8())
                                              check_sizes(t.precision.recipe,
                                                          {micro_batch * shape.seq / cp});
                                      }),
                                      "")
                                << seq << ": " << error;
                        }
    EXPECT_GT(refused, 1000);
    StepShape shape{.config = config, .model = {}, .micro_batch = 1, .seq = 64};
    EXPECT_EQ(error_of([&] { check_length(techniques(2, 3, true, "striped"), shape); }),
              "--seq 64: it must be a multiple of 6 for --cp 3 (striped) and --tp 2 "
              "--sequence-parallel; --seq 60 would work");
}

TEST(Recommended, RanksCanShareTheHeads) {
    int split = 0, exchanged = 0;
    for (int64_t heads : {6, 8, 12})
        for (int64_t kv_heads = 1; kv_heads <= heads; ++kv_heads)
            for (int ranks = 2; ranks <= 24; ++ranks) {
                if (heads % kv_heads != 0) continue;
                const LlamaConfig config{.layers = 1,
                                         .hidden = 4 * heads,
                                         .heads = heads,
                                         .kv_heads = kv_heads,
                                         .head_dim = 4,
                                         .ffn = 20,
                                         .vocab = 99};
                const auto splits = [&](int64_t tp) {
                    return error_of([&] {
                        TensorOptions options;
                        options.tp = int(tp);
                        check_splits(config, options, 1, 1);
                    });
                };
                const auto shares = [&](int64_t u) {
                    ContextOptions o{.cp = int(u), .variant = Variant::ulysses};
                    o.layout = Layout::contiguous;
                    return error_of([&] { check_shares(config, o, u); });
                };
                if (const int64_t tp = recommended(splits(ranks), "--tp "); tp > 0) {
                    EXPECT_EQ(splits(tp), "");
                    EXPECT_EQ(ranks % tp, 0);
                    ++split;
                }
                if (const int64_t u = recommended(shares(ranks), "; "); u > 0) {
                    EXPECT_EQ(shares(u), "");
                    EXPECT_EQ(ranks % u, 0);
                    ++exchanged;
                }
            }
    EXPECT_GT(split, 50);
    EXPECT_GT(exchanged, 50);
}

}  // namespace
}  // namespace ultrascale
