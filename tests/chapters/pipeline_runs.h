// Helpers that the tests of 05_pipeline share.
#pragma once

#include "compare_runs.h"

namespace ultrascale::test::pipeline {

inline const char* const chapter = "05_pipeline";

// A model with `layers` layers and a vocabulary divisible by no number of ranks, and a text for it.
class LayeredModel {
public:
    explicit LayeredModel(int layers, bool tied = false) {
        put(dir_ / "config.json", config_json({{"num_hidden_layers", layers},
                                               {"vocab_size", 61},
                                               {"tie_word_embeddings", tied}}));
        std::string text;
        for (int i = 0; i < 3000; ++i)
            text += char(i % 97 % 60 == 0 || i % 53 == 7 ? 10 : 11 + i * i % 47);
        put(dir_ / "text.txt", text);
    }
    const std::string& path() const { return dir_.path(); }
    std::string arguments() const {
        return fmt::format("--model {0} --data {0}/text.txt --seq 24 --micro-batch 1 --lr 2e-3 ",
                           path());
    }

private:
    TempDir dir_;
};

// Returns whether a schedule exists for p ranks and m micro-batches.
inline bool exists(const std::string& schedule, int p, int m) {
    if (schedule.starts_with("interleaved")) return m % p == 0;
    if (schedule == "dualpipe") return p % 2 == 0 && m % 2 == 0 && m >= 2 * p;
    if (schedule == "dualpipev") return m >= 2 * p;
    return true;
}
// The executor's schedules. (The plain loop takes neither --post-validation nor --pretend.)
inline const std::vector<std::string> schedules = {
    "naive", "afab",  "1f1b", "1f1b-overlap", "interleaved", "breadth-first",
    "zb-h1", "zb-h2", "zbv",  "v-half",       "dualpipe",    "dualpipev"};

// The run's exit code, which train() checks, says whether every rank's share of the peak is as
// predicted. This checks rank 0's own peak, which must be within 1 %.
inline void expect_peak(const Outcome& run) {
    const Json peak = run.summary.at("memory").at("activations, peak");
    const double predicted = peak.at("predicted"), measured = peak.at("measured");
    EXPECT_LE(std::abs(measured - predicted), 0.01 * predicted) << run.out;
}

inline Outcome expect_equal(int ranks, const LayeredModel& model, const std::string& arguments) {
    SCOPED_TRACE(fmt::format("{} ranks: {}", ranks, arguments));
    const Outcome run =
        train(ranks, chapter, model.arguments() + "--steps 3 --verify " + arguments);
    if (run.exit_code == 0) expect_verified(run), expect_peak(run);
    return run;
}

}  // namespace ultrascale::test::pipeline
