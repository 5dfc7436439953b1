// Products in fp8 inside 03_tensor_parallel's linears and head: which scales a rank has, and what
// remains equal to one rank.
//
//     tiles, blocks     the same scales, if a rank's parts are multiples of 128: equal
//     delayed           the ranks agree on the largest magnitudes after each step: equal
//     tensor, row       of the rank's own part of W, dy or x, never larger than those of the whole:
//                       other roundings, and no larger errors
#include "03_tensor_parallel/8_tensor_parallel.h"
#include "08_mixed_precision/fp8_parts.h"
#include "core/threads.h"
#include "tests/ranks/break_checks.h"
#include "tests/test_util.h"

namespace ultrascale {
using namespace ultrascale::mixed_precision;
using namespace ultrascale::tensor_parallel;
namespace {

constexpr int64_t N = 32, h = 128;

const Communicator& world() { return Communicator::world(); }
const Communicator& alone() {
    static const Communicator own = world().split(world().rank(), 0, "alone");
    return own;
}

double distance(const Doubles& a, const Doubles& b) {
    double off = 0, all = 0;
    for (size_t i = 0; i < b.size(); ++i) off += std::pow(a[i] - b[i], 2), all += b[i] * b[i];
    return std::sqrt(off / all);
}
PrecisionOptions with(Products products) {
    PrecisionOptions o{.history = 1};
    o.recipe.products = products;
    return o;
}
// x and dy, the same on every rank; some tokens are larger than others.
Tensor token_tensor(uint64_t seed) {
    Doubles x = to_double(random_tensor({1, N, h}, DType::fp32, seed));
    for (int64_t i = 0; i < N * h; ++i) x[size_t(i)] *= std::exp2(double(i / h % 5));
    return tensor_of(x, {1, N, h}, DType::fp32);
}
Context context_of_tokens() {
    Context context{.token_weight = 1.0f / N};
    std::vector<int32_t> targets;
    for (int64_t i = 0; i < N; ++i) targets.push_back(int32_t(i * 37 % 128));
    context.batch.tokens = context.batch.targets =
        Tensor::from_host<int32_t>(targets, {1, N}, Memory::workspace);
    context.loss = Tensor::zeros({1}, DType::fp64, Memory::workspace);
    return context;
}

// y = (x W1^T) W2^T, of which W1 (F, h) is split by rows and W2 (h, F) by columns.
struct Mlp {
    const Communicator& ranks;
    ParallelRegion region;
    std::shared_ptr<Fp8Shared> shared;
    ParameterList parameters;
    std::unique_ptr<Linear> up, down;

