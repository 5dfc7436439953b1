// Expert parallelism: the ranks of "ep" share the experts of every layer and copy everything else.
// Each rank brings samples of its own.
//
//     dp 0   ep 0: experts 0-3     ep 1: experts 4-7       an expert's gradient: summed over dp
//     dp 1   ep 0: experts 0-3     ep 1: experts 4-7       any other's: over dp and ep
//
// An expert gets the tokens of all ranks of its group, so the sum over "ep" has already happened
// inside its weight gradient. No factor of ep belongs there: every gradient is divided by the
// targets of the whole step, in the loss.
#pragma once

#include "11_fp8_dispatch.h"
#include "12_replicas.h"
#include "7_capacity.h"
#include "9_node_limited.h"
#include "comm/mesh.h"
#include "experts_layer.h"
#include "model/llama.h"
#include "train/step.h"

namespace ultrascale::expert_parallel {

class ExpertParallel {
public:
    // `mesh` has the axes "dp" and "ep", and in a composition others. `accumulated`: the
    // micro-batches of a step on this rank.
    ExpertParallel(const LlamaConfig& config, const ExpertOptions& options, const Mesh& mesh,
                   int64_t accumulated, const SharedTokens& shared = {})
        : config_(config),
          options_(options),
          ep_(mesh.group("ep")),
          all_(shared.all ? *shared.all : mesh.group({"dp", "ep"})),
          balance_(config, options, accumulated * mesh.group({"replica", "dp", "ep"}).size(),
                   shared),
          blocks_(
              std::make_shared<RowsByExpert>(std::vector<int32_t>(size_t(config.experts.count), 1),
                                             ep_.size(), config.experts.count / ep_.size())) {
        for (const std::vector<float>& load : options.loads)
            placements_.push_back(placed(load, options.replicas, ep_.size()));
        if (options.max_nodes > 0) nodes_.emplace(ep_, Nodes{.ranks = options.node_size});
    }
    ExpertParallel(const ExpertParallel&) = delete;  // parts keep a pointer to it

    ModuleFactories factories(const ModelOptions& model) {
        ModuleFactories factories = default_factories(config_, model);
        set_in(factories, model);
        return factories;
    }
    // Puts the experts into parts that other techniques have made.
    void set_in(ModuleFactories& factories, const ModelOptions& model) {
        set_experts(
            factories, config_, model,
            [this](ParameterList& list, const ModuleFactories& plain, const ModulePath& layer) {
                return experts(list, plain, layer);
            },
            balance_.shared());
    }

    // Around a step; all ranks call both. With --aux-over global the step's choices are counted
    // first, in a forward of its own, which calls the hooks of whoever brings the weights.
    void begin_step(Step& step, Llama& model, Hooks* hooks = nullptr) {
        balance_.begin_step();
        if (options_.counts_first())
            phase("count choices", [&] { count_choices(step, model, hooks); });
    }
    // Sums the loads over all ranks, and moves the routers' biases.
    void end_step() {
        phase("loads", [&] {
            const StepLoads loads = balance_.end_step(all_);
            if (see_loads) see_loads(loads);
        });
    }

