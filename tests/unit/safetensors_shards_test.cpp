// A model in several safetensors files, and the index that says which tensor is where.
#include <gtest/gtest.h>

#include "files/safetensors.h"
#include "tests/test_files.h"
#include "tests/test_util.h"
#include "write_tensor.h"

namespace ultrascale {
namespace {

using test::expect_error;
using test::put;
using test::slurp;
using test::TempDir;

class Sharded : public ::testing::Test {
protected:
    void SetUp() override {
        SafetensorsWriter writer(dir.path(), "model",
                                 {{"a", {4}, DType::fp32},
                                  {"b", {2}, DType::fp32},
                                  {"c", {8}, DType::fp32},
                                  {"d", {1}, DType::fp32}},
                                 24);
        for (int64_t size : {4, 2, 8, 1})
            test::write(writer,
                        tensor_of(Doubles(size_t(size), double(size)), {size}, DType::fp32));
        writer.finish();
    }
    void break_index(const std::string& from, const std::string& to, const std::string& message) {
        std::string text = slurp(index);
        size_t at = text.find(from);
        ASSERT_NE(at, std::string::npos);
        put(index, text.replace(at, from.size(), to));
        expect_error([&] { Safetensors::directory(dir.path()); }, message);
    }
    TempDir dir;
    std::string index = dir / "model.safetensors.index.json";
};

TEST_F(Sharded, WritesAndReads) {
    EXPECT_EQ(slurp(index).substr(0, 46), "{\n  \"metadata\": {\n    \"total_size\": 60\n  },\n  ");
    for (const char* shard :
         {"model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors",
          "model-00003-of-00003.safetensors"})
        EXPECT_TRUE(std::filesystem::exists(dir / shard));
    Safetensors all = Safetensors::directory(dir.path());
    EXPECT_EQ(all.entries().size(), 4u);
    EXPECT_EQ(all.entries().at("b").file, dir / "model-00001-of-00003.safetensors");
    EXPECT_EQ(all.entries().at("c").file, dir / "model-00002-of-00003.safetensors");
    const Tensor slice = Tensor::empty({2}, DType::fp32, Memory::workspace);
    all.read("c", {8}, {{2, 4}}, slice);
    EXPECT_EQ(slice.to_host_float(), (std::vector<float>{8, 8}));
}

TEST_F(Sharded, MissingShard) {
    std::filesystem::remove(dir / "model-00002-of-00003.safetensors");
    expect_error([&] { Safetensors::directory(dir.path()); },
                 "model-00002-of-00003.safetensors: missing; ");
}
TEST_F(Sharded, TruncatedShard) {
    std::filesystem::resize_file(dir / "model-00002-of-00003.safetensors", 100);
    expect_error([&] { Safetensors::directory(dir.path()); },
                 "model-00002-of-00003.safetensors: tensor \"c\": its data ends at byte 32, but "
                 "the file holds");
}
TEST_F(Sharded, ShardOutsideTheDirectory) {
    break_index("model-00003", "../model-00003", "is not a plain file name in this directory");
}
TEST_F(Sharded, WrongShard) {
    break_index(
        "\"a\": \"model-00001", "\"a\": \"model-00002",
        "tensor \"a\" is not in model-00002-of-00003.safetensors, where the index says it is");
}
TEST_F(Sharded, UnknownTensor) { break_index("\"a\"", "\"z\"", "tensor \"z\" is not in"); }
TEST_F(Sharded, NameTwice) { break_index("\"a\"", "\"b\"", "the index names \"b\" twice"); }
TEST_F(Sharded, NoMap) { break_index("weight_map", "weight_mop", "has no object \"weight_map\""); }
TEST_F(Sharded, NoText) {
    break_index("\"model-00003-of-00003.safetensors\"", "3", "weight_map \"d\" is not a file name");
}
TEST_F(Sharded, NotJson) { break_index("{", "", "the index is not"); }
TEST_F(Sharded, TensorInTwoShards) {
    std::filesystem::copy_file(dir / "model-00002-of-00003.safetensors",
                               dir / "model-00003-of-00003.safetensors",
                               std::filesystem::copy_options::overwrite_existing);
    expect_error([&] { Safetensors::directory(dir.path()); },
                 "tensor \"c\" is in another shard too");
}

TEST(Safetensors, DirectoryWithoutModel) {
    TempDir dir;
    expect_error([&] { Safetensors::directory(dir.path()); },
                 "has neither model.safetensors nor model.safetensors.index.json");
    expect_error([&] { Safetensors::directory(dir / "absent"); },
                 "has neither model.safetensors nor model.safetensors.index.json");
}

}  // namespace
}  // namespace ultrascale
