// The options that change a model's experts: how many there are, and how its routers choose.
#pragma once

#include "files/checkpoint.h"
#include "lab/options/cli.h"

namespace ultrascale::expert_parallel {

class ModelChoices {
public:
    void add_options(OptionList& options) {
        options.add("--experts", count_, "Experts of a layer. Default: the model's")
            .between(1, 1024);
        options.add("--top-k", top_k_, "Experts of each token. Default: the model's")
            .between(1, 1024);
        options
            .add("--router", router_,
                 "softmax or sigmoid: how logits become scores. Default: the model's")
            .one_of({"softmax", "sigmoid"});
        options
            .add("--renormalise", renormalise_,
                 "on or off: divide a token's weights by their sum. Default: the model's")
            .one_of({"on", "off"});
        options.add("--scaling", scaling_, "Multiply weights by this. Default: the model's")
            .between(1e-3, 1e3);
        options.add("--shared", shared_, "Experts that every token goes to. Default: the model's")
            .between(0, 64);
        options
            .add("--first-dense", first_dense_,
                 "So many first layers without experts. Default: the model's")
            .between(0, 100000);
        options.add("--groups", groups_, "Groups of neighbouring experts. Default: the model's")
            .between(1, 1024);
        options.add("--top-groups", top_groups_, "Groups from which a token may choose. Default: 1")
            .between(1, 1024)
            .only_if([this] { return groups_ > 0; }, "the experts form no groups; see --groups");
    }

    // Changes the configuration of a model with experts. A checkpoint keeps its sizes, and a run
    // that resumes its router.
    void change(LlamaConfig& config, const Options& options) const {
        ExpertsConfig& e = config.experts;
        const auto same_in_checkpoint = [&](const char* option, int64_t given, int64_t has,
                                            const char* what) {
            if (given >= 0 && given != has && !options.load.empty())
                user_error("{} {}: the checkpoint in {} has {} {}", option, given, options.load,
                           has, what);
        };
        same_in_checkpoint("--experts", count_, e.count, "experts");
        same_in_checkpoint("--shared", shared_, e.shared, "shared experts");
        same_in_checkpoint("--first-dense", first_dense_, e.first_dense, "dense layers first");
        const auto same_in_run = [&](const char* option, const auto& given, const auto& has,
                                     bool is_given) {
            if (is_given && given != has && !options.load.empty() &&
                has_training_state(options.load) && load_training_state(options.load).step > 0)
                user_error("{} {}: the run in {} goes on with {} {}", option, given, options.load,
                           option, has);
        };
        const ops::RouterSettings& r = e.router;
        const std::string score = r.score == ops::RouterScore::softmax ? "softmax" : "sigmoid";
        same_in_run("--top-k", top_k_, r.top_k, top_k_ > 0);
        same_in_run("--router", router_, score, !router_.empty());
        same_in_run("--renormalise", renormalise_, std::string(r.renormalise ? "on" : "off"),
                    !renormalise_.empty());
        same_in_run("--scaling", scaling_, r.scaling, scaling_ > 0);
        same_in_run("--groups", groups_, r.groups, groups_ > 0);
        same_in_run("--top-groups", top_groups_, r.top_groups, top_groups_ > 0);
        if (count_ >= 0) e.count = count_;
        if (shared_ >= 0) e.shared = shared_;
        if (first_dense_ >= 0) e.first_dense = first_dense_;
        if (e.first_dense >= config.layers)
            user_error("--first-dense {}: with {} none would have experts", e.first_dense,
                       format_count(config.layers, "layer"));
        if (!router_.empty())
            e.router.score =
                router_ == "softmax" ? ops::RouterScore::softmax : ops::RouterScore::sigmoid;
        if (top_k_ > e.count)
            user_error("--top-k {}: the layers have {}", top_k_, format_count(e.count, "expert"));
        if (top_k_ > 0) e.router.top_k = top_k_;
        if (!renormalise_.empty()) e.router.renormalise = renormalise_ == "on";
        if (scaling_ > 0) e.router.scaling = scaling_;
        if (groups_ > 0) {
            if (e.count % groups_ != 0)
                user_error("--groups {}: {} cannot be divided into so many", groups_,
                           format_count(e.count, "expert"));
            e.router.groups = groups_, e.router.top_groups = std::max<int64_t>(top_groups_, 1);
        }
    }
    bool has_groups() const { return groups_ > 0; }

private:
    int64_t count_ = -1, top_k_ = 0, shared_ = -1, first_dense_ = -1, groups_ = 0, top_groups_ = 0;
    double scaling_ = 0;
    std::string router_, renormalise_;
};

}  // namespace ultrascale::expert_parallel
