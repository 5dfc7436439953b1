// The backward pass of ring attention (1_ring.h). Each rank has, for its own queries, the gradient
// do_i of the output, lse_i, and the scalar product delta_i = do_i o_i, which is the sum over j of
// p_ij (do_i v_j), and which the softmax's derivative subtracts. These three belong to the softmax
// over *all* keys. So p_ij below is the final weight, and what a block of keys gives is simply
// added up. (ds_ij is the gradient of the product q_i k_j, hence its / sqrt(D).)
//
//     p_ij = exp(s_ij - lse_i)         ds_ij = p_ij (do_i v_j - delta_i) / sqrt(D)
//     dq_i = sum over j of ds_ij k_j   dk_j  = sum over i of ds_ij q_i
//                                      dv_j  = sum over i of p_ij do_i
//
// A pair (i, j) is on one rank at the hop in which that rank holds these keys, so keys and values
// go round once more. What the pair adds to dq_i stays with the query. But dk_j and dv_j are sums
// over the queries of several ranks: they travel too, behind their keys, and each rank adds its
// part. Follow k1 and dk1:
//
//     at hop 0   rank 1 holds k1     dk1 =  part of q1            k1 and dk1 go to rank 2
//     at hop 1   rank 2              dk1 += part of q2            k1 and dk1 go to rank 3
//     at hop 2   rank 3              dk1 += part of q3            k1 and dk1 go to rank 0
//     at hop 3   rank 0              q0 sees nothing of k1        only dk1 goes on, to rank 1: home
//
// So a key is sent n-1 times and its gradient n times. What a rank does at each hop, in this order:
//
//     1 begin    to send the keys that it holds to the next rank; the previous one's are to come
//     2 compute  what its queries give with these keys: it is added to dq, and is a part of dk, dv
//     3 wait     for the sums of these keys' gradients, which step 5 of the hop before sent off
//     4 add      the part to them
//     5 begin    to send these sums after their keys; those of the keys that come are to follow
//     6 wait     for the keys of step 1
//
// Keys travel while step 2 computes, sums while step 2 of the next hop computes. So both arrive
// without a wait if that takes longer. At hop 0 the sums are zeros, and step 3 waits for nothing.
// At the last hop steps 1 and 6 are left out, and step 5 brings the sums home.
//
// With kv, the bytes of a rank's keys and values, and dkv, those of their gradients, a layer sends
// (n-1) kv in forward, and (n-1) kv + n dkv in backward. The sums are fp32, or each hop would round
// them; so if the keys have 16 bits, dkv = 2 kv.
#pragma once

#include "1_ring.h"

namespace ultrascale::context_parallel {

// From dout, the gradient of the output, to those of q, k and v.
inline AttentionCore::Gradients PlainRing::backward(const Tensor& dout, Saved& saved, Context&) {
    const Tensor q = saved.take("q"), lse = saved.take("lse"), delta = activation_like(lse);
    ops::attention_delta(delta, dout, saved.take("o"));
    KeysValues held{saved.take("k"), saved.take("v")};
    const Tensor dq = Tensor::zeros(q.shape(), DType::fp32, Memory::activation);
    // The gradients of the keys and values that are held: what this rank adds to them (it is
    // overwritten at each hop), and what all ranks have added so far (it travels).
    const auto gradients = [&] {
        return KeysValues{activation(held.k.shape(), DType::fp32),
                          activation(held.v.shape(), DType::fp32)};
    };
    const KeysValues part = gradients();
    KeysValues sums = gradients();
    ops::fill(sums.k, 0), ops::fill(sums.v, 0);
    // exercise 04.6 begin: keys go round again; the sums of their gradients follow, and go home
    Work sums_under_way;
    for (int hop = 0; hop < n_; ++hop) {
        KeysValues next;
        Work under_way;
        if (hop + 1 < n_) next = pass_on(held, under_way);
        if (sees(hop))  // overwrites `part`, and adds to dq, its last argument
            ops::attention_backward(dq, part.k, part.v, dout, q, held.k, held.v, lse, delta,
                                    mask(hop, q), {.dq = dq});
        sums_under_way.wait();  // now the sums of the ranks before are here
        if (sees(hop)) ops::add(sums.k, part.k), ops::add(sums.v, part.v);
        // At the last hop they are complete, and go to their owner, who keeps them.
        sums = pass_on(sums, sums_under_way,
                       hop + 1 < n_ ? Memory::communication : Memory::activation);
        under_way.wait();
        held = next;
    }
    sums_under_way.wait();  // home
    // exercise 04.6 end
    return {rounded(dq, q.dtype()), rounded(sums.k, q.dtype()), rounded(sums.v, q.dtype())};
}

}  // namespace ultrascale::context_parallel
