// Ring attention with nothing else (Liu et al. 2023, https://arxiv.org/abs/2310.01889).
//
// n ranks share each sequence. A rank is a process with a device of its own; it cannot look into
// another rank's memory, so what it needs must be sent to it. Rank r has the r-th of n equal
// pieces: the queries q_r, the keys k_r and the values v_r of those tokens. Everything but
// attention works on single tokens. In attention a query must meet all keys up to its own token,
// wherever they are. So queries stay, and keys and values go round a ring. A hop is a message from
// a rank to its neighbour; "at hop i" means after i of them:
//
//     at hop           0          1          2          3         (n = 4; values go with the keys)
//     rank 0        q0 x k0     (k3)       (k2)       (k1)        A rank attends to the keys that
//     rank 1        q1 x k1    q1 x k0     (k3)       (k2)        it holds. Meanwhile it sends them
//     rank 2        q2 x k2    q2 x k1    q2 x k0     (k3)        to the next rank (3 to 0), and
//     rank 3        q3 x k3    q3 x k2    q3 x k1    q3 x k0      receives the previous one's.
//
// Keys in brackets are of later tokens, which the causal mask hides: the rank only passes them on.
//
// Query i gives key j the score s_ij = q_i k_j / sqrt(D) and the weight exp(s_ij) / z_i, where z_i
// adds up exp(s_ij) over *all* keys. Attention over a block of keys alone gives an output o_block
// with a sum of its own, z_block. The softmax over two blocks is
//
//     o <- (z o + z_block o_block) / (z + z_block),        z <- z + z_block
//
// ops::attention_merge does that with lse = log z instead of z, because exp(90) exceeds fp32.
#pragma once

#include <cmath>

#include "comm/comm.h"
#include "kernels/ops_attention_merge.h"
#include "model/activation.h"
#include "model/parts.h"

namespace ultrascale::context_parallel {

// x in this dtype; x itself, if it has that. (activation() only allocates memory.)
inline Tensor rounded(const Tensor& x, DType dtype) {
    if (x.dtype() == dtype) return x;
    const Tensor y = activation(x.shape(), dtype);
    ops::copy(y, x);
    return y;
}

// The model calls it in each layer, in place of attention on one device. A rank has T tokens of
// each of B sequences, H query and K key heads of D numbers. q and o are (B, T, H, D), k and v
// (B, T, K, D), lse (B, H, T). `saved` keeps what backward needs: it is the activation memory. A
// Tensor shares its memory with its copies, and the last one to go frees it.
class PlainRing : public AttentionCore {
public:
    // `stream` is a queue of work beside the one that computes. A call on it returns a Work at
    // once; what is queued after Work::wait() starts only when that call's messages are there. An
    // empty Work does not wait, and one that is not kept waits at once. (common/comm/comm.h)
    PlainRing(const Communicator& ring, Stream& stream)
        : ring_(ring), stream_(stream), n_(ring.size()), rank_(ring.rank()) {}

    Tensor forward(const Tensor& q, const Tensor& k, const Tensor& v, Saved& saved,
                   Context&) override {
        const Tensor o = activation(q.shape(), DType::fp32),
                     lse = activation({q.size(0), q.size(2), q.size(1)}, DType::fp32),
                     o_block = Tensor::empty(q.shape(), q.dtype(), Memory::workspace),
                     lse_block = Tensor::empty(lse.shape(), DType::fp32, Memory::workspace);
        ops::fill(lse, -INFINITY);  // no key has been seen: log 0; the first merge overwrites o
        KeysValues held{k, v};
        // exercise 04.4 begin: pass on what you hold, attend to it meanwhile, then wait
        for (int hop = 0; hop < n_; ++hop) {
            KeysValues next;
            Work under_way;
            if (hop + 1 < n_) next = pass_on(held, under_way);
            if (sees(hop)) {
                ops::attention_forward(o_block, lse_block, q, held.k, held.v, mask(hop, q));
                ops::attention_merge(o, lse, o_block, lse_block);
            }
            under_way.wait();  // now `next` is here, and `held` has left
            held = next;
        }
        // exercise 04.4 end
        const Tensor output = rounded(o, q.dtype());
        saved.keep("q", q), saved.keep("k", k), saved.keep("v", v);
        saved.keep("o", output), saved.keep("lse", lse);
        return output;
    }

    // From dout, the output's gradient, to those of q, k and v (1_ring_backward.h).
    Gradients backward(const Tensor& dout, Saved& saved, Context&) override;

private:
    struct KeysValues {  // of one rank's tokens; or the gradients of both
        Tensor k, v;
    };
    // Begins to send this to the next rank and to receive as much from the previous one. Returns
    // where that will be after under_way.wait(); until then under_way also keeps what is sent. All
    // four messages are one call (MPI_Isend and MPI_Irecv, or a group of ncclSend and ncclRecv):
    // if every rank first sent and then received, each could wait for its neighbour forever.
    KeysValues pass_on(const KeysValues& held, Work& under_way,
                       Memory category = Memory::communication) const {
        const KeysValues next{Tensor::empty(held.k.shape(), held.k.dtype(), category),
                              Tensor::empty(held.v.shape(), held.v.dtype(), category)};
        const int to = (rank_ + 1) % n_, from = (rank_ + n_ - 1) % n_;
        under_way = ring_.send_recv({{Transfer::send, held.k, to},
                                     {Transfer::send, held.v, to},
                                     {Transfer::recv, next.k, from},
                                     {Transfer::recv, next.v, from}},
                                    stream_);
        return next;
    }

    // Whose keys and values this rank holds at a hop, and whether its queries see any of them.
    int owner(int hop) const { return (rank_ + n_ - hop) % n_; }
    bool sees(int hop) const { return owner(hop) <= rank_; }
    // Where the queries and the keys begin in the sequence: a key after its query is hidden.
    ops::AttentionMask mask(int hop, const Tensor& q) const {
        return {.q_offset = rank_ * q.size(1), .k_offset = owner(hop) * q.size(1)};
    }

    const Communicator& ring_;
    Stream& stream_;
    const int n_, rank_;
};

}  // namespace ultrascale::context_parallel
