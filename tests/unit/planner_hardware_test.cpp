// The hardware that a plan is made for: files, whose values are checked, and dtypes.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "09_5d_parallel/planner/cost.h"
#include "files/file.h"
#include "tests/test_files.h"

namespace ultrascale {
using namespace ultrascale::context_parallel;
using namespace ultrascale::expert_parallel;
using namespace ultrascale::five_d;
using namespace ultrascale::mixed_precision;
using namespace ultrascale::pipeline;
using namespace ultrascale::tensor_parallel;
using namespace ultrascale::zero;
namespace {

using Json = nlohmann::ordered_json;

class HardwareFile : public testing::Test {
protected:
    std::string refused(const Json& json) { return refused_text(json.dump()); }
    std::string refused_text(const std::string& text) {
        write_file(path, text);
        return test::error_of([&] { find_hardware(path); });
    }
    test::TempDir directory;
    std::string path = directory / "this.json";
    Json good = Json::parse(file_of(find_hardware("a100")));
};

TEST_F(HardwareFile, IsReadAsItWasWritten) {
    Hardware h = find_hardware("a100");
    h.inside.collective_slows = 0.25, h.between.message_slows = 0.5;
    write_file(path, file_of(h));
    EXPECT_EQ(file_of(find_hardware(path)), file_of(h));
    // One that an earlier version wrote does not say its dtype: it is taken for any.
    good.erase("dtype");
    write_file(path, good.dump());
    EXPECT_EQ(find_hardware(path).in(DType::fp32).peak, 312e12);
    EXPECT_THROW(find_hardware("h1000"), UserError);
}

TEST_F(HardwareFile, ValuesThatCannotBeAreRefused) {
    const auto with = [&](const char* field, const Json& value) {
        Json bad = good;
        bad[field] = value;
        return refused(bad);
    };
    EXPECT_EQ(with("peak_flops", 0), path + ": peak_flops = 0 must be from 1000000 to 1e+18");
    EXPECT_EQ(with("peak_flops", 1e19),
              path + ": peak_flops = 1e+19 must be from 1000000 to 1e+18");
    EXPECT_EQ(with("product_share", 1.2), path + ": product_share = 1.2 must be from 1e-06 to 1");
    for (const auto& [field, value] : {std::pair<const char*, Json>{"attention_forward_share", 45},
                                       {"attention_backward_share", -0.1},
                                       {"product_half", -1},
                                       {"fp8_times", 1000},
                                       {"memory_bytes_per_second", 3},
                                       {"update_bytes_per_second", "fast"},
                                       {"operation_seconds", 1e9},
                                       {"ranks_in_a_node", 0},
                                       {"ranks_in_a_node", 1.5},
                                       {"cards_in_a_node", 0},
                                       {"cards_in_a_node", 9},
                                       {"cards_in_a_node", 1.5},
                                       {"collectives", "trees"},
                                       {"memory_bytes", 80},
                                       {"process_bytes", -1},
                                       {"tensor_hidden", 1.01},
                                       {"logit_bytes", 0},
                                       {"dtype", "fp8"},
                                       {"inside", 3}})
        EXPECT_NE(with(field, value).find(field), std::string::npos) << field << " " << value;
    Json bad = good;
    bad["inside"]["collective_slows"] = 1.5;
    EXPECT_EQ(refused(bad), path + ": inside: collective_slows = 1.5 must be from 0 to 1");
    for (const char* number : {"NaN", "-nan", "Infinity", "1e999"}) {
        std::string text = good.dump();
        const std::string field = "\"peak_flops\":";
        const size_t at = text.find(field) + field.size();
        text.replace(at, text.find(',', at) - at, number);
        EXPECT_NE(refused_text(text).find("is not JSON"), std::string::npos) << number;
    }
    EXPECT_EQ(with("dtype", "fp8"), path + ": dtype = \"fp8\" must be fp32 or bf16");
    EXPECT_EQ(with("cards_in_a_node", 0), path + ": cards_in_a_node = 0 must be from 1 to 8");
    EXPECT_TRUE(with("collectives", nullptr).ends_with("--calibrate it again"));
    bad = good;
    bad.erase("inside");
    EXPECT_EQ(refused(bad), path + ": lacks the object inside");
}

TEST_F(HardwareFile, UnknownFieldsAreNamed) {
    Json bad = good;
    bad["peak_flop"] = 1e15;
    EXPECT_TRUE(
        refused(bad).starts_with(path + ": unknown field \"peak_flop\"; --calibrate writes "))
        << refused(bad);
    bad = good;
    bad["between"]["bytes_per_seconds"] = 1e9;
    EXPECT_NE(refused(bad).find("between: unknown field \"bytes_per_seconds\""), std::string::npos);
}

// fp32 is not bf16: without tensor cores an H100 has 67 TFLOP/s instead of 990.
TEST(HardwareDtype, Fp32HasAPeakOfItsOwn) {
    const Hardware bf16 = find_hardware("h100").in(DType::bf16),
                   fp32 = find_hardware("h100").in(DType::fp32);
    EXPECT_EQ(bf16.peak, 989.5e12);
    EXPECT_EQ(fp32.peak, 66.9e12);
    EXPECT_EQ(find_hardware("a100").in(DType::fp32).peak, 19.5e12);
    EXPECT_GT(fp32.product(8192, 8192, 8192) / bf16.product(8192, 8192, 8192), 10);
    EXPECT_LT(fp32.product(8192, 8192, 8192), 2 * std::pow(8192.0, 3) / 45e12);

    Hardware measured = bf16;
    measured.name = "x.json", measured.fp32_peak = 0;
    EXPECT_EQ(test::error_of([&] { measured.in(DType::fp32); }),
              "--hardware x.json: it was measured in bf16; --calibrate it with --dtype fp32 too");
}

// The part of tp's communication that the products beside it hide was found in a node.
TEST(HardwareLinks, NothingOfTensorParallelismIsHiddenBetweenNodes) {
    const LlamaConfig config = preset("llama-3-70b");
    const StepShape shape{.config = config,
                          .model = {.dtype = DType::bf16},
                          .grad_dtype = DType::fp32,
                          .micro_batch = 1,
                          .seq = 4096};
    const auto waited = [&](int64_t tp, double hidden) {
        Hardware h = find_hardware("h100");
        h.tensor_hidden = hidden;
        const Plan plan{.tp = tp, .micro_batches = 8};
        return LayerCosts(shape, h, plan).layer(false).both() -
               LayerCosts(shape, h, plan).layer(false).forward.compute -
               LayerCosts(shape, h, plan).layer(false).backward.compute;
    };
    EXPECT_NEAR(waited(8, 0.9) / waited(8, 0), 0.1, 1e-9);
    EXPECT_NEAR(waited(16, 0.9) / waited(16, 0), 1, 1e-9);
}

}  // namespace
}  // namespace ultrascale
