#include "files/safetensors.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "tests/test_files.h"
#include "write_tensor.h"

namespace ultrascale {
namespace {

using test::expect_error;
using test::put;
using test::slurp;
using test::TempDir;

std::string with_header(const std::string& header, const std::string& data) {
    uint64_t length = header.size();
    return std::string(reinterpret_cast<const char*>(&length), 8) + header + data;
}

template <class T>
std::string bytes_of(const std::vector<T>& values) {
    return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

Tensor tensor(const std::vector<float>& values, Shape shape) {
    return Tensor::from_host(std::span(values), std::move(shape), Memory::workspace);
}

std::vector<float> read_floats(const Safetensors& file, const std::string& name, const Shape& shape,
                               const std::vector<Range>& slice = {}, DType dtype = DType::fp32) {
    Shape local = shape;
    for (size_t d = 0; d < slice.size(); ++d) local[d] = slice[d].size();
    Tensor to = Tensor::empty(local, dtype, Memory::workspace);
    file.read(name, shape, slice, to);
    return to.numel() == 0 ? std::vector<float>() : to.to_host_float();
}

// Expects that a file with this header and `data_bytes` bytes of data is refused with `message`.
void expect_refused(const std::string& header, const std::string& message, size_t data_bytes = 24) {
    TempDir dir;
    put(dir / "x.safetensors", with_header(header, std::string(data_bytes, 'd')));
    const std::string error = test::error_of([&] { Safetensors::file(dir / "x.safetensors"); });
    EXPECT_NE(error.find("x.safetensors: "), std::string::npos) << error;
    EXPECT_NE(error.find(message), std::string::npos) << error << "\nwithout: " << message;
}

TEST(Safetensors, ReadsWhatTheFormatAllows) {
    TempDir dir;
    std::string header = R"({"__metadata__":{"format":"pt"},)"
                         R"("b":{"dtype":"F32","shape":[2,2],"data_offsets":[2,18]},)"
                         R"("none":{"dtype":"F32","shape":[3,0],"data_offsets":[18,18]},)"
                         R"("a":{"shape":[],"dtype":"F16","data_offsets":[0,2]}}    )";
    put(dir / "x.safetensors",
        with_header(header, bytes_of<uint16_t>({0x3c00}) + bytes_of<float>({1, 2, 3, 4})));
    Safetensors file = Safetensors::file(dir / "x.safetensors");
    EXPECT_EQ(file.metadata().at("format"), "pt");
    EXPECT_EQ(file.entries().size(), 3u);
    EXPECT_EQ(read_floats(file, "a", {}), (std::vector<float>{1}));  // a scalar
    EXPECT_EQ(read_floats(file, "b", {2, 2}), (std::vector<float>{1, 2, 3, 4}));
    EXPECT_TRUE(read_floats(file, "none", {3, 0}).empty());
    EXPECT_FALSE(file.contains("c"));
}

TEST(Safetensors, ReadsAnySlice) {
    TempDir dir;
    std::vector<float> values(2 * 3 * 4);
    for (size_t i = 0; i < values.size(); ++i) values[i] = float(i);
    SafetensorsWriter writer(dir.path(), "x", {{"t", {2, 3, 4}, DType::fp32}});
    test::write(writer, tensor(values, {2, 3, 4}));
    writer.finish();
    Safetensors file = Safetensors::file(dir / "x.safetensors");
    for (int64_t a = 0; a <= 2; ++a)
        for (int64_t b = 0; b <= 3; ++b)
            for (int64_t c = 0; c <= 4; ++c)
                for (auto [i, j, k] : {std::array{a, int64_t(0), int64_t(0)},
                                       {int64_t(0), b, int64_t(0)},
                                       {int64_t(0), int64_t(0), c},
                                       {a, b, c}}) {
                    std::vector<Range> slice = {{i, 2}, {0, b < j ? j : b}, {k, 4}};
                    if (j > 0) slice[1] = {j, 3};
                    std::vector<float> expected;
                    for (int64_t x = slice[0].begin; x < slice[0].end; ++x)
                        for (int64_t y = slice[1].begin; y < slice[1].end; ++y)
                            for (int64_t z = slice[2].begin; z < slice[2].end; ++z)
                                expected.push_back(values[size_t((x * 3 + y) * 4 + z)]);
                    EXPECT_EQ(read_floats(file, "t", {2, 3, 4}, slice), expected);
                }
}

TEST(Safetensors, ConvertsEachFloatingDtypeToEachOther) {
    TempDir dir;
    const float inf = std::numeric_limits<float>::infinity();
    const std::vector<float> values = {0, -1.5f, 0.1f, 65504, -inf, 3e-6f};
    for (DType stored : {DType::fp32, DType::bf16, DType::fp16}) {
        SafetensorsWriter writer(dir.path(), "x", {{"t", {6}, stored}});
        test::write(writer, tensor(values, {6}));
        writer.finish();
        Safetensors file = Safetensors::file(dir / "x.safetensors");
        for (DType wanted : {DType::fp32, DType::bf16, DType::fp16}) {
            std::vector<float> got = read_floats(file, "t", {6}, {}, wanted);
            for (size_t i = 0; i < values.size(); ++i) {
                auto round = [](float v, DType d) {
                    return d == DType::bf16   ? float(bf16(v))
                           : d == DType::fp16 ? float(fp16(v))
                                              : v;
                };
                EXPECT_EQ(got[i], round(round(values[i], stored), wanted))
                    << dtype_name(stored) << " to " << dtype_name(wanted);
            }
        }
    }
}

TEST(Safetensors, KeepsEveryBitOfEveryDtype) {
    TempDir dir;
    std::vector<double> doubles = {0.1, -0.0, 1e300};
    std::vector<int32_t> ints = {-1, INT32_MAX};
    std::vector<float> floats = {std::bit_cast<float>(0x7fc12345u), -0.0f, 1e-45f};
    SafetensorsWriter writer(
        dir.path(), "x",
        {{"d", {3}, DType::fp64}, {"i", {2}, DType::int32}, {"f", {3}, DType::fp32}});
    test::write(writer,
                Tensor::from_host(std::span<const double>(doubles), {3}, Memory::workspace));
    test::write(writer, Tensor::from_host(std::span<const int32_t>(ints), {2}, Memory::workspace));
    test::write(writer, tensor(floats, {3}));
    writer.finish();
    Safetensors file = Safetensors::file(dir / "x.safetensors");
    Tensor d = Tensor::empty({3}, DType::fp64, Memory::workspace),
           i = Tensor::empty({1}, DType::int32, Memory::workspace);
    file.read("d", {3}, {}, d);
    file.read("i", {2}, {{1, 2}}, i);
    EXPECT_EQ(bytes_of(d.to_host<double>()), bytes_of(doubles));
    EXPECT_EQ(i.to_host<int32_t>(), (std::vector<int32_t>{INT32_MAX}));
    EXPECT_EQ(bytes_of(read_floats(file, "f", {3})), bytes_of(floats));
    expect_error([&] { read_floats(file, "d", {3}); },
                 "tensor \"d\" is F64; fp32 can be read from F32, BF16 and F16");
    expect_error([&] { file.read("f", {3}, {}, d); },
                 "tensor \"f\" is F32; fp64 can be read from F64");
    expect_error([&] { read_floats(file, "g", {3}); }, "x.safetensors: has no tensor \"g\"");
    expect_error(
        [&] {
            read_floats(file, "f", {3, 1});
        },
        "tensor \"f\" has shape (3), but the model needs (3, 1)");
}

TEST(Safetensors, ListsOtherDtypesAndRefusesToConvertThem) {
    TempDir dir;
    put(dir / "x.safetensors",
        with_header(R"({"a":{"dtype":"F8_E4M3","shape":[4],"data_offsets":[0,4]},)"
                    R"("b":{"dtype":"F4","shape":[2,2],"data_offsets":[4,6]}})",
                    "abcdef"));
    Safetensors file = Safetensors::file(dir / "x.safetensors");
    EXPECT_EQ(file.entries().at("a").dtype, "F8_E4M3");
    expect_error([&] { read_floats(file, "a", {4}); }, "tensor \"a\" is F8_E4M3");
}

TEST(Safetensors, RefusesFilesThatAreNone) {
    TempDir dir;
    auto open = [&](const std::string& name) {
        return [=, &dir] { Safetensors::file(dir / name); };
    };
    expect_error(open("absent"), "absent: cannot be read: No such file or directory");
    put(dir / "empty", "");
    expect_error(open("empty"), "empty: 0 bytes cannot be a safetensors file");
    put(dir / "short", "1234567");
    expect_error(open("short"), "short: 7 bytes cannot be");
    put(dir / "magic", "GGUF this is something else");
    expect_error(open("magic"), "magic: not a safetensors file (its header would be");
    put(dir / "cut", with_header("{}", "").substr(0, 9));
    expect_error(open("cut"), "cut: truncated: the header should be 2 bytes long, 1 are there");
    expect_error([&] { Safetensors::file(dir.path()); }, "it is a directory");
}

TEST(Safetensors, RefusesBadHeaders) {
    const std::string ok = R"("dtype":"F32","shape":[2,3],"data_offsets":[0,24])";
    expect_refused("{\"a\":{" + ok + "}", "the safetensors header is not JSON");
    expect_refused(std::string("{\"\xff\":1}"), "the safetensors header is not JSON");
    expect_refused("[]", "the safetensors header is not a JSON object");
    expect_refused("{\"a\":{" + ok + "},\"a\":{" + ok + "}}",
                   "the safetensors header names \"a\" twice");
    expect_refused("{\"a\":[[[[[[]]]]]]}", "the safetensors header is nested too deeply");
    expect_refused(std::string(100000, '['), "the safetensors header is nested too deeply");
    expect_refused("{\"a\":1e999}", "a number is out of range");
    expect_refused("{\"a\\n\":7}", "tensor \"a\\x0a\" is not a JSON object");
    expect_refused(R"({"a":{"shape":[2,3],"data_offsets":[0,24]}})",
                   "tensor \"a\" has no \"dtype\"");
    expect_refused(R"({"a":{"dtype":"F33","shape":[2,3],"data_offsets":[0,24]}})",
                   "tensor \"a\": unknown dtype \"F33\"");
    expect_refused(R"({"a":{"dtype":"F32","data_offsets":[0,24]}})",
                   "tensor \"a\" has no array \"shape\"");
    expect_refused(R"({"a":{"dtype":"F32","shape":[2,-3],"data_offsets":[0,24]}})",
                   "tensor \"a\": \"shape\" must hold non-negative integers");
    expect_refused(R"({"a":{"dtype":"F32","shape":[2,3.0],"data_offsets":[0,24]}})",
                   "\"shape\" must hold non-negative integers");
    expect_refused(
        R"({"a":{"dtype":"F32","shape":[2,18446744073709551615],"data_offsets":[0,24]}})",
        "\"shape\" must hold");
    expect_refused(R"({"a":{"dtype":"F32","shape":[2,3]}})",
                   "tensor \"a\" has no array \"data_offsets\"");
    expect_refused(R"({"a":{"dtype":"F32","shape":[2,3],"data_offsets":[24]}})",
                   "data_offsets must be [begin, end] with begin <= end");
    expect_refused(R"({"a":{"dtype":"F32","shape":[2,3],"data_offsets":[24,0]}})",
                   "data_offsets must be [begin, end] with begin <= end");
    expect_refused(R"({"a":{"dtype":"F32","shape":[2,3],"data_offsets":[4,28]}})",
                   "its data ends at byte 28, but the file holds 24 (truncated?)");
    expect_refused(R"({"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,20]}})",
                   "F32 of shape (2, 3) takes 24 bytes, but data_offsets give it 20");
    expect_refused(R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,24]}})",
                   "is too large");
    expect_refused(R"({"a":{"dtype":"F4","shape":[3],"data_offsets":[0,24]}})",
                   "tensor \"a\": 3 elements of 4 bits cannot fill whole bytes");
    expect_refused(R"({"__metadata__":{"a":1},"a":{)" + ok + "}}",
                   "__metadata__ \"a\" is not a string");
    expect_refused(R"({"__metadata__":7})", "tensor \"__metadata__\" is not a JSON object");
}

