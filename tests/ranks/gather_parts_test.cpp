// Parts of tensors are put together on rank 0: any cuts, replicas and slices, on any number of
// ranks (part of comm_test).
#include "files/gather_parts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <thread>

#include "core/ops.h"

namespace ultrascale {
namespace {

const Communicator& world() { return Communicator::world(); }

// Element i of a tensor is `first` + i, which is exact in fp32. bf16 is exact only for integers up
// to 256.
std::vector<float> values_of(int64_t count, int64_t first, DType dtype) {
    std::vector<float> values(size_t(count), 0);
    for (size_t i = 0; i < values.size(); ++i)
        values[i] = float(dtype == DType::bf16 ? (first + int64_t(i)) % 251 : first + int64_t(i));
    return values;
}
Tensor tensor_of(const std::vector<float>& values, DType dtype) {
    if (dtype == DType::fp32)
        return Tensor::from_host<float>(values, {int64_t(values.size())}, Memory::workspace);
    std::vector<bf16> narrow;
    for (float value : values) narrow.push_back(bf16(value));
    return Tensor::from_host<bf16>(narrow, {int64_t(values.size())}, Memory::workspace);
}

// A named tensor and parts of it. Every rank can compute all of its elements.
struct Whole {
    std::string name;
    Shape shape;
    DType dtype = DType::fp32;

