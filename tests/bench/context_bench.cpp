// How fast attention is when ranks share the sequence: mpirun -n N build/<backend>/context_bench
// [T ...]
//
// Causal, one sequence, 32 heads of 128, bf16, forward and backward: the work of
// torch_context.py-like benchmarks. First one device alone with the whole sequence. Then, with
// several ranks, each of chapter 04's variants on all of them: efficiency is t(1) / (N t(N)). With
// one rank it computes what each rank of a ring of two computes, block by block with the merges and
// the sums, but sends nothing: the efficiency that is left for two devices if all communication is
// hidden.
#include <cstdio>
#include <cstdlib>

#include "04_context_parallel/context_parallel.h"
#include "core/device.h"
#include "random_tensor.h"
#include "train/run.h"

using namespace ultrascale;

namespace {

constexpr int64_t H = 32, D = 128;

Tensor drawn(int64_t tokens, unsigned seed) {
    return random_tensor({1, tokens, H, D}, DType::bf16, seed);
}

// The seconds of forward, and of forward and backward, of an attention core on so many tokens.
struct Seconds {
    double forward, both;
};
Seconds measure(const Communicator& ranks, AttentionCore& core, int64_t tokens) {
    const Tensor q = drawn(tokens, 1), k = drawn(tokens, 2), v = drawn(tokens, 3),
                 dout = drawn(tokens, 4);
    Context context;
    const auto forward = [&] {
        Saved nothing;
        nothing.disable();
        core.forward(q, k, v, nothing, context);
    };
    const auto both = [&] {
        Saved saved;
        core.forward(q, k, v, saved, context);
        core.backward(dout, saved, context);
    };
    return {measure_call(ranks, forward), measure_call(ranks, both)};
}

void print_row(const char* name, int64_t T, const Seconds& s, double efficiency) {
    const double flops = 4.0 * double(H * D) * double(T) * double(T) / 2;
    std::printf("%7ld  %-26s %9.3f %10.3f %9.0f", long(T), name, s.forward * 1e3, s.both * 1e3,
                3.5 * flops / s.both / 1e12);
    efficiency > 0 ? std::printf(" %10.1f %%\n", efficiency * 100) : std::printf("\n");
    std::fflush(stdout);
}

// What place `rank` of a ring of n computes for a sequence of T tokens, without the others.
Seconds measure_place(const Communicator& self, int n, int rank, int64_t T) {
    const int64_t tokens = T / n;
    const RingPlan plan(SequenceCut(Layout::zigzag, n, T), false, nullptr);
    const Tensor q = drawn(tokens, 1), k = drawn(tokens, 2), v = drawn(tokens, 3),
                 dout = drawn(tokens, 4);
    RowOrders orders;
    const auto blocks = [&](int hop) { return plan.blocks(0, rank, plan.owner(0, rank, hop), 0); };
    const auto forward = [&] {
        PartialAttention sum(q, DType::fp32);
        for (int hop = 0; hop < n; ++hop)
            for (const Block& block : blocks(hop))
                sum.add(0, block, tokens_of(k, 0, block.keys), tokens_of(v, 0, block.keys), {});
        return std::pair{sum.output(), sum.lse()};
    };
    const auto both = [&] {
        const auto [o, lse] = forward();
        const Tensor delta = activation_like(lse),
                     dq = Tensor::zeros(q.shape(), DType::fp32, Memory::activation);
        ops::attention_delta(delta, dout, o);
        KeysValues arrived = KeysValues::empty(k, tokens, DType::fp32, Memory::activation);
        for (int hop = 0; hop < n; ++hop) {
            const KeysValues sums = KeysValues::empty(k, tokens, DType::fp32, Memory::activation);
            RingAttention::add_gradients(plan, 0, blocks(hop), 0, {q, dout, lse, delta, dq},
                                         KeysValues::tokens_of(k, v, {0, tokens}), sums, {},
                                         orders);
            if (hop > 0) sums.add(arrived);
            arrived = sums;
        }
        rounded(dq, q.dtype()), rounded(arrived.k[0], q.dtype()), rounded(arrived.v[0], q.dtype());
    };
    return {measure_call(self, [&] { forward(); }), measure_call(self, both)};
}

void measure_length(const Communicator& world, int64_t T) {
    const int n = world.size();
    FlashAttention plain;
    const Seconds one = measure(world, plain, T);
    if (world.rank() == 0) print_row("one device", T, one, 0);
    if (n == 1) {
        for (int rank = 0; rank < 2; ++rank) {
            const Seconds s = measure_place(world, 2, rank, T);
            print_row(rank == 0 ? "rank 0 of 2, computing" : "rank 1 of 2, computing", T, s,
                      one.both / (2 * s.both));
        }
        return;
    }
    const auto variant = [&](const char* name, const ContextOptions& options) {
        ContextParallel parallel(
            {.layers = 1, .hidden = H * D, .heads = H, .kv_heads = H, .head_dim = D}, options, T,
            world);
        const auto core = parallel.parts({}).attention({});
        const Seconds s = measure(world, *core, T / n);
        if (world.rank() == 0) print_row(name, T, s, one.both / (n * s.both));
    };
    variant("ring, reversed", {.cp = n});
    variant("ring, again", {.cp = n, .backward = RingBackward::again});
    variant("ring, tails", {.cp = n, .tails = true});
    variant("all-gather", {.cp = n, .variant = Variant::all_gather});
    variant("Ulysses", {.cp = n, .variant = Variant::ulysses, .layout = Layout::contiguous});
}

}  // namespace

int main(int argc, char** argv) {
    const Communicator& world = Communicator::world();
    const bool copies = std::getenv("COPY_ENGINES_OFF") == nullptr;
    use_copy_engines(copies);
    if (world.rank() == 0)
        std::printf("%7s  %-26s %9s %10s %9s %12s\n", "tokens", copies ? "" : "NCCL's kernels only",
                    "fwd ms", "fwd+bwd ms", "TFLOP/s", "efficiency");
    std::vector<int64_t> lengths;
    for (int i = 1; i < argc; ++i) lengths.push_back(std::atoll(argv[i]));
    if (lengths.empty())
        lengths = device_is_gpu() ? std::vector<int64_t>{16384, 65536, 131072}
                                  : std::vector<int64_t>{512, 1024};
    for (const int64_t T : lengths) measure_length(world, T);
    finalize_communication();
}
