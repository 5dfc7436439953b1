// 01_data_parallel on pretended nodes: the cost of slow links, the hierarchical all-reduce, and
// DiLoCo.
#include <algorithm>

#include "run_program.h"

namespace ultrascale::test {
namespace {

Outcome train_on(int ranks, const std::string& arguments) {
    return train(ranks, "01_data_parallel", arguments);
}

const std::string tiny = "--layers 1 --seq 32 --micro-batch 1 --steps 4 ";

double kind_field(const Outcome& outcome, const char* kind, const char* field) {
    const Json& all = outcome.summary.at("communication");
    return all.contains(kind) ? all.at(kind).at(field).get<double>() : 0;
}
double communication_seconds(const Outcome& outcome) {
    double seconds = 0;
    for (const char* kind : {"all-reduce", "reduce-scatter", "all-gather", "send/recv"})
        seconds += kind_field(outcome, kind, "seconds");
    return seconds;
}

constexpr double rate = 0.05e9 / 8;  // bytes/s

// 4 ranks in two nodes sum S bytes of gradients. Our all-reduce on the CPU sends 2 (M-1)/M S = S
// from every rank to the other node; the hierarchical one sends half of it. (NCCL's ring: 2 (N-1)/N
// S = 1.5 S through one card.)
TEST(DataParallelNodes, SlowLinksTakeTheirTimeAndHierarchicalHalfOfIt) {
    const std::string nodes = tiny + "--node-size 2 --inter-gbps 0.05 --sync ";
    Outcome bucket, hierarchical;
    double size = 0;
    const bool in_time = in_one_of_six_tries([&] {
        bucket = train_on(4, nodes + "bucket"), hierarchical = train_on(4, nodes + "hierarchical");
        size = bucket.summary.at("memory").at("gradients").at("measured").get<double>();
        bool ok = communication_seconds(hierarchical) < 0.8 * communication_seconds(bucket);
        for (const Outcome* outcome : {&bucket, &hierarchical}) {
            EXPECT_EQ(outcome->summary.at("verify").at("result"), "ok");
            const double expected = size / rate / (outcome == &bucket ? 1 : 2),
                         measured = communication_seconds(*outcome);
            EXPECT_GT(measured, expected);
            ok = ok && measured < 1.6 * expected + 0.1;  // calls also wait for each other
        }
        return ok;
    });
    EXPECT_TRUE(in_time) << communication_seconds(bucket) << " s, hierarchical "
                         << communication_seconds(hierarchical) << " s";
    EXPECT_EQ(kind_field(hierarchical, "reduce-scatter", "tensor_bytes"), size);
    EXPECT_EQ(kind_field(hierarchical, "all-reduce", "tensor_bytes"), size / 2 + 16);
    EXPECT_EQ(kind_field(hierarchical, "all-gather", "tensor_bytes"), size);

    const Outcome fast = train_on(4, tiny + "--sync bucket");
    EXPECT_EQ(fast.of("loss"), bucket.of("loss")) << "slow links change nothing else";
    EXPECT_TRUE(in_one_of_six_tries([&] {
        return communication_seconds(train_on(
                   4, tiny + "--sync bucket --node-size 4 --inter-gbps 0.001")) < size / rate;
    })) << "inside a node nothing is slowed down";
}

// The buckets' sizes are not multiples of a node's ranks: h = 49 leaves one element of a norm over,
// and with h = 3 there is nothing to split.
TEST(DataParallelNodes, HierarchicalWithRemainders) {
    TempDir dir;
    for (const auto& [hidden, node_size] :
         std::vector<std::pair<int, int>>{{49, 2}, {3, 4}, {48, 1}}) {
        put(dir / "config.json", config_json({{"hidden_size", hidden}}));
        const Outcome outcome =
            train_on(4, fmt::format("--model {} --seq 32 --micro-batch 1 --steps 2 --sync "
                                    "hierarchical --bucket-mb 0.0001 --node-size {} "
                                    "--inter-gbps 100 --verify",
                                    dir.path(), node_size));
        EXPECT_EQ(outcome.summary.at("verify").at("result"), "ok");
    }
    // Without --node-size the machines are the nodes; here there is one.
    EXPECT_EQ(train_on(4, tiny + "--sync hierarchical --grad-accum 2 --no-sync off")
                  .summary.at("verify")
                  .at("result"),
              "ok");
}

TEST(DataParallelNodes, Compare) {
    const std::string table =
        run_ranks(4, "01_data_parallel", tiny + "--compare --node-size 2 --inter-gbps 10").out;
    EXPECT_TRUE(contains(table, "hierarchical, nodes of 2")) << table;
    EXPECT_FALSE(
        contains(run_ranks(2, "01_data_parallel", tiny + "--compare").out, "hierarchical"));
}

TEST(DataParallelNodes, BadInput) {
    const auto expect_refused_on = [](int ranks, const std::string& arguments,
                                      const std::vector<std::string>& telling) {
        const Outcome outcome = run_ranks(ranks, "01_data_parallel", tiny + arguments, 60);
        EXPECT_EQ(outcome.exit_code, 2) << arguments;
        EXPECT_TRUE(outcome.err.starts_with("error: ")) << outcome.err;
        EXPECT_EQ(std::ranges::count(outcome.err, '\n'), 1) << outcome.err;
        for (const std::string& part : telling)
            EXPECT_TRUE(contains(outcome.err, part))
                << "without \"" << part << "\": " << outcome.err;
    };
    expect_refused_on(4, "--node-size 3 --inter-gbps 1", {"--node-size 3", "4 ranks"});
    expect_refused_on(2, "--node-size 4 --inter-gbps 1", {"--node-size 4", "2 ranks"});
    expect_refused_on(2, "--node-size 2", {"--node-size", "--inter-gbps"});
    expect_refused_on(2, "--inter-gbps 1", {"--node-size", "--inter-gbps"});
    expect_refused_on(2, "--node-size 0 --inter-gbps 1", {"--node-size", "0"});
    expect_refused_on(2, "--node-size 2 --inter-gbps 0", {"--inter-gbps", "0"});
    expect_refused_on(2, "--node-size 2 --inter-gbps nan", {"--inter-gbps", "nan"});
    expect_refused_on(2, "--sync hierarchy", {"--sync", "hierarchy", "hierarchical"});
    // 12.5 MiB of moments, and as much for DiLoCo's own state
    expect_refused_on(2, "--layers 8 --seq 128 --micro-batch 1 --device-memory 0.034 --sync diloco",
                      {"out of memory", "optimizer 25.0 MiB", "--sync"});
    expect_refused_on(2, "--sync diloco --inner-steps 0", {"--inner-steps", "0"});
    expect_refused_on(2, "--sync diloco --outer-lr -1", {"--outer-lr", "-1"});
    expect_refused_on(2, "--sync diloco --outer-momentum 1.5", {"--outer-momentum", "1.5"});
    expect_refused_on(2, "--sync diloco --grad-accum 2 --no-sync off", {"--no-sync off", "diloco"});
}

TEST(DiLoCo, CommunicatesEveryHthStep) {
    const std::string arguments =
        "--layers 2 --seq 32 --micro-batch 4 --steps 12 --lr 3e-3 --sync diloco --inner-steps ";
    const Outcome every = train_on(2, arguments + "1"), fourth = train_on(2, arguments + "4"),
                  fifth = train_on(2, arguments + "5");
    const double size = every.summary.at("memory").at("gradients").at("measured").get<double>();
    const double numbers = 24;  // each step's loss, vote and norm
    EXPECT_EQ(kind_field(every, "all-reduce", "tensor_bytes") - numbers, size);
    EXPECT_EQ(kind_field(fourth, "all-reduce", "tensor_bytes") - numbers, size / 4);
    EXPECT_EQ(kind_field(fifth, "all-reduce", "calls") - 1, 3 / 12.0)
        << "the last round is shorter";
    EXPECT_EQ(fourth.summary.at("diloco").at("sent_bytes_per_token").get<double>() * 4,
              fourth.summary.at("diloco").at("all_reduce_sent_bytes_per_token").get<double>());
    for (const Outcome* outcome : {&every, &fourth, &fifth}) {
        EXPECT_LT(outcome->of("loss").back(), outcome->of("loss").front() - 1);
        EXPECT_EQ(outcome->summary.at("verify").at("result"), "not meant to be equal");
        EXPECT_TRUE(contains(outcome->out, "not meant to be equal"));
    }
    EXPECT_NEAR(every.of("loss")[0],
                train_on(2, "--layers 2 --seq 32 --micro-batch 4 --steps 1").of("loss")[0], 1e-6)
        << "the loss is the mean over all ranks' samples";
}

// On one rank, with eta = 1 and mu = 0, DiLoCo is plain training.
TEST(DiLoCo, OfOneRankIsPlainTraining) {
    for (const std::string dtype : {"fp32", "bf16"}) {
        const std::string arguments =
            "--layers 2 --seq 32 --micro-batch 4 --steps 10 --grad-accum 2 --dtype " + dtype +
            " --sync ";
        const std::vector<double> plain = train_on(1, arguments + "bucket").of("loss");
        const std::vector<double> diloco =
            train_on(1, arguments + "diloco --inner-steps 1 --outer-lr 1 --outer-momentum 0")
                .of("loss");
        ASSERT_EQ(plain.size(), diloco.size());
        for (size_t i = 0; i < plain.size(); ++i)
            EXPECT_NEAR(diloco[i], plain[i], dtype == "fp32" ? 1e-6 : 1e-3);
    }
}

TEST(DiLoCo, OuterStepByHand) {
    const std::string arguments = "--layers 2 --seq 32 --micro-batch 4 --steps 3 --sync ";
    const std::vector<double> plain = train_on(1, arguments + "bucket").of("loss");
    // The first Nesterov step moves by eta (1 + mu) delta: with eta = 1 / 1.9 as far as AdamW. The
    // second step moves further.
    const std::vector<double> nesterov =
        train_on(1, arguments +
                        "diloco --inner-steps 1 --outer-lr 0.5263157894736842 --outer-momentum 0.9")
            .of("loss");
    EXPECT_NEAR(nesterov[1], plain[1], 1e-6);
    EXPECT_LT(nesterov[2], plain[2] - 1e-3);
    // With eta = 0 theta does not move, on any rank.
    const std::vector<double> still =
        train_on(2, arguments + "diloco --inner-steps 1 --outer-lr 0 --outer-momentum 0")
            .of("loss");
    const std::vector<double> no_lr = train_on(2, arguments + "bucket --lr 0").of("loss");
    for (size_t i = 0; i < still.size(); ++i) EXPECT_NEAR(still[i], no_lr[i], 1e-6);
}

// A run ends with an outer step, so there is one model to save.
TEST(DiLoCo, SavesTheWeights) {
    TempDir dir;
    const std::string arguments =
        "--layers 2 --seq 32 --micro-batch 2 --sync diloco --inner-steps 3 --dtype bf16 ";
    train_on(2, arguments + "--steps 5 --save " + (dir / "saved"));
    EXPECT_FALSE(std::filesystem::exists(dir / "saved/trainer_state.json"))
        << "weights only: every rank has moments of its own";
    const Outcome more = train_on(2, arguments + "--steps 2 --load " + (dir / "saved"));
    EXPECT_LT(more.of("loss")[0], 5.5);
}

}  // namespace
}  // namespace ultrascale::test