    std::vector<float> values() const { return values_of(numel(shape), 1, dtype); }
    // Returns elements begin .. end - 1 of `slice` (if empty, of the whole tensor), row-major.
    TensorPart part(std::vector<Range> slice, int64_t begin, int64_t end) const {
        Parameter parameter{.name = name, .shape = shape, .slice = slice};
        if (slice.empty())
            for (int64_t size : shape) parameter.slice.push_back({0, size});
        const std::vector<float> all = values();
        std::vector<float> own;
        const Range cols = parameter.slice.back();
        const int64_t first_row = parameter.slice.size() > 1 ? parameter.slice[0].begin : 0;
        for (int64_t k = begin; k < end; ++k)
            own.push_back(all[size_t((first_row + k / cols.size()) * shape.back() + cols.begin +
                                     k % cols.size())]);
        return {parameter, tensor_of(own, dtype), begin};
    }
};

// Returns the pieces + 1 borders of `pieces` pieces of `count` elements, the same on all ranks.
// Some pieces are empty.
std::vector<int64_t> random_cuts(int64_t count, int pieces, std::minstd_rand& random) {
    std::vector<int64_t> cuts = {0, count};
    while (int(cuts.size()) < pieces + 1) cuts.push_back(int64_t(random() >> 4) % (count + 1));
    std::ranges::sort(cuts);
    return cuts;
}

std::vector<float> floats(const std::vector<char>& bytes, DType dtype) {
    Tensor tensor =
        Tensor::empty({int64_t(bytes.size()) / dtype_bytes(dtype)}, dtype, Memory::workspace);
    tensor.copy_from_host(bytes.data());
    return tensor.to_host_float();
}

void expect_gathered(const GatherParts& gather, const std::vector<Whole>& wholes) {
    ASSERT_EQ(gather.tensors().size(), wholes.size());
    for (size_t i = 0; i < wholes.size(); ++i) {
        const auto whole = std::ranges::find(wholes, gather.tensors()[i].name, &Whole::name);
        ASSERT_NE(whole, wholes.end());
        EXPECT_EQ(gather.tensors()[i].shape, whole->shape);
        EXPECT_EQ(gather.tensors()[i].dtype, whole->dtype);
        const std::vector<char> bytes = gather.gather(i);
        EXPECT_EQ(bytes.empty(), world().rank() != 0);
        if (world().rank() == 0) {
            EXPECT_EQ(floats(bytes, whole->dtype), whole->values()) << whole->name;
        }
    }
}

// Gathers the parts themselves, and copies of them, which another thread reads after the parts have
// changed, in a group of its own and while this thread communicates.
void expect_gathered(const std::vector<Whole>& wholes, const std::vector<TensorPart>& mine) {
    expect_gathered(GatherParts(&world(), mine), wholes);
    const Communicator group = world().between_hosts("copies");
    GatherParts copies(&group, mine);
    const auto held = [] { return memory_now()[size_t(Memory::checkpoint)]; };
    const int64_t before = held();
    copies.keep_copies();
    EXPECT_EQ(held() - before, copies.own_bytes());
    int64_t bytes = 0, wanted = 0;
    for (const std::string& one : world().gather_strings(std::to_string(copies.own_bytes())))
        bytes += std::stoll(one);
    for (const Whole& whole : wholes) wanted += numel(whole.shape) * dtype_bytes(whole.dtype);
    EXPECT_EQ(bytes, wanted);  // each element is copied once, however many ranks have it
    copies.copy(mine);
    compute_stream().synchronize();
    for (const TensorPart& part : mine) ops::fill(part.tensor, 0);
    std::thread other([&] { expect_gathered(copies, wholes); });
    Tensor ones = tensor_of({1}, DType::fp32);
    for (int call = 0; call < 20; ++call) world().all_reduce(ones, Reduce::average);
    other.join();
    EXPECT_EQ(ones.to_host_float(), std::vector<float>{1});
}

const std::vector<Whole> wholes = {
    {"matrix", {7, 13}},           {"vector", {29}},
    {"bf16", {5, 6}, DType::bf16}, {"row", {1, 17}},
    {"column", {17, 1}},           {"one", {1}},
    {"long", {301, 64}},           {"wide bf16", {3, 1000}, DType::bf16}};

TEST(GatherParts, FlatCuts) {
    std::minstd_rand random(1);
    for (int round = 0; round < 20; ++round) {
        std::vector<TensorPart> mine;
        for (const Whole& whole : wholes) {
            const auto cuts = random_cuts(numel(whole.shape), world().size(), random);
            const auto r = size_t(world().rank());
            if (cuts[r] < cuts[r + 1] || round % 2 == 0)
                mine.push_back(whole.part({}, cuts[r], cuts[r + 1]));
        }
        expect_gathered(wholes, mine);
    }
}

TEST(GatherParts, SeveralPiecesOfATensorOnOneRank) {
    std::minstd_rand random(2);
    const int n = world().size();
    for (int round = 0; round < 10; ++round) {
        std::vector<TensorPart> mine;
        for (const Whole& whole : wholes) {
            const auto cuts = random_cuts(numel(whole.shape), 3 * n, random);
            for (int piece = 0; piece < 3 * n; ++piece)
                if ((piece * 7 + round) % n == world().rank())
                    mine.push_back(whole.part({}, cuts[size_t(piece)], cuts[size_t(piece) + 1]));
        }
        expect_gathered(wholes, mine);
    }
}

TEST(GatherParts, Replicas) {
    std::minstd_rand random(3);
    for (int copies :
         {2, 3, world().size()}) {  // neighbours hold the same; the groups are as many as fit
        std::vector<TensorPart> mine;
        for (const Whole& whole : wholes) {
            const int groups = (world().size() + copies - 1) / copies;
            const auto cuts = random_cuts(numel(whole.shape), groups, random);
            const auto group = size_t(world().rank() / copies);
            mine.push_back(whole.part({}, cuts[group], cuts[group + 1]));
        }
        expect_gathered(wholes, mine);
    }
}

// Tensor parallelism's column slices, each sharded flat over the ranks that share it, as in ZeRO.
TEST(GatherParts, ColumnSlicesCutFlat) {
    std::minstd_rand random(4);
    const int n = world().size(), slices = n % 2 == 0 ? 2 : n, ranks_of_slice = n / slices;
    const std::vector<Whole> matrices = {
        {"a", {7, 13}}, {"b", {4, 6}, DType::bf16}, {"c", {200, 31}}, {"d", {1, 9}}};
    for (int round = 0; round < 10; ++round) {
        std::vector<TensorPart> mine;
        for (const Whole& whole : matrices) {
            const int64_t rows = whole.shape[0], cols = whole.shape[1],
                          mine_of = world().rank() % slices;
            for (int s = 0; s < slices; ++s) {
                const std::vector<Range> slice = {{0, rows},
                                                  {cols * s / slices, cols * (s + 1) / slices}};
                const auto cuts = random_cuts(rows * slice[1].size(), ranks_of_slice, random);
                const auto at = size_t(world().rank() / slices);
                if (s == mine_of) mine.push_back(whole.part(slice, cuts[at], cuts[at + 1]));
            }
        }
        expect_gathered(matrices, mine);
    }
}

TEST(GatherParts, RowSlices) {
    const int n = world().size(), r = world().rank();
    const Whole whole{"matrix", {19, 5}};
    const Range rows{19 * r / n, 19 * (r + 1) / n};
    expect_gathered({whole}, {whole.part({rows, {0, 5}}, 0, rows.size() * 5)});
}

TEST(GatherParts, OneRankHasEverything) {
    for (int owner : {0, world().size() - 1}) {
        std::vector<TensorPart> mine;
        for (const Whole& whole : wholes)
            if (world().rank() == owner) mine.push_back(whole.part({}, 0, numel(whole.shape)));
        expect_gathered(wholes, mine);
    }
    // Without a group this rank is the only one.
    const GatherParts alone(nullptr, {wholes[0].part({}, 50, 91), wholes[0].part({}, 0, 50)});
    EXPECT_EQ(floats(alone.gather(0), DType::fp32), wholes[0].values());
}

// Parts that do not cover the tensor are a programming error, which is detected when they are put
// together.
TEST(GatherParts, AMissingPieceIsNamed) {
    std::minstd_rand random(5);
    const int n = world().size();
    for (int missing = 0; missing < n; ++missing) {
        const Whole& whole = wholes[0];
        const int64_t count = numel(whole.shape), begin = count * world().rank() / n,
                      end = count * (world().rank() + 1) / n;
        const GatherParts gather(&world(),
                                 {whole.part({}, begin, end - (world().rank() == missing))});
        if (world().rank() == 0)
            EXPECT_THROW(gather.gather(0), std::logic_error) << missing;
        else
            EXPECT_TRUE(gather.gather(0).empty());
    }
}

TEST(TensorPart, BlocksCoverExactlyItsElements) {
    std::minstd_rand random(6);
    const auto below = [&](int64_t limit) { return int64_t(random() >> 4) % limit; };
    for (int round = 0; round < 2000; ++round) {
        const bool matrix = round % 4 > 0;
        Parameter parameter{
            .name = "x",
            .shape = matrix ? Shape{1 + below(9), 1 + below(9)} : Shape{1 + below(30)}};
        for (int64_t size : parameter.shape) {
            const int64_t begin = below(size);
            parameter.slice.push_back({begin, begin + 1 + below(size - begin)});
        }
        const int64_t cols = parameter.shape.back(), slice_size = parameter.local_numel(),
                      begin = below(slice_size), count = below(slice_size - begin + 1);
        std::vector<int64_t> expected, visited;  // places in the whole tensor
        for (int64_t i = 0; i < slice_size; ++i) {
            const Range last = parameter.slice.back();
            const int64_t row = matrix ? parameter.slice[0].begin + i / last.size() : 0;
            if (i >= begin && i < begin + count)
                expected.push_back(row * cols + last.begin + i % last.size());
        }
        const TensorPart part(parameter, Tensor::empty({count}, DType::fp32, Memory::workspace),
                              begin);
        int blocks = 0;
        part.for_each_block([&](const std::vector<Range>& block, int64_t first, int64_t size) {
            ++blocks;
            EXPECT_EQ(first, int64_t(visited.size()));
            const Range rows = matrix ? block[0] : Range{0, 1};
            EXPECT_EQ(size, rows.size() * block.back().size());
            for (int64_t i = rows.begin; i < rows.end; ++i)
                for (int64_t j = block.back().begin; j < block.back().end; ++j)
                    visited.push_back(i * cols + j);
        });
        EXPECT_EQ(visited, expected) << round;
        EXPECT_LE(blocks, matrix ? 3 : 1);
        EXPECT_EQ(blocks > 0, count > 0);
    }
}

}  // namespace
}  // namespace ultrascale
