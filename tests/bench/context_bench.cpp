// Measures how fast attention is when ranks share the sequence: mpirun -n N
// build/<backend>/context_bench [T ...]
//
// Attention is causal, with one sequence, 32 heads of 128, bf16, forward and backward: the same
// work as in tests/peers/torch_context_parallel.py. With several ranks, it measures one device that
// has the whole sequence (each rank computes all of it), and each of chapter 04's variants on all
// ranks: the efficiency is t(1) / (N t(N)). With one or two ranks, it also measures the computation
// of each rank in a ring of two, block by block with the merges and the sums, but without sending:
// the efficiency that is left for two devices if all communication is hidden. The measurements that
// are compared take turns, which are long: at its power limit a GPU needs a while to find the right
// clock rate. "rested" is measured as PyTorch's program does, before the GPU has reached that
// limit.
#include <cstdio>
#include <cstdlib>

#include "04_context_parallel/9_context_parallel.h"
#include "core/device.h"
#include "core/random_tensor.h"
#include "lab/report/median_seconds.h"
#include "train/run.h"

using namespace ultrascale;
using namespace ultrascale::context_parallel;

namespace {

constexpr int64_t H = 32, D = 128;

Tensor drawn(int64_t tokens, unsigned seed) {
    return random_tensor({1, tokens, H, D}, DType::bf16, seed);
}

// A row of the table: the times of forward alone, and of forward and backward.
struct Row {
    std::string name;
    std::function<void()> forward, both;
};

// Measures an attention core on `tokens` tokens.
Row row(const char* name, std::shared_ptr<AttentionCore> core, int64_t tokens) {
    const Tensor q = drawn(tokens, 1), k = drawn(tokens, 2), v = drawn(tokens, 3),
                 dout = drawn(tokens, 4);
    return {name,
            [=] {
                Context context;
                Saved nothing;
                nothing.disable();
                core->forward(q, k, v, nothing, context);
            },
            [=] {
                Context context;
                Saved saved;
                core->forward(q, k, v, saved, context);
                core->backward(dout, saved, context);
            }};
}

// Measures the computation of rank `rank` in a ring of two, for a sequence of T tokens, without the
// other rank.
Row computing(std::string name, int rank, int64_t T) {
    const int64_t tokens = T / 2;
    const Tensor q = drawn(tokens, 1), k = drawn(tokens, 2), v = drawn(tokens, 3),
                 dout = drawn(tokens, 4);
    const RingPlan plan(SequenceCut(Layout::zigzag, 2, T), false, nullptr), back = plan.reversed();
    const auto forward = [=] {
        PartialAttention sum(q, sum_dtype({}, plan, q.dtype()));
        for (int hop = 0; hop < 2; ++hop)
            for (const Block& block : plan.blocks(0, rank, plan.owner(0, rank, hop), 0))
                sum.add(0, block, tokens_of(k, 0, block.keys), tokens_of(v, 0, block.keys), {});
        return std::pair{sum.output(), sum.lse()};
    };
    const auto both = [=, orders = RowOrders()]() mutable {
        const auto [o, lse] = forward();
        PartialGradients queries(q, o, dout, lse, H, orders);
        KeysValues sums[2];
        for (int hop = 0; hop < 2; ++hop) {
            if (hop == 1) queries.next_block_finishes();
            sums[hop] = KeysValues::empty(k, tokens, DType::fp32, Memory::activation);
            queries.add(back, 0, back.blocks(0, rank, back.owner(0, rank, hop), 0), 0,
                        KeysValues::tokens_of(k, v, {0, tokens}), sums[hop], {});
        }
        sums[1].finish(activation_like(k), activation_like(v), sums[0]);
    };
    return {std::move(name), [=] { forward(); }, both};
}

void measure_length(const Communicator& world, int64_t T) {
    const int n = world.size();
    std::vector<Row> rows = {row("one device", std::make_shared<FlashAttention>(), T)};
    std::vector<std::unique_ptr<ContextParallel>> parallel;
    const auto variant = [&](const char* name, const ContextOptions& options) {
        parallel.push_back(std::make_unique<ContextParallel>(
            LlamaConfig{.layers = 1, .hidden = H * D, .heads = H, .kv_heads = H, .head_dim = D},
            options, T, world));
        rows.push_back(row(name, parallel.back()->factories({}).attention({}), T / n));
    };
    if (n == 1) {
        for (int rank = 0; rank < 2; ++rank)
            rows.push_back(computing(fmt::format("rank {} of 2, computing", rank), rank, T));
    } else {
        if (n == 2) rows.push_back(computing("ring, without its hops", world.rank(), T));
        variant("ring, reversed", {.cp = n});
        variant("ring, own keys kept", {.cp = n, .backward = RingBackward::kept});
        variant("ring, again", {.cp = n, .backward = RingBackward::restarted});
        variant("ring, bidirectional", {.cp = n, .bidirectional = true});
        variant("all-gather", {.cp = n, .variant = Variant::all_gather});
        variant("Ulysses", {.cp = n, .variant = Variant::ulysses, .layout = Layout::contiguous});
    }
    std::vector<std::function<void()>> calls;
    for (const Row& r : rows) calls.insert(calls.end(), {r.forward, r.both});
    const Turns long_turns = {.settling_seconds = 0.4, .batch_seconds = 0.4};
    const std::vector<double> seconds = median_seconds(
        calls, [&](double s) { return largest_of_ranks(world, s); }, long_turns);
    std::vector<double> rested;
    for (const Row& r : rows) rested.push_back(largest_of_ranks(world, rested_seconds(r.both)));
    if (world.rank() > 0) return;
    const double flops = 4.0 * double(H * D) * double(T) * double(T) / 2;
    for (size_t i = 0; i < rows.size(); ++i) {
        const double forward = seconds[2 * i], both = seconds[2 * i + 1];
        const auto efficiency = [&](double one, double all) {
            return i == 0 ? "" : fmt::format("{:.1f} %", 100 * one / (std::max(n, 2) * all));
        };
        std::printf("%7ld  %-26s %9.3f %10.3f %9.0f %11s %9.3f %11s\n", long(T),
                    rows[i].name.c_str(), forward * 1e3, both * 1e3, 3.5 * flops / both / 1e12,
                    efficiency(seconds[1], both).c_str(), rested[i] * 1e3,
                    efficiency(rested[0], rested[i]).c_str());
    }
    std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
    const Communicator& world = Communicator::world();
    const bool copies = std::getenv("COPY_ENGINES_OFF") == nullptr;
    use_copy_engines(copies);
    if (world.rank() == 0)
        std::printf("%7s  %-26s %9s %10s %9s %11s %9s %11s\n", "tokens",
                    copies ? "" : "NCCL's kernels only", "fwd ms", "fwd+bwd ms", "TFLOP/s",
                    "efficiency", "rested", "efficiency");
    std::vector<int64_t> lengths;
    for (int i = 1; i < argc; ++i) lengths.push_back(std::atoll(argv[i]));
    if (lengths.empty())
        lengths = device_is_gpu() ? std::vector<int64_t>{16384, 65536, 131072}
                                  : std::vector<int64_t>{512, 1024};
    for (const int64_t T : lengths) measure_length(world, T);
    finalize_communication();
}
