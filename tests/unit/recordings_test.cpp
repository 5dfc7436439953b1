// Tests what --cuda-graph does besides the graph itself, with a stand-in that counts instead of
// recording. That a graph changes no bit is tested on a GPU (chapters/cuda_graph_test.cpp).
#include "train/recordings.h"

#include "lab/options/cli.h"
#include "llama_runs.h"
#include "train/step.h"

namespace ultrascale::test {
namespace {

constexpr int64_t T = 8, B = 2;

LlamaConfig bytes_model() {
    LlamaConfig config = small();
    config.vocab = 256;
    return config;
}

// A recording whose replays add 1 to the loss and keep the tokens that they would compute with.
// (What it "records" runs, too.)
struct StandIn : Recording {
    struct Log {
        Context now;  // of the micro-batch that ran last
        std::vector<std::vector<int32_t>> replayed;
    };
    explicit StandIn(Log& log) : log(log) {}
    void begin() override {}
    void end() override { recorded = log.now; }
    void replay() override {
        ops::accumulate_sum(recorded.loss, one, 1);
        log.replayed.push_back(recorded.batch.tokens.to_host<int32_t>());
    }
    int64_t launches() const override { return 7; }
    Log& log;
    Context recorded;
    const Tensor one = Tensor::from_host<float>(std::vector<float>{1}, {1}, Memory::workspace);
};

class RecordedSteps : public testing::Test {
protected:
    // Trains a step and returns how many of its micro-batches ran.
    int run(int64_t number, int64_t micro_batches, const DataLoader& loader,
            int64_t sequences = B) {
        Step step(loader, {.micro_batch = sequences}, number, first_, micro_batches * sequences);
        step.first = number == 1, step.recordings = &recordings_;
        ParameterList& parameters = model_->parameters();
        parameters.begin_gradients(micro_batches);
        int ran = 0;
        for (MicroBatch batch : step.micro_batches()) {
            log_.now = batch;
            Saved saved;
            model_->forward(batch, saved);
            model_->backward(batch, saved);
            if (communicates_) communication_add_counts(one_all_reduce());
            ++ran;
        }
        parameters.check_complete();
        for (const auto& p : parameters) EXPECT_TRUE(p->has_grad) << p->name;
        first_ += micro_batches * sequences, loss_ = scalar(step.loss);
        return ran;
    }
    int run(int64_t number, int64_t micro_batches) { return run(number, micro_batches, loader_); }

    const TokenFile file_{Options().data_path(), 256};
    const DataLoader loader_{file_, {.seq = T}};
    const std::unique_ptr<Llama> model_ = make(bytes_model());
    StandIn::Log log_;
    Recordings recordings_{[this] { return std::make_unique<StandIn>(log_); }};
    int64_t first_ = 0;
    double loss_ = 0;
    bool communicates_ = false;

private:
    static CommunicationCounts one_all_reduce() {
        CommunicationCounts counts;
        counts.groups["dp"][size_t(Collective::all_reduce)] = {.calls = 1, .bytes = 40, .sent = 30};
        return counts;
    }
};

TEST_F(RecordedSteps, AreReplayedFromTheThirdOn) {
    EXPECT_EQ(run(1, 4), 4);
    EXPECT_EQ(run(2, 4), 3);  // the third is a replay of the second
    EXPECT_EQ(recordings_.replays(), 1);
    EXPECT_DOUBLE_EQ(loss_, 4);  // what was recorded was replayed once, too
    log_.replayed.clear();
    EXPECT_EQ(run(3, 4), 0);
    EXPECT_EQ(recordings_.replays(), 5);
    EXPECT_DOUBLE_EQ(loss_, 4);
    ASSERT_EQ(log_.replayed.size(), 4u);
    for (int64_t m = 0; m < 4; ++m)
        EXPECT_EQ(log_.replayed[size_t(m)], loader_.batch(2 * 4 * B + m * B, B).tokens);
}

TEST_F(RecordedSteps, FitOneTokenWeight) {
    const DataLoader ignoring(file_, {.seq = T, .ignore_token = ' '});
    const auto run_ignoring = [&](int64_t number) {
        first_ = 0;  // the same samples each time, so as many targets count
        return run(number, 1, ignoring);
    };
    EXPECT_EQ(run(1, 1), 1);
    EXPECT_EQ(run(2, 1), 1);
    EXPECT_EQ(run(3, 1), 0);
    EXPECT_EQ(run_ignoring(4), 1);
    EXPECT_EQ(run(5, 1), 0);  // the recording is still there
    EXPECT_EQ(run_ignoring(6), 1);
    EXPECT_EQ(run_ignoring(7), 1);  // is recorded, as the second in a row
    EXPECT_EQ(run_ignoring(8), 0);
    EXPECT_EQ(run(9, 1), 1);  // its recording was replaced
}

TEST_F(RecordedSteps, FitOneShape) {
    const DataLoader longer(file_, {.seq = B * T});
    EXPECT_EQ(run(1, 2), 2);
    EXPECT_EQ(run(2, 2), 2);
    EXPECT_EQ(run(3, 2), 0);
    EXPECT_EQ(run(4, 2, longer, 1), 2);  // as many tokens, so their weight is the same
    EXPECT_EQ(run(5, 2), 0);
}

// As if the micro-batch's backward made an all-reduce.
TEST_F(RecordedSteps, CountTheRecordedCommunicationAgain) {
    communicates_ = true;
    run(1, 1), run(2, 1);
    const CommunicationCounts before = communication_counts();
    run(3, 1), run(4, 1);
    const CommunicationCount more =
        difference(communication_counts(), before)[size_t(Collective::all_reduce)];
    EXPECT_EQ(more.calls, 2);
    EXPECT_EQ(more.bytes, 2 * 40);
    EXPECT_EQ(more.sent, 2 * 30);
}

TEST_F(RecordedSteps, RunAsUsualWhileOperationsAreTraced) {
    EXPECT_EQ(run(1, 1), 1);
    EXPECT_EQ(run(2, 1), 1);
    trace_record(true);
    EXPECT_EQ(run(3, 1), 1);
    trace_record(false), trace_clear();
    EXPECT_EQ(run(4, 1), 0);
}

}  // namespace
}  // namespace ultrascale::test
