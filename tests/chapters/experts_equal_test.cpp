// 06_expert_parallel: ranks that share experts give one device's results, with memory and
// communication as predicted for the rows that came.
#include "compare_runs.h"

namespace ultrascale::test {
namespace {

const char* const chapter = "06_expert_parallel";
const std::string sizes = "--layers 2 --seq 16 --micro-batch 2 --lr 2e-3 --verify ";
const std::string small = sizes + "--steps 3 ";

void expect_equal(int ranks, const std::string& arguments) {
    SCOPED_TRACE(fmt::format("{} ranks: {}", ranks, arguments));
    const Outcome run = train(ranks, chapter, small + arguments);
    if (run.exit_code != 0) return;
    expect_verified(run);
}

TEST(ExpertParallel, EqualsOneDevice) {
    expect_equal(0, "--shared 1 --first-dense 1 --recompute full");
    expect_equal(4, "--grad-accum 2 --recompute full:1");
    expect_equal(4, "--ep 2 --z-coef 0.01 --aux switch --loss-chunk 10");
    expect_equal(2, "--shared 1 --overlap shared --renormalise off --scaling 2.5 --dropout 0.1");
    expect_equal(2, "--experts 4 --top-k 4 --dtype bf16");
}

TEST(ExpertParallel, EveryBalance) {
    expect_equal(2, "--router sigmoid --balance bias --gamma 0.05 --groups 4 --top-groups 2");
    expect_equal(2, "--aux hf --aux-over global --grad-accum 2 --aux-coef 0.1");
    expect_equal(2,
                 "--aux megatron --aux-over global --dropout 0.1 --recompute full --aux-coef 0.1");
    expect_equal(2, "--aux sequence --router sigmoid --grad-accum 2 --aux-coef 0.1");
    expect_equal(2, "--skew 0.5 --top-k 3");
}

TEST(ExpertParallel, PlainDispatch) {
    expect_equal(4, "--dispatch plain --ep 2 --grad-accum 2 --first-dense 1");
    expect_equal(2, "--dispatch plain --recompute full --dropout 0.1 --top-k 3 --skew 0.5");
    expect_equal(2,
                 "--dispatch plain --aux megatron --aux-over global --aux-coef 0.1 --dtype bf16");
}

TEST(ExpertParallel, EveryDispatch) {
    expect_equal(4, "--dispatch rank --top-k 3 --shared 1 --overlap shared");
    expect_equal(4, "--node-size 2 --inter-gbps 10 --top-k 3 --max-nodes 1 --recompute full");
    expect_equal(2, "--capacity-factor 0.8 --drop score");
    expect_equal(4, "--ep 2 --capacity-factor 1.25 --grad-accum 2");
}

// The plain training rounds the same rows.
TEST(ExpertParallel, RowsInFp8) {
    expect_equal(4, "--dispatch-dtype fp8 --ep 2 --shared 1 --overlap shared --recompute full");
    expect_equal(2, "--dispatch-dtype fp8-both --capacity-factor 0.8 --dropout 0.1 --dtype bf16");
    expect_equal(2, "--dispatch-dtype fp8-both --dispatch rank --overlap batches --grad-accum 2");
    expect_equal(4, "--dispatch-dtype fp8 --node-size 2 --inter-gbps 10 --max-nodes 1 --top-k 3");
    expect_equal(0, "--dispatch-dtype fp8-both");
}

// Experts are placed by loads, whether or not these are right, and some are on several ranks.
TEST(ExpertParallel, PlacedByLoad) {
    const TempDir dir;
    put(dir / "loads", "40 1 9 3 9 2 0 4\n1 2 3 4 5 6 7 8\n");
    const std::string placed = "--loads " + (dir / "loads");
    expect_equal(4, placed);
    expect_equal(4, placed + " --replicas 4 --ep 2 --grad-accum 2 --recompute full");
    expect_equal(3, placed + " --replicas 1 --dropout 0.1");
    expect_equal(4, placed + " --replicas 8 --overlap chunks --shared 1");
    expect_equal(2, placed +
                        " --replicas 4 --overlap batches --grad-accum 2 --dispatch-dtype fp8-both "
                        "--router sigmoid --balance bias --dtype bf16");
}

// If the loads are those of the same step, ranks get the rows that they predict: exactly, or with
// replicas up to a row for each sender and slot.
TEST(ExpertParallel, RanksGetTheRowsThatLoadsPredict) {
    const TempDir dir;
    const std::string common = "--layers 2 --seq 64 --micro-batch 2 --steps 1 --no-verify ",
                      loads = dir / "loads";
    train(4, chapter, common + "--save-loads " + loads);
    double before = INFINITY;
    for (const int R : {0, 4, 8}) {
        const Outcome run =
            train(4, chapter,
                  common + "--loads " + loads + (R > 0 ? fmt::format(" --replicas {}", R) : ""));
        expect_as_predicted(run);
        const Json& experts = run.summary.at("experts");
        const double first = experts.at("busiest_first"), mean = 64 * 2 * 2, slots = (8 + R) / 4.0;
        EXPECT_NEAR(first, experts.at("busiest_as_placed"), R > 0 ? 4 * slots / mean : 1e-12);
        EXPECT_LT(first, std::min<double>(before - 0.02, experts.at("busiest_in_order")));
        EXPECT_EQ(experts.at("copies_sent"), experts.at("copies_predicted"));
        before = first;
    }
}

TEST(ExpertParallel, InChunks) {
    expect_equal(4, "--overlap chunks --shared 1");
    expect_equal(4, "--ep 2 --overlap chunks --chunks 4 --recompute full --grad-accum 2");
    expect_equal(2, "--overlap chunks --chunks 4 --capacity-factor 0.8 --drop score");
}

// A micro-batch's backward runs beside the next one's forward.
TEST(ExpertParallel, BesideAnotherMicroBatch) {
    expect_equal(2, "--overlap batches --grad-accum 3 --shared 1 --first-dense 1");
    expect_equal(4, "--overlap batches --grad-accum 2 --dispatch rank --ep 2 --top-k 3");
    expect_equal(2, "--overlap batches --grad-accum 4 --capacity-factor 0.8 --dropout 0.1");
    expect_equal(2,
                 "--overlap batches --grad-accum 2 --aux-over global --aux-coef 0.1 --attention "
                 "naive --recompute selective --dtype bf16");
    expect_equal(4, "--overlap batches --grad-accum 3 --node-size 2 --inter-gbps 10 --max-nodes 1");
}

// Each combination runs with half of the layouts in turn, so every pair of choices occurs.
TEST(LongExpertParallel, EqualsOneDevice) {
    const std::pair<int, const char*> layouts[] = {{8, ""},
                                                   {4, "--ep 2 --grad-accum 2 "},
                                                   {3, "--ep 1 "},
                                                   {2, "--recompute full --shared 2 "}};
    int turn = 0;
    for (const char* router : {"", "--router sigmoid --groups 2 --top-groups 1 --balance bias "})
        for (const char* balance : {"", "--aux megatron --aux-coef 0.1 ", "--z-coef 0.1 ",
                                    "--aux-over global --aux-coef 0.1 "})
            for (const char* dispatch : {"", "--dispatch rank ", "--capacity-factor 1 "}) {
                for (size_t i = size_t(turn % 2); i < 4; i += 2) {
                    const auto [ranks, layout] = layouts[i];
                    expect_equal(ranks, std::string(router) + balance + dispatch + layout);
                }
                ++turn;
            }
}

// A repeated run has the same bits, and so has a run that resumes, including its biases.
TEST(ExpertParallel, RepeatsAndResumes) {
    TempDir dir;
    const std::string common =
        "--layers 2 --seq 16 --micro-batch 2 --lr 1e-2 --router sigmoid --balance bias --gamma 0.1 "
        "--no-verify ";
    const Outcome all = train(2, chapter, common + "--steps 6"),
                  again = train(2, chapter, common + "--steps 6"),
                  half = train(2, chapter, common + "--steps 3 --save " + (dir / "saved")),
                  rest = train(2, chapter, common + "--steps 3 --load " + (dir / "saved"));
    expect_the_same(again, all);
    const std::vector<double> losses = all.of("loss");
    EXPECT_LE(largest_difference(rest.of("loss"), {losses.begin() + 3, losses.end()}),
              on_gpu ? 1e-5 : 0);
    // A run may resume on another number of ranks.
    const Outcome alone =
        train(0, chapter, common + "--grad-accum 2 --steps 3 --load " + (dir / "saved"));
    EXPECT_LE(largest_difference(alone.of("loss"), rest.of("loss")), on_gpu ? 1e-5 : 1e-6);
}

// An expert with copies is saved once, and another placement goes on with it.
TEST(ExpertParallel, CopiesAreSavedOnce) {
    const TempDir dir;
    put(dir / "loads", "40 1 9 3 9 2 0 4\n1 2 3 4 5 6 7 8\n");
    const std::string common = "--layers 2 --seq 16 --micro-batch 2 --lr 2e-3 --no-verify ",
                      placed = "--loads " + (dir / "loads") + " --replicas 4 ";
    train(4, chapter, common + placed + "--steps 2 --save " + (dir / "placed"));
    train(4, chapter, common + "--steps 2 --save " + (dir / "order"));
    for (const char* file : {"/model.safetensors", "/optimizer.safetensors"})
        EXPECT_EQ(slurp(dir / "placed" + file).size(), slurp(dir / "order" + file).size());
    const std::string rest = common + "--steps 2 --load ";
    const std::vector<double> losses = train(4, chapter, rest + (dir / "order")).of("loss");
    for (const std::string& with : {std::string(), placed})
        EXPECT_LE(largest_difference(
                      train(4, chapter, rest + (dir / "placed") + " " + with).of("loss"), losses),
                  1e-5);
}

// Expects Hugging Face's losses and gradient norms, with and without its balancing loss, for any
// number of ranks (tests/reference/make_experts_reference.py).
void expect_as_hugging_face(const std::string& name, int ranks, const std::string& arguments,
                            const char* kind) {
    SCOPED_TRACE(fmt::format("{} {} ranks {}", name, ranks, arguments));
    const Json expected =
        Json::parse(slurp(reference(name) + "/expected.json")).at(kind).at("float64");
    const Outcome run = train(ranks, chapter,
                              fmt::format("{} --steps {} --seq 64 --lr 1e-3 --no-verify {}",
                                          load(name), expected.at("loss").size(), arguments));
    const auto losses = expected.at("loss").get<std::vector<double>>(),
               norms = expected.at("grad_norm").get<std::vector<double>>();
    EXPECT_NEAR(run.of("loss")[0], losses[0], 1e-6);
    EXPECT_LE(largest_difference(run.of("loss"), losses), 5e-6);
    for (size_t i = 0; i < norms.size(); ++i)
        EXPECT_NEAR(run.of("grad_norm")[i] / norms[i], 1, 1e-4);
}

TEST(ExpertParallelReference, HuggingFace) {
    const char* const aux = "--aux-coef 0.02 --aux-over global ";
    expect_as_hugging_face("mixtral", 0, "--micro-batch 8", "plain");
    expect_as_hugging_face("mixtral", 2, std::string(aux) + "--micro-batch 2 --grad-accum 2",
                           "aux");
    expect_as_hugging_face("qwen3_moe", 4, "--micro-batch 2 --ep 2 --dispatch rank", "plain");
    expect_as_hugging_face("qwen3_moe", 2, std::string(aux) + "--micro-batch 4", "aux");
    // Latent attention, and DeepSeek-V3's router, whose biases stay as they are.
    expect_as_hugging_face("deepseek_v3", 2, "--balance bias --gamma 0 --micro-batch 4", "plain");
}

// A loaded model is saved unchanged: Mixtral's and DeepSeek-V3's even byte by byte.
TEST(ExpertParallelReference, SavesWhatItLoaded) {
    for (const std::string name : {"mixtral", "qwen3_moe", "deepseek_v3"}) {
        TempDir dir;
        train(2, chapter,
              fmt::format("{} --steps 0 --seq 64 --save {}", load(name), dir / "saved"));
        if (name != "qwen3_moe") {
            EXPECT_TRUE(slurp(dir / "saved/model.safetensors") ==
                        slurp(reference(name) + "/model.safetensors"));
        }
        const std::string again = "--steps 1 --seq 64 --micro-batch 4 --no-verify ";
        EXPECT_EQ(train(2, chapter,
                        fmt::format("{} --load {} --data {}/tokens.bin", again, dir / "saved",
                                    reference(name)))
                      .of("loss"),
                  train(2, chapter, again + load(name)).of("loss"));
    }
}

// Mistakes made on purpose (--trap) are found.
TEST(ExpertParallelTraps, AreFound) {
    const auto expect_missed = [](const std::string& arguments, const char* line) {
        SCOPED_TRACE(arguments);
        const Outcome run = train(2, chapter, small + arguments, 1);
        EXPECT_TRUE(missed(run, line)) << run.out;
    };
    expect_missed(
        "--router sigmoid --groups 4 --top-groups 2 --top-k 4 --balance bias --gamma 0.9 --lr 1e-3 "
        "--steps 4 --trap groups-masked-with-0",
        "choices ");
    expect_missed("--router sigmoid --balance bias --gamma 0.1 --trap weights-from-biased",
                  "weights ");
    expect_missed("--trap softmax-twice", "gradient ");
    expect_missed("--trap experts-summed-over-ep", "gradient ");
    expect_missed("--trap experts-divided-by-ep", "gradient ");
    expect_missed("--trap norm-without-experts", "norm ");
    expect_missed("--grad-accum 2 --trap aux-times-micro-batches", "gradient ");
    expect_missed("--dispatch-dtype fp8 --trap scales-of-neighbour", "gradient ");
    const TempDir dir;
    put(dir / "loads", "40 1 9 3 9 2 0 4\n1 2 3 4 5 6 7 8\n");
    const std::string copies = "--loads " + (dir / "loads") + " --replicas 2 --trap copies-apart";
    expect_missed(copies, "gradient ");
    expect_missed(copies, "norm ");
}

// Adam hides a constant factor in experts' gradients: the losses look right.
TEST(ExpertParallelTraps, AdamHidesAFactor) {
    const std::string arguments =
        "--layers 2 --seq 16 --micro-batch 2 --steps 8 --clip 0 --no-verify ";
    const Outcome right = train(2, chapter, arguments),
                  wrong = train(2, chapter, arguments + "--trap experts-divided-by-ep");
    EXPECT_LE(largest_difference(right.of("loss"), wrong.of("loss")), 1e-3);
    EXPECT_GT(largest_difference(right.of("grad_norm"), wrong.of("grad_norm")), 5e-3);
}

// The drops depend on how the batch is cut; without a capacity the cut does not matter.
TEST(ExpertParallel, DropsDependOnTheLayout) {
    const auto losses = [](int ranks, const std::string& arguments) {
        return train(ranks, chapter,
                     "--layers 2 --seq 16 --steps 2 --no-verify --aux-coef 0 " + arguments)
            .of("loss");
    };
    EXPECT_LE(largest_difference(losses(0, "--micro-batch 4"), losses(2, "--micro-batch 2")),
              on_gpu ? 1e-5 : 1e-6);
    EXPECT_GT(largest_difference(losses(0, "--micro-batch 4 --capacity-factor 0.8"),
                                 losses(2, "--micro-batch 2 --capacity-factor 0.8")),
              1e-4);
}

// In bf16 a dispatch in fp8 sends 33/64 of the bytes of its rows; all else stays as it is.
TEST(ExpertParallel, RowsInFp8SendFewerBytes) {
    const auto sent = [](const std::string& arguments) {
        const Outcome run =
            train(2, chapter,
                  "--layers 1 --seq 64 --micro-batch 1 --steps 1 --no-verify --dtype bf16 "
                  "--force-balance " +
                      arguments);
        expect_as_predicted(run);
        return run.summary.at("all_to_all").at("counted").get<double>();
    };
    const double rows = 64 * 2 / 2, exact = sent("");  // that leave a rank
    EXPECT_EQ(exact - sent("--dispatch-dtype fp8"), rows * 128 * (2 - 33.0 / 32));
    EXPECT_EQ(exact - sent("--dispatch-dtype fp8-both"), 2 * rows * 128 * (2 - 33.0 / 32));
}

// Compares the bytes of the two dispatches, and the bytes between nodes.
TEST(ExpertParallel, FewerCopiesAreSent) {
    const auto sent = [](const std::string& arguments) {
        const Outcome run = train(
            4, chapter,
            "--layers 1 --seq 64 --micro-batch 2 --steps 2 --no-verify --top-k 4 --experts 16 "
            "--node-size 2 --inter-gbps 100 " +
                arguments);
        expect_as_predicted(run);
        const Json& bytes = run.summary.at("all_to_all");
        EXPECT_EQ(bytes.at("exact"), bytes.at("counted"));
        return bytes;
    };
    const Json expert = sent(""), rank = sent("--dispatch rank"), nodes = sent("--max-nodes 1");
    EXPECT_LT(rank.at("counted").get<double>(), 0.9 * expert.at("counted").get<double>());
    EXPECT_LT(nodes.at("between_nodes").get<double>(),
              0.7 * rank.at("between_nodes").get<double>());
}

TEST(ExpertParallel, CompareAndDemo) {
    const Outcome compare = run_ranks(
        4, chapter, "--compare --layers 1 --seq 16 --micro-batch 1 --steps 3 --peak-tflops 1");
    EXPECT_EQ(compare.exit_code, 0) << compare.out << compare.err;
    EXPECT_FALSE(contains(compare.out, "MIS")) << compare.out;
    for (const char* row :
         {"ep 1 x dp 4 ", "ep 2 x dp 2, plain", "ep 2 x dp 2, expert", "ep 2 x dp 2, rank",
          "ep 4 x dp 1, plain", "ep 4 x dp 1, expert", "ep 4 x dp 1, rank", "ep 4 x dp 1, fp8",
          "ep 2 x dp 2, copies", "ep 4 x dp 1, copies", "busiest rank"})
        EXPECT_TRUE(contains(compare.out, row)) << row << " is not in\n" << compare.out;
    for (const int ranks : {1, 2}) {
        const Outcome demo = run_ranks(ranks, chapter, "--demo route");
        EXPECT_EQ(demo.exit_code, 0) << demo.out << demo.err;
        EXPECT_TRUE(contains(demo.out, "y5 = 0.62*(15, 3) + 0.38*(20, 4) = (16.89, 3.38) ok"))
            << demo.out;
    }
}

}  // namespace
}  // namespace ultrascale::test