    Mlp(const PrecisionOptions& o, const Communicator& ranks)
        : ranks(ranks),
          region(ranks, {.tp = ranks.size()}),
          shared(std::make_shared<Fp8Shared>(o)) {
        const int64_t F = 128 * world().size(), part = F / ranks.size();
        const Range mine{part * ranks.rank(), part * (ranks.rank() + 1)};
        const auto weight = [&](const char* name, Shape shape, std::vector<Range> slice) {
            return std::vector{parameters.add({.name = fmt::format("model.layers.0.mlp.{}", name),
                                               .shape = std::move(shape),
                                               .slice = std::move(slice),
                                               .init_std = 0.1f})};
        };
        const auto product = [&](std::vector<Parameter*> rows) -> std::unique_ptr<Linear> {
            if (o.recipe.products == Products::plain) return std::make_unique<Linear>(rows);
            return std::make_unique<Fp8Linear>(rows, shared, false);
        };
        up = std::make_unique<ColumnLinear>(
            product(weight("up_proj.weight", {F, h}, {mine, {0, h}})), region);
        down = std::make_unique<RowLinear>(
            product(weight("down_proj.weight", {h, F}, {{0, h}, mine})), region);
        parameters.allocate_values(DType::fp32);
        parameters.allocate_grads(DType::fp32);
        parameters.initialize(1);
        shared->histories.allocate(parameters);
    }
    // y, dx and this world rank's parts of the two weights' gradients.
    struct Results {
        Doubles y, dx, dw1, dw2;
    };
    Results step(const Communicator& agree) {
        Context context = context_of_tokens();
        parameters.begin_gradients(1);
        Saved up_saved, down_saved;
        const Tensor a = up->forward(token_tensor(1), up_saved, context);
        Results r{.y = to_double(down->forward(a, down_saved, context))};
        const Tensor da = down->backward(token_tensor(2), down_saved, context, WeightGradient::now);
        r.dx = to_double(up->backward(da, up_saved, context, WeightGradient::now));
        shared->histories.end_step(agree);
        const int64_t F = 128 * world().size(), first = ranks.size() > 1 ? 0 : 128 * world().rank(),
                      held = F / ranks.size();
        const Doubles dw1 = to_double((*parameters.begin())->grad),
                      dw2 = to_double((*(parameters.begin() + 1))->grad);
        r.dw1.assign(dw1.begin() + first * h, dw1.begin() + (first + 128) * h);
        for (int64_t i = 0; i < h; ++i)
            r.dw2.insert(r.dw2.end(), dw2.begin() + i * held + first,
                         dw2.begin() + i * held + first + 128);
        return r;
    }
};
double farthest(const Mlp::Results& a, const Mlp::Results& b) {
    return std::max(
        {distance(a.y, b.y), distance(a.dx, b.dx), distance(a.dw1, b.dw1), distance(a.dw2, b.dw2)});
}

// A sum in another order moves a number past the middle between two codes now and then: one of
// thousands is then off by 2^-4.
constexpr double equal = 2e-3;

TEST(PrecisionTensorParallel, TilesOfARanksPartAreThoseOfTheWhole) {
    use_threads(ranks_on_this_node());
    Mlp split(with(Products::tile), world()), whole(with(Products::tile), alone()),
        exact(with(Products::plain), alone());
    const Mlp::Results got = split.step(world()), want = whole.step(alone());
    EXPECT_LT(farthest(got, want), equal);
    EXPECT_GT(farthest(want, exact.step(alone())), 10 * equal);  // it is fp8 that multiplied
}

TEST(PrecisionTensorParallel, RanksAgreeOnDelayedScales) {
    NEEDS_RANKS();
    Mlp split(with(Products::delayed), world()), whole(with(Products::delayed), alone()),
        disagreeing(with(Products::delayed), world());
    Mlp::Results got, want, other;
    // The first step measures, each rank its own part; the second one's scales are those of the
    // first one's magnitudes. From then on all are as on one rank.
    for (int step = 0; step < 3; ++step) {
        got = split.step(world()), want = whole.step(alone());
        other = disagreeing.step(alone());  // without the ranks of the same linear
    }
    EXPECT_LT(farthest(got, want), equal);
    EXPECT_GT(farthest(other, want), 5 * equal);
}

TEST(PrecisionTensorParallel, MeasuredScalesAreOfARanksOwnPart) {
    for (const Products products : {Products::tensor, Products::row}) {
        Mlp split(with(products), world()), whole(with(products), alone()),
            exact(with(Products::plain), alone());
        const Mlp::Results got = split.step(world()), want = whole.step(alone()),
                           right = exact.step(alone());
        // Two roundings of the same numbers, each to 2^-4 of them or better; no bias.
        EXPECT_LT(farthest(got, want), 0.12);
        EXPECT_LT(farthest(got, right), 1.2 * farthest(want, right));
        if (world().size() == 1) {
            EXPECT_EQ(farthest(got, want), 0);
        }
    }
}

TEST(PrecisionTensorParallel, TheHeadOverTheVocabularyInFp8) {
    const int64_t V = 128 * world().size();
    const auto loss_and_gradients = [&](auto make, const Communicator& ranks) {
        ParameterList parameters;
        const int64_t part = V / ranks.size();
        Parameter* weight =
            parameters.add({.name = "lm_head.weight",
                            .shape = {V, h},
                            .slice = {{part * ranks.rank(), part * (ranks.rank() + 1)}, {0, h}},
                            .init_std = 0.05f});
        parameters.allocate_values(DType::fp32);
        parameters.allocate_grads(DType::fp32);
        parameters.initialize(1);
        parameters.begin_gradients(1);
        PrecisionOptions o = with(Products::tile);
        const auto head = make(std::make_shared<Fp8Shared>(o), weight);
        Context context = context_of_tokens();
        Saved saved;
        head->forward(token_tensor(3), saved, context);
        Mlp::Results r{.y = {context.loss.to_host<double>()[0]}};
        r.dx = to_double(head->backward(saved, context, WeightGradient::now));
        const Doubles dw = to_double(weight->grad);
        const int64_t first = ranks.size() > 1 ? 0 : 128 * world().rank() * h;
        r.dw1.assign(dw.begin() + first, dw.begin() + first + 128 * h);
        return r;
    };
    const ParallelRegion region(world(), {.tp = world().size()});
    const Mlp::Results got = loss_and_gradients(
        [&](auto shared, Parameter* weight) {
            return std::make_unique<Fp8Head<VocabularyHead>>(shared, weight, 0, region);
        },
        world());
    const Mlp::Results want = loss_and_gradients(
        [&](auto shared, Parameter* weight) {
            return std::make_unique<Fp8Head<Head>>(shared, weight, 0);
        },
        alone());
    EXPECT_LT(distance(got.y, want.y), 1e-5);
    EXPECT_LT(distance(got.dx, want.dx), equal);
    EXPECT_LT(distance(got.dw1, want.dw1), equal);
}

}  // namespace
}  // namespace ultrascale