    // Whether a micro-batch's backward runs beside the next one's forward (10_overlap_batches.h).
    bool interleaves() const { return options_.interleaves(); }
    LoadBalance& balance() { return balance_; }
    // Of all layers with experts; none if experts are in order. Before the model is built, the mesh
    // needs their groups (add_holders).
    const std::vector<Placement>& placements() const { return placements_; }
    // The memory in which rows arrive that stays.
    int64_t receive_bytes() const { return forward_buffer_.bytes() + backward_buffer_.bytes(); }
    const Communicator& ep() const { return ep_; }
    // The number of a micro-batch's tokens that this rank routes.
    int64_t tokens(int64_t micro_batch_tokens) const {
        return micro_batch_tokens / balance_.shared().count();
    }
    // All ranks that see other tokens or have other layers.
    const Communicator& all() const { return all_; }
    // Lets the laboratory observe the dispatch of every layer, rows in fp8, and a step's loads.
    SeeDispatch see_dispatch;
    SeePacked see_packed;
    std::function<void(const StepLoads&)> see_loads;
    // Lets it replace the router, before the model is built (lab/traps.h).
    std::function<std::unique_ptr<Router>(ParameterList&, const ModulePath&, LoadBalance&)>
        make_router = [this](ParameterList& list, const ModulePath& block, LoadBalance& balance) {
            return std::make_unique<Router>(list, block, config_, options_, balance);
        };

private:
    // A forward of all micro-batches in which routers only count their choices. Nothing is kept,
    // and the head is left out.
    void count_choices(Step& step, Llama& model, Hooks* hooks) {
        balance_.count_only(true);
        step.call_hooks({hooks});
        for (int64_t m = 0; m < step.accumulated; ++m) {
            Context context = step.micro_batch(m);
            context.training = false, context.as_trained = true;
            Saved nothing;
            Tensor x;
            for (const Unit& unit : model.units())
                if (&unit != &model.units().back())
                    x = model.forward_unit(unit, std::move(x), nothing, context);
        }
        balance_.count_only(false);
        balance_.counted(all_);
    }
    std::unique_ptr<FeedForward> experts(ParameterList& list, const ModuleFactories& factories,
                                         const ModulePath& layer) {
        const ExpertsConfig& e = config_.experts;
        const ModulePath block = layer.part(expert_names(config_).block);
        auto router = make_router(list, block, balance_);
        const Placement* const placement =
            placements_.empty() ? nullptr : &placements_[size_t(layer.layer - e.first_dense)];
        GroupedSwiGLU here = experts_of_rank(
            list, block, config_,
            placement ? held_experts(*placement, ep_.rank())
                      : neighbouring_experts(e.count, ep_, balance_.shared().replica_groups),
            options_.chunks_here());
        const bool plain = options_.dispatch == Dispatch::plain && ep_.size() > 1;
        check(!plain || e.shared == 0, "the plain dispatch has no shared experts");
        if (plain)
            return std::make_unique<PlainDispatch>(std::move(router), std::move(here),
                                                   std::make_unique<RowTrips>(ep_, e.count),
                                                   see_dispatch, layer.layer);
        std::unique_ptr<SwiGLU> shared;
        if (e.shared > 0) {
            const ModulePath path = layer.part("mlp.shared_experts");
            const int64_t F = e.shared * e.ffn;
            auto both = factories.linear(list, factories, path, LinearRole::column,
                                         {{{"gate_proj", F}, {"up_proj", F}}, config_.hidden});
            auto last = factories.linear(list, factories, path, LinearRole::row,
                                         {{{"down_proj", config_.hidden}}, F});
            for (const Linear* linear : {both.get(), last.get()})
                for (Parameter* p : linear->parameters())
                    p->replica_groups = balance_.shared().replica_groups;
            shared = std::make_unique<SwiGLU>(std::move(both), std::move(last));
        }
        return std::make_unique<ExpertsLayer>(
            std::move(router), std::move(here), std::move(shared),
            [this, placement]() -> std::unique_ptr<TokenDispatcher> {
                if (!options_.fp8_rows()) return dispatcher(placement);
                return std::make_unique<Fp8Dispatcher>(dispatcher(placement),
                                                       options_.fp8_gradients(), see_packed);
            },
            options_.chunks_here(), see_dispatch, layer.layer);
    }
    std::unique_ptr<TokenDispatcher> dispatcher(const Placement* placement) {
        const int64_t E = config_.experts.count, here = E / ep_.size();
        const int chunks = options_.chunks_here();
        Stream& beside =
            options_.overlap == ExpertOverlap::none ? compute_stream() : communication_stream();
        if (placement) return std::make_unique<ReplicaDispatcher>(ep_, *placement, chunks, beside);
        if (options_.capacity_factor > 0)
            return std::make_unique<CapacityDispatcher>(
                ep_, E, chunks, beside,
                [this](int64_t tokens) { return capacity_of(options_, config_.experts, tokens); },
                options_.drop, blocks_);
        if (options_.dispatch != Dispatch::rank || ep_.size() == 1)
            return std::make_unique<ExpertDispatcher>(ep_, E, chunks, beside);
        std::vector<DispatchStage> stages;
        if (nodes_)
            stages = nodes_->stages(here);
        else
            stages.emplace_back(ep_, here, &forward_buffer_,
                                options_.interleaves() ? &backward_buffer_ : &forward_buffer_);
        return std::make_unique<RankDispatcher>(std::move(stages), here, beside);
    }

    LlamaConfig config_;
    ExpertOptions options_;
    const Communicator &ep_, &all_;
    LoadBalance balance_;
    ReceiveBuffer forward_buffer_, backward_buffer_;  // the latter only if they run together
    std::shared_ptr<const RowsByExpert> blocks_;      // of 7_capacity.h
    std::optional<NodeHops> nodes_;
    std::vector<Placement> placements_;
};

}  // namespace ultrascale::expert_parallel
