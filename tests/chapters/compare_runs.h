// Compares two runs of chapters: bit by bit, or within rounding.
#pragma once

#include <algorithm>
#include <cmath>
#include <sstream>

#include "run_program.h"

namespace ultrascale::test {

inline void expect_same_bits(const Outcome& a, const Outcome& b) {
    EXPECT_EQ(a.of("loss"), b.of("loss"));
    EXPECT_EQ(a.of("grad_norm"), b.of("grad_norm"));
    EXPECT_EQ(a.of("lr"), b.of("lr"));
}

// Tensors are written in the same order, whichever rank held them. The options that the training
// state records may differ: another layout cuts the batch in another way.
inline void expect_same_checkpoints(const std::string& a, const std::string& b) {
    for (const char* file : {"config.json", "model.safetensors", "optimizer.safetensors"})
        EXPECT_TRUE(slurp(a + "/" + file) == slurp(b + "/" + file)) << file;
    const auto state_in = [](const std::string& dir) {
        Json state = Json::parse(slurp(dir + "/trainer_state.json"));
        EXPECT_EQ(state.erase("options"), 1u);
        return state;
    };
    EXPECT_EQ(state_in(a), state_in(b));
}

inline double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
    EXPECT_EQ(a.size(), b.size());
    double most = 0;
    for (size_t i = 0; i < std::min(a.size(), b.size()); ++i)
        most = std::max(most, std::abs(a[i] - b[i]));
    return most;
}

// Compares losses and norms of runs that sum in different orders.
inline void expect_close(const Outcome& a, const Outcome& b) {
    EXPECT_LE(largest_difference(a.of("loss"), b.of("loss")), on_gpu ? 1e-5 : 1e-6);
    EXPECT_LE(largest_difference(a.of("grad_norm"), b.of("grad_norm")), on_gpu ? 1e-4 : 1e-5);
}
// Compares runs that sum in the same order. On GPUs NCCL chooses the order: an all-reduce may add
// differently from a reduce-scatter.
inline void expect_the_same(const Outcome& a, const Outcome& b) {
    on_gpu ? expect_close(a, b) : expect_same_bits(a, b);
}

// Expects that a run reports equality with one plain device, and memory and communication as
// predicted.
inline void expect_as_predicted(const Outcome& run) {
    for (const char* name : {"parameters", "gradients", "optimizer"}) {
        const Json bytes = run.summary.at("memory").at(name);
        EXPECT_EQ(bytes.at("predicted"), bytes.at("measured")) << name;
    }
    for (const auto& [name, count] : run.summary.at("communication").items()) {
        EXPECT_EQ(count.at("calls").get<double>(), count.at("predicted_calls").get<double>())
            << name;
        for (const std::string bytes : {"tensor_bytes", "sent_bytes"})
            EXPECT_DOUBLE_EQ(count.at(bytes).get<double>(),
                             count.at("predicted_" + bytes).get<double>())
                << name;
    }
    EXPECT_FALSE(contains(run.out, "MIS")) << run.out;  // MISSED, MISMATCH
}
inline void expect_verified(const Outcome& run) {
    EXPECT_EQ(run.summary.at("verify").at("result"), "ok") << run.out;
    expect_as_predicted(run);
}

// Returns whether the run missed the check whose line begins with `begin`.
inline bool missed(const Outcome& run, const std::string& begin) {
    std::istringstream lines(run.out);
    for (std::string line; std::getline(lines, line);)
        if (line.starts_with("  " + begin) && contains(line, "MISSED")) return true;
    return false;
}

inline int gpus() {  // GPUs of this machine
    int count = 0;
    while (std::filesystem::exists(fmt::format("/dev/nvidia{}", count))) ++count;
    return count;
}

// Runs with these arguments, each besides `common`, must equal one device, hold and send what is
// predicted, and reach exactly the predicted peak of activations.
struct ChapterRun {
    int ranks;
    const char *chapter, *arguments;
};
inline void expect_exact_peaks(const std::string& common, const std::vector<ChapterRun>& runs) {
    for (const auto& [ranks, chapter, arguments] : runs) {
        if (on_gpu && ranks > gpus()) continue;
        SCOPED_TRACE(fmt::format("{} {}", chapter, arguments));
        const Outcome run = train(ranks, chapter, fmt::format("{} {}", common, arguments));
        expect_verified(run);
        const Json peak = run.summary.at("memory").at("activations, peak");
        EXPECT_NEAR(peak.at("measured").get<double>() / peak.at("predicted").get<double>(), 1,
                    1e-9);
    }
}

// The numbers of ranks with which every technique is tested. On GPUs, where a start takes seconds,
// there are fewer; one of them is the number of GPUs.
inline std::vector<int> rank_counts() {
    if (!on_gpu) return {3};
    return gpus() > 3 ? std::vector<int>{2, 3, gpus()} : std::vector<int>{2, 3};
}
inline std::vector<int> more_rank_counts() {
    return on_gpu ? std::vector<int>{} : std::vector<int>{2, 4, 8};
}

// Options that load a Hugging Face checkpoint and train on its own tokens.
inline std::string load(const std::string& name) {
    return fmt::format("--load {0} --data {0}/tokens.bin", reference(name));
}

// A small model whose sizes are divisible by no number of ranks: a directory with a config.json for
// --model.
class SmallModel {
public:
    explicit SmallModel(bool tied = false) {
        put(dir_ / "config.json",
            config_json(
                {{"num_hidden_layers", 3}, {"vocab_size", 257}, {"tie_word_embeddings", tied}}));
    }
    const std::string& path() const { return dir_.path(); }

private:
    TempDir dir_;
};

// A model whose number of heads is divisible by 1, 2, 4 and 8. From 4 ranks on key-value heads are
// copied. The vocabulary is not divisible.
class SplitModel {
public:
    explicit SplitModel(bool tied = false, int layers = 2) {
        put(dir_ / "config.json", config_json({{"num_hidden_layers", layers},
                                               {"num_attention_heads", 8},
                                               {"num_key_value_heads", 2},
                                               {"head_dim", 6},
                                               {"vocab_size", 257},
                                               {"tie_word_embeddings", tied}}));
    }
    const std::string& path() const { return dir_.path(); }

private:
    TempDir dir_;
};

}  // namespace ultrascale::test
