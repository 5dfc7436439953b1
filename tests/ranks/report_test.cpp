#include "lab/report/report.h"

#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "files/checkpoint_folders.h"
#include "lab/options/cli.h"
#include "tests/unit/saved_checkpoint.h"

namespace ultrascale {
namespace {

// Rank 0's figures are printed. A wrong figure on another rank fails the run on all ranks, and the
// message names that rank.
TEST(Report, WhatIsOffOnOneRankFailsOnAll) {
    const int n = Communicator::world().size(), last = n - 1, me = Communicator::world().rank();
    Report report("test", Options{}, StepShape{}, 1);
    memory_reset_peak();
    communication_reset_counts();
    const MemoryByCategory now = memory_now();
    Prediction held;
    held.memory = {.parameters = now[int(Memory::parameter)],
                   .gradients = now[int(Memory::gradient)],
                   .optimizer = now[int(Memory::optimizer)],
                   .peak_activations = now[int(Memory::activation)],
                   .peak_communication = now[int(Memory::communication)]};
    const auto has = [](const std::string& text, const std::string& part) {
        return text.find(part) != std::string::npos;
    };
    testing::internal::CaptureStdout();
    EXPECT_TRUE(report.memory(held));
    EXPECT_TRUE(report.communication({}, 1));
    EXPECT_FALSE(has(testing::internal::GetCapturedStdout(), "MISMATCH"));

    const Tensor extra = me == last ? Tensor::empty({1}, DType::fp32, Memory::gradient) : Tensor();
    Prediction more;
    if (me == last) more.communication.add(Communicator::world(), Collective::all_reduce, 1, 4);
    for (const auto& check : {std::function([&] { return report.memory(held); }),
                              std::function([&] { return report.communication(more, 1); })}) {
        testing::internal::CaptureStdout();
        EXPECT_FALSE(check());
        const std::string printed = testing::internal::GetCapturedStdout();
        if (me == 0) {
            EXPECT_TRUE(has(printed, "MISMATCH")) << printed;
            EXPECT_EQ(has(printed, fmt::format("on rank {}: not as predicted", last)), n > 1)
                << printed;
        }
    }
}

TEST(Report, ALargeNormIsPrintedWithAnExponent) {
    for (const auto& [norm, words] :
         {std::pair(2.2e33, "norm 2.2e+33  lr"), std::pair(999999.5, "norm 999999.500  lr")}) {
        testing::internal::CaptureStdout();
        Report report("test", Options{}, StepShape{}, 1);
        report.step({.step = 1, .loss = 1, .grad_norm = norm, .lr = 1, .seconds = 1, .tokens = 1});
        const std::string printed = testing::internal::GetCapturedStdout();
        if (Communicator::world().rank() != 0) continue;
        EXPECT_NE(printed.find(words), std::string::npos) << printed;
    }
}

nlohmann::json summary_of(const std::string& file) {
    std::ifstream in(file);
    std::string line, last;
    while (std::getline(in, line)) last = line;
    return nlohmann::json::parse(last).at("summary");
}

// Calls are counted under their group's name. Two groups must not be confused, even if they send
// the same bytes and the totals of a kind are equal.
TEST(Report, CommunicationIsPredictedByGroup) {
    const Communicator& world = Communicator::world();
    const int n = world.size(), me = world.rank();
    const Communicator dp = world.split(0, me, "dp"), tp = world.split(0, me, "tp");
    const test::TempDir folder;
    Options options;
    options.full_report = true;
    if (me == 0) options.json = folder / "report.jsonl";
    const auto printed_by = [&](const Prediction& predicted, bool as_predicted) {
        Report report("test", options, StepShape{}, 1);
        communication_reset_counts();
        const Tensor x = Tensor::zeros({256}, DType::fp32, Memory::workspace);
        dp.all_reduce(x), tp.all_reduce(x), tp.all_reduce(x);
        tp.barrier();
        testing::internal::CaptureStdout();
        EXPECT_EQ(counted_as_predicted(predicted.communication, 1, communication_counts()),
                  as_predicted);
        EXPECT_EQ(report.communication(predicted, 1), as_predicted);
        report.finish();
        return testing::internal::GetCapturedStdout();
    };
    Prediction right;
    right.communication.add(dp, Collective::all_reduce, 1, 1024);
    right.communication.add(tp, Collective::all_reduce, 2, 2048);
    right.communication.add({"tp", n}, Collective::barrier, 1, 0);
    const std::string printed = printed_by(right, true);
    if (me == 0) {
        EXPECT_NE(printed.find("\n    dp "), std::string::npos) << printed;
        EXPECT_NE(printed.find("\n    tp "), std::string::npos) << printed;
        const auto summary = summary_of(options.json);
        EXPECT_EQ(summary.at("communication").at("all-reduce").at("calls"), 3);
        const auto groups = summary.at("communication_by_group");
        EXPECT_EQ(groups.size(), 2u);
        EXPECT_EQ(groups.at("dp").size(), 1u);
        EXPECT_EQ(groups.at("tp").at("all-reduce").at("tensor_bytes"), 2048);
        EXPECT_EQ(groups.at("tp").at("all-reduce").at("predicted_calls"), 2);
        EXPECT_EQ(groups.at("tp").at("barrier").at("calls"), 1);
    }
    Prediction swapped = right;
    std::swap(swapped.communication.groups["dp"][size_t(Collective::all_reduce)],
              swapped.communication.groups["tp"][size_t(Collective::all_reduce)]);
    printed_by(swapped, false);
}

// The ranks of a pipeline hold different layers.
TEST(Report, RanksThatDifferHaveARowEach) {
    const int n = Communicator::world().size(), me = Communicator::world().rank();
    const test::TempDir folder;
    Options options;
    options.full_report = true;
    if (me == 0) options.json = folder / "report.jsonl";
    const Tensor held = Tensor::empty({1000 * (me + 1)}, DType::fp32, Memory::gradient);
    memory_reset_peak();
    const MemoryByCategory now = memory_now();
    Prediction predicted;
    predicted.memory = {.parameters = now[int(Memory::parameter)],
                        .gradients = now[int(Memory::gradient)],
                        .optimizer = now[int(Memory::optimizer)],
                        .peak_activations = now[int(Memory::activation)],
                        .peak_communication = now[int(Memory::communication)]};
    testing::internal::CaptureStdout();
    {
        Report report("test", options, StepShape{}, 1);
        EXPECT_TRUE(report.memory(predicted));
        report.finish();
    }
    const std::string printed = testing::internal::GetCapturedStdout();
    if (me != 0) return;
    EXPECT_EQ(printed.find("measured by rank") != std::string::npos, n > 1) << printed;
    EXPECT_EQ(printed.find(fmt::format("rank {}", n - 1)) != std::string::npos, n > 1) << printed;
    const auto ranks = summary_of(options.json).at("memory_by_rank");
    ASSERT_EQ(ranks.size(), size_t(n));
    for (int rank = 0; rank < n; ++rank) {
        const auto gradients = ranks.at(size_t(rank)).at("gradients");
        EXPECT_EQ(gradients.at("measured").get<int64_t>() - 4000 * (rank + 1),
                  ranks.at(0).at("gradients").at("measured").get<int64_t>() - 4000);
        EXPECT_EQ(gradients.at("predicted"), gradients.at("measured"));
    }
}

// While a file is being replaced, some ranks may see the old one and others the new one; here each
// rank has a folder of its own. The version that rank 0 sees holds for all.
TEST(Options, AllRanksLoadTheSameCheckpoint) {
    const int me = Communicator::world().rank();
    const test::TempDir dir;
    const std::unique_ptr<Llama> model = load(test::reference("tied_head_dim"));
    for (const int64_t step : {1, 2}) {
        TrainingState state{.step = step, .next_sample = step, .tokens_seen = 96, .seq = 96};
        state.options["--clip"] = fmt::format("{}", step + 1);
        save_checkpoint(dir / "run/" + checkpoint_folder(step),
                        load_config(test::reference("tied_head_dim")), model->parameters(),
                        {.state = &state});
    }
    write_file(dir / "run/latest_checkpoint", checkpoint_folder(me == 0 ? 1 : 2) + "\n");
    const auto before = std::filesystem::current_path();
    std::filesystem::current_path(dir.path());
    std::string words[] = {"test", "--load", "run"};
    char* argv[] = {words[0].data(), words[1].data(), words[2].data()};
    testing::internal::CaptureStdout();
    const Options options =
        parse_options(3, argv, "test", "trains", [](OptionList&, const Options&) {});
    testing::internal::GetCapturedStdout();
    std::filesystem::current_path(before);
    EXPECT_EQ(options.load, "run/checkpoint-1");
    EXPECT_EQ(options.optimizer.clip, 2);
}

}  // namespace
}  // namespace ultrascale
