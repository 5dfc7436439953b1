// Messages between the GPUs of one machine without a kernel: the sender's copy engine writes into a
// mailbox in the receiver's memory, and the receiver's empties it. Each rank has a slot for each
// other rank, which holds one message.
//
//     sender      wait until message i-1 is out | copy into the slot | tell: i is in
//     receiver    wait until message i is in    | copy out of it     | tell: i is out
//
// NCCL's receive is a kernel: it spins on multiprocessors until the message comes. If a receive is
// posted one action ahead, as pipelines do, it takes multiprocessors from the products and the
// attention that run meanwhile, whose kernels count on having all of them. Here the stream itself
// waits, as in PeerMemory::meet(), and a message arrives even before its receive is posted.
#pragma once

#include "peer_memory.h"

namespace ultrascale {

struct Communicator::Impl::Mailbox {
    // All ranks of the group call it. `bytes` is the size of the largest message.
    Mailbox(std::shared_ptr<PeerMemory> peers, int rank, int64_t bytes);

    // The size of this rank's mailbox, with slots for all other ranks' messages.
    int64_t bytes() const { return slots_.bytes(); }
    // Whether this call goes through the mailbox: a single message that fits. Sender and receiver
    // reach the same answer.
    bool takes(const Operation& operation) const;
    void start(Work::Impl& work, const Operation& operation, Stream& stream);

private:
    void* slot(int from, int at) const;  // in this rank's address space
    // The counters of PeerMemory: how many messages have come in from a rank, and how many that
    // rank has taken out.
    int in(int from) const { return from; }
    int out(int at) const { return ranks_ + at; }

    const std::shared_ptr<PeerMemory> peers_;
    const int rank_, ranks_;
    const int64_t slot_bytes_;
    const Tensor slots_;
    std::vector<uint32_t> sent_, received_;  // messages, to and from each rank
};

}  // namespace ultrascale