TEST(Safetensors, RefusesOverlapsHolesAndLeftovers) {
    const std::string a = R"("a":{"dtype":"F32","shape":[3],"data_offsets":[0,12]})";
    expect_refused("{" + a + R"(,"b":{"dtype":"F32","shape":[3],"data_offsets":[8,20]}})",
                   "tensors overlap at data byte 8");
    expect_refused("{" + a + R"(,"b":{"dtype":"F32","shape":[2],"data_offsets":[16,24]}})",
                   "tensors leave a hole at data byte 12");
    expect_refused("{" + a + "}", "the tensors end at data byte 12, but the file continues to 24");
}

TEST(SafetensorsWriter, LeavesNothingBehindWhenItIsNotFinished) {
    TempDir dir;
    {
        SafetensorsWriter writer(dir.path(), "x",
                                 {{"a", {2}, DType::fp32}, {"b", {2}, DType::fp32}});
        test::write(writer, tensor({1, 2}, {2}));
        EXPECT_THROW(writer.finish(), std::logic_error);
        EXPECT_THROW(test::write(writer, tensor({1, 2, 3}, {3})), std::logic_error);
    }
    EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
}

TEST(SafetensorsWriter, UnwritableDirectory) {
    TempDir dir;
    put(dir / "file", "");
    SafetensorsWriter writer(dir / "file", "x", {{"a", {1}, DType::fp32}});
    expect_error([&] { test::write(writer, tensor({1}, {1})); },
                 "file/x.safetensors: cannot be written: Not a directory");
    SafetensorsWriter other(dir / "absent", "x", {});
    expect_error([&] { other.finish(); },
                 "absent/x.safetensors: cannot be written: No such file or directory");
}

TEST(AtomicFile, ReplacesOnlyAtCommit) {
    TempDir dir;
    put(dir / "f", "before");
    {
        AtomicFile file(dir / "f");
        file.write("half");
    }
    EXPECT_EQ(slurp(dir / "f"), "before");
    write_file(dir / "f", "after");
    EXPECT_EQ(slurp(dir / "f"), "after");
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir.path()), {}), 1);
    std::filesystem::create_directory(dir / "d");
    expect_error([&] { write_file(dir / "d", "x"); }, "cannot be written: it is a directory");
}

}  // namespace
}  // namespace ultrascale
