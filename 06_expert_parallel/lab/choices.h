// The choices of a run's routers, for --verify: each rank remembers those of the first steps, and
// rank 0's plain training follows them (one_device_choices.h).
#pragma once

#include "../row_exchange.h"
#include "../shared_tokens.h"
#include "lab/verify/whole_values.h"
#include "one_device_choices.h"

namespace ultrascale::expert_parallel {

class ChoiceLog : public Choices {
public:
    ChoiceLog(const LlamaConfig& config, const VerifyBounds& bounds,
              const SharedTokens& shared = {})
        : shared_(shared), k_(config.experts.router.top_k), plain_(bounds.choice_limit) {}
    OneDeviceChoices& plain() { return plain_; }

    void add(const Dispatched& d, const Context& context) {
        if (step_ >= watched_ || !context.training || context.recomputing) return;
        std::vector<int32_t> chosen = d.experts.to_host<int32_t>();
        const std::vector<int32_t> at =
            d.row_map ? d.row_map.to_host<int32_t>() : std::vector<int32_t>(chosen.size(), 0);
        for (size_t i = 0; i < chosen.size(); ++i)
            if (at[i] < 0) chosen[i] = ~chosen[i];
        const int64_t T = context.batch.sample_length();
        auto first = chosen.begin();
        for (const int64_t token : shared_.tokens_of(d.experts.rows())) {
            std::sort(first, first + k_);
            mine_[{step_, d.layer, context.batch.first_sample + token / T, token % T}] = {
                first, first + k_};
            first += k_;
        }
    }
    void end_step() { ++step_; }

    void watch(int64_t steps) override { watched_ = steps; }
    bool follow(int64_t) override {
        std::string bytes;
        for (const auto& [key, chosen] : mine_)
            bytes += bytes_of(std::vector<int64_t>(key.begin(), key.end())) + bytes_of(chosen);
        mine_.clear();
        const size_t key_bytes = sizeof(OneDeviceChoices::Key),
                     token_bytes = key_bytes + size_t(k_) * sizeof(int32_t);
        const Communicator& world = Communicator::world();
        for (const std::string& rank : world.gather_strings(bytes))
            for (size_t at = 0; world.rank() == 0 && at < rank.size(); at += token_bytes) {
                OneDeviceChoices::Key key;
                std::memcpy(key.data(), &rank[at], key_bytes);
                plain_.run_choices[key] =
                    from_bytes<int32_t>(rank.substr(at + key_bytes, token_bytes - key_bytes));
            }
        // Between hosts, so that the report's counts of communication remain the run's.
        return world.broadcast_string(plain_.differ() ? "differ" : "", 0) == "differ";
    }
    std::vector<Flips> flips() const override { return plain_.flips(); }
    void keep() override { plain_.keep(); }

private:
    SharedTokens shared_;
    int64_t k_, step_ = 0, watched_ = 0;
    OneDeviceChoices plain_;  // on rank 0
    std::map<OneDeviceChoices::Key, OneDeviceChoices::Experts> mine_;
};

}  // namespace ultrascale::expert_parallel
