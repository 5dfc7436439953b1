// 04_context_parallel: ranks that share sequences give one device's results, with memory and
// communication as predicted.
#include "compare_runs.h"

namespace ultrascale::test {
namespace {

const char* const chapter = "04_context_parallel";

// A model whose number of heads is divisible by 2, 4 and 8, and for three ranks one with heads
// divisible by 3. From 4 ranks on key heads are copied.
class SharedModel {
public:
    explicit SharedModel(bool by_three, bool tied = false) {
        put(dir_ / "config.json", config_json({{"num_attention_heads", by_three ? 6 : 8},
                                               {"num_key_value_heads", by_three ? 3 : 2},
                                               {"head_dim", 6},
                                               {"vocab_size", 61},
                                               {"tie_word_embeddings", tied}}));
        put(dir_ / "text.txt", text());
    }
    const std::string& path() const { return dir_.path(); }

private:
    // Token 10 begins a document. The lengths of documents are between 1 and 60.
    static std::string text() {
        std::string text;
        for (int i = 0; i < 3000; ++i)
            text += char(i % 97 % 60 == 0 || i % 53 == 7 ? 10 : 11 + i * i % 47);
        return text;
    }
    TempDir dir_;
};

const char* const sizes = "--seq 48 --steps 3 --lr 2e-3";
Outcome train_shared(int ranks, const std::string& arguments, bool tied = false) {
    const SharedModel model(ranks == 3, tied);
    return train(ranks, chapter,
                 fmt::format("--model {0} --data {0}/text.txt {1} --verify {2}", model.path(),
                             sizes, arguments));
}

// Returns every way in which n ranks can share sequences.
std::vector<std::string> ways(int n) {
    std::vector<std::string> all = {
        "--variant plain",
        "--layout contiguous",
        "--layout zigzag --ring-backward restarted",
        "--layout zigzag --ring-backward kept",
        "--layout zigzag",
        "--layout striped",
        "--bidirectional on",
        "--variant all-gather",
        "--variant all-gather --layout contiguous",
        "--variant ulysses",
    };
    for (int inside : {2, 3, 4, n})
        if (n % inside == 0 && (inside < n || n == 2))
            for (const char* layout : {"contiguous", "zigzag", "striped"})
                all.push_back(
                    fmt::format("--variant usp --ulysses {} --layout {}", inside, layout));
    return all;
}
bool striped(const std::string& way) { return contains(way, "striped"); }
bool plain(const std::string& way) { return contains(way, "plain"); }

// Each way gets different options, so that together they cover all of these.
const char* const others[] = {
    "--micro-batch 2",
    "--micro-batch 3 --grad-accum 2",
    "--micro-batch 2 --recompute full",
    "--micro-batch 1 --recompute full:1,selective:1",
    "--micro-batch 1 --grad-accum 3 --loss-chunk 5",
};

void expect_equal(int ranks, const std::string& arguments, bool tied = false) {
    SCOPED_TRACE(fmt::format("{} ranks: {}{}", ranks, arguments, tied ? ", tied" : ""));
    expect_verified(train_shared(ranks, arguments, tied));
}

TEST(ContextParallel, EveryWayEqualsOneDevice) {
    size_t i = 0;
    for (const std::string& way : ways(4)) expect_equal(4, way + " " + others[i++ % 5]);
    expect_equal(2, "--bidirectional on --micro-batch 2 --recompute full", true);
    expect_equal(3, "--micro-batch 3");
    expect_equal(3, "--variant ulysses --micro-batch 2 --dropout 0.1");
}

TEST(LongContextParallel, EveryWayByEveryNumberOfRanks) {
    for (const int n : {2, 3, 8}) {
        size_t i = 0;
        for (const std::string& way : ways(n)) {
            expect_equal(n, way + " " + others[i % 5], i % 2 == 0);
            ++i;
        }
    }
    for (const std::string& way : ways(4))
        for (const char* more : {"--micro-batch 3 --recompute full", "--micro-batch 1"})
            expect_equal(4, fmt::format("{} {}", way, more), true);
}

// The general ring with the plain ring's layout and options computes the same bits.
TEST(ContextParallel, ThePlainRingIsTheGeneralOnesReference) {
    for (const int n : {2, 3})
        for (const char* others :
             {"--micro-batch 2", "--micro-batch 2 --dtype bf16 --recompute full --dropout 0.1"}) {
            SCOPED_TRACE(fmt::format("{} ranks: {}", n, others));
            const Outcome plain = train_shared(n, fmt::format("--variant plain {}", others));
            expect_verified(plain);
            expect_same_bits(
                train_shared(
                    n, fmt::format("--layout contiguous --ring-backward restarted {}", others)),
                plain);
        }
}

// The losses equal those of the program for one device, not only those of --verify's own plain run.
TEST(ContextParallel, EqualsChapter00) {
    const SharedModel model(false);
    const auto with = [&](int ranks, const char* program, const std::string& arguments) {
        return train(ranks, program,
                     fmt::format("--model {0} --data {0}/text.txt {1} --val-data {0}/text.txt "
                                 "--val-every 3 --no-verify --dropout 0.1 {2}",
                                 model.path(), sizes, arguments));
    };
    const Outcome single = with(0, "00_single_gpu", "--micro-batch 4");
    const auto expect_as_single = [&](int ranks, const std::string& arguments) {
        SCOPED_TRACE(arguments);
        const Outcome run = with(ranks, chapter, arguments);
        expect_as_predicted(run);
        expect_close(run, single);
        EXPECT_NEAR(run.steps.back().at("val_loss").get<double>(),
                    single.steps.back().at("val_loss").get<double>(), 1e-5);
        EXPECT_EQ(run.summary.at("configuration").at("global_batch"), 4);
    };
    expect_same_bits(with(1, chapter, "--micro-batch 4"), single);
    expect_as_single(2, "--micro-batch 2 --grad-accum 2 --bidirectional on");
    expect_as_single(4, "--micro-batch 4 --variant usp --ulysses 2 --recompute full");
    for (const char* way :
         {"--variant plain", "--layout zigzag", "--variant all-gather", "--variant ulysses"})
        expect_as_single(4, fmt::format("--cp 2 --micro-batch 1 --grad-accum 2 {}", way));
    expect_as_single(4, "--cp 1 --micro-batch 1");
    EXPECT_GT(largest_difference(with(2, chapter, "--micro-batch 4 --seed 2").of("loss"),
                                 single.of("loss")),
              1e-4);
}

// Documents begin and end inside chunks; the batch determines which keys travel.
TEST(ContextParallelDocuments, EqualOneDevice) {
    const std::string documents = "--document-token 10 --micro-batch 2 ";
    for (const char* way : {"--layout zigzag", "--layout contiguous", "--variant all-gather"})
        expect_equal(4, documents + way);
    expect_equal(4, documents + "--cp 2 --layout striped --grad-accum 2");
    const auto sent = [](const Outcome& run) {
        return run.summary.at("communication").at("send/recv").at("sent_bytes").get<double>();
    };
    EXPECT_LT(
        sent(train_shared(4, documents + "--layout contiguous --ring-backward restarted")),
        sent(train_shared(4, "--micro-batch 2 --layout contiguous --ring-backward restarted")));
}

// Sequences of 48 tokens contain documents of 12 and 36 tokens; token 10 begins a document. The
// balance is the mean of the 4 ranks' numbers of pairs, divided by the largest.
TEST(ContextParallelDocuments, BalanceIsReported) {
    TempDir dir;
    std::string text;
    for (int i = 0; i < 480; ++i) text += char(i % 48 == 12 ? 10 : 97 + i * i % 23);
    put(dir / "text.txt", text);
    const Json balance =
        train(4, chapter,
              fmt::format("--data {}/text.txt --document-token 10 --layers 1 --seq 48 "
                          "--micro-batch 2 --steps 2 --no-verify",
                          dir.path()))
            .summary.at("balance");
    EXPECT_NEAR(balance.at("contiguous").get<double>(), 186. / 366, 1e-6);
    EXPECT_NEAR(balance.at("zigzag").get<double>(), 186. / 222, 1e-6);
    EXPECT_NEAR(balance.at("striped").get<double>(), 186. / 204, 1e-6);
}

TEST(LongContextParallelDocuments, EveryWayEqualsOneDevice) {
    for (const int n : {2, 3, 4, 8}) {
        size_t i = 0;
        for (const std::string& way : ways(n))
            if (!contains(way, "kept") && !plain(way))  // a ring with documents is restarted
                expect_equal(n, fmt::format("--document-token 10 {} {}", way, others[i++ % 5]));
    }
    expect_equal(8,
                 "--document-token 10 --cp 4 --micro-batch 2 --ignore-token 20 --bidirectional on");
}

TEST(LongContextParallelDropout, EqualsOneDevice) {
    for (const int n : {2, 4})
        for (const std::string& way : ways(n))
            if (!striped(way))
                expect_equal(n, way + " --micro-batch 2 --dropout 0.2 --recompute selective");
}

TEST(ContextParallelPrecision, Bf16) {
    for (const char* way : {"--variant plain", "--merge bf16", "--variant all-gather"})
        expect_equal(2, fmt::format("{} --dtype bf16 --micro-batch 2", way));
}

// The run is in fp32, but the error is bf16's; verify allows that and says so.
TEST(ContextParallelPrecision, Fp32MergedInBf16) {
    const char* const wider = "with wider bounds: --merge bf16";
    const Outcome rounded = train_shared(4, "--merge bf16 --recompute full --micro-batch 2"),
                  exact = train_shared(4, "--micro-batch 2");
    expect_verified(rounded);
    EXPECT_GT(rounded.summary.at("verify").at("gradient").get<double>(), 1e-4);
    EXPECT_TRUE(contains(rounded.out, wider)) << rounded.out;
    EXPECT_FALSE(contains(exact.out, wider)) << exact.out;
    // A ring of one rank does not merge.
    const Outcome nothing = train_shared(2, "--variant usp --ulysses 2 --merge bf16");
    expect_verified(nothing);
    EXPECT_FALSE(contains(nothing.out, wider)) << nothing.out;
}

TEST(LongContextParallelPrecision, Bf16) {
    for (const int n : {2, 4})
        for (const std::string& way : ways(n))
            for (const char* more : {"", "--fp32-grads --recompute full"})
                expect_equal(n, fmt::format("{} --dtype bf16 --micro-batch 2 {}", way, more));
}

// The bytes that a rank sends in one step for keys and values, and for their gradients, in units of
// K.
TEST(ContextParallelCosts, AreThoseOfTheFormulas) {
    const auto count = [](const std::string& arguments, const char* kind, const char* what) {
        const Outcome run = train(
            4, chapter, "--layers 2 --seq 64 --micro-batch 1 --steps 3 --no-verify " + arguments);
        expect_as_predicted(run);
        return run.summary.at("communication").at(kind).at(what).get<double>();
    };
    // Of 64 tokens a rank has 16, with 4 key heads of 16 numbers, in two layers.
    const double K = 2 * 16 * 4 * 16 * 4 * 2;
    EXPECT_EQ(count("", "send/recv", "sent_bytes"), (3 + 3 + 3) * K);
    EXPECT_EQ(count("--variant plain", "send/recv", "sent_bytes"), (3 + 3 + 4) * K);
    EXPECT_EQ(count("--ring-backward restarted", "send/recv", "sent_bytes"), (3 + 3 + 4) * K);
    EXPECT_EQ(count("--ring-backward kept", "send/recv", "sent_bytes"), (3 + 2 + 3) * K);
    EXPECT_EQ(count("--recompute full", "send/recv", "sent_bytes"), (3 + 3 + 3 + 3) * K);
    EXPECT_EQ(count("--variant all-gather", "all-gather", "sent_bytes"), (3 + 3) * K);
    EXPECT_EQ(count("--variant all-gather", "reduce-scatter", "sent_bytes"), 3 * K);
    // There are half as many key heads as heads, so q and o are K each, and k and v together are K.
    EXPECT_EQ(count("--variant ulysses", "all-to-all", "sent_bytes"), 2 * (3. / 4) * 3 * K);
}

// In most models the peak is in the feed-forward or the logits, which hides attention's part of the
// prediction. Here the peak is in attention.
TEST(ContextParallelCosts, MemoryIsExactWhereAttentionNeedsTheMost) {
    for (const int kv_heads : {2, 8}) {
        TempDir dir;
        put(dir / "config.json", config_json({{"hidden_size", 16},
                                              {"num_hidden_layers", 1},
                                              {"num_attention_heads", 8},
                                              {"num_key_value_heads", kv_heads},
                                              {"head_dim", 32},
                                              {"intermediate_size", 8},
                                              {"tie_word_embeddings", true}}));
        const std::vector<const char*> few = {"--variant plain", "--layout zigzag",
                                              "--variant all-gather"},
                                       all = {"--variant plain",
                                              "--variant plain --dtype bf16",
                                              "--variant plain --cp 2 --dtype bf16",
                                              "--layout zigzag",
                                              "--bidirectional on --dtype bf16",
                                              "--dtype bf16 --merge bf16",
                                              "--variant all-gather",
                                              "--variant all-gather --dtype bf16",
                                              "--variant ulysses",
                                              "--variant ulysses --dtype bf16",
                                              "--variant usp --ulysses 2",
                                              "--ring-backward restarted --dtype bf16",
                                              "--ring-backward kept",
                                              "--ring-backward kept --dtype bf16"};
        for (const char* way : kv_heads == 8 ? few : all) {
            SCOPED_TRACE(fmt::format("{} key heads: {}", kv_heads, way));
            const Json memory =
                train(4, chapter,
                      fmt::format("--model {} --seq 64 --micro-batch 2 --steps 1 --no-verify {}",
                                  dir.path(), way))
                    .summary.at("memory");
            for (const auto& [name, bytes] : memory.items())
                if (contains(name, "activations, peak") || contains(name, "communication")) {
                    EXPECT_EQ(bytes.at("predicted"), bytes.at("measured")) << name;
                }
            EXPECT_TRUE(memory.contains("activations, peak"));
        }
    }
}

TEST(ContextParallelCosts, HoldLessAsTheRingGrows) {
    const auto activations = [](int ranks, const std::string& arguments) {
        return train(ranks, chapter,
                     "--layers 4 --seq 128 --micro-batch 2 --steps 1 --no-verify " + arguments)
            .summary.at("memory")
            .at("activations, peak")
            .at("measured")
            .get<double>();
    };
    const double one = activations(1, ""), two = activations(2, ""), four = activations(4, "");
    EXPECT_LT(two, 0.6 * one);
    EXPECT_LT(four, 0.6 * two);
    EXPECT_LT(activations(4, "--variant ulysses"), 0.6 * two);
}

}  // namespace
}  // namespace ultrascale::test
