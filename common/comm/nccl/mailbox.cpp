#include "mailbox.h"

#include "copies.h"

namespace ultrascale {

using Mailbox = Communicator::Impl::Mailbox;

Mailbox::Mailbox(std::shared_ptr<PeerMemory> peers, int rank, int64_t bytes)
    : peers_(std::move(peers)),
      rank_(rank),
      ranks_(peers_->ranks()),
      slot_bytes_((bytes + 15) / 16 * 16),
      slots_(Tensor::empty({ranks_ - 1, slot_bytes_ / 4}, DType::int32, Memory::communication,
                           peers_)),
      sent_(size_t(ranks_)),
      received_(size_t(ranks_)) {}

void* Mailbox::slot(int from, int at) const {
    return peers_->at(at, static_cast<char*>(slots_.data()) + slot_of(from, at) * slot_bytes_);
}

bool Mailbox::takes(const Operation& x) const {
    return x.kind == Collective::send_recv && x.messages.size() == 1 &&
           x.messages[0].peer != rank_ && x.messages[0].bytes <= slot_bytes_;
}

void Mailbox::start(Work::Impl& work, const Operation& x, Stream& stream) {
    const Operation::Message& message = x.messages[0];
    const int peer = message.peer;
    Copies copies;
    const Timestamp begin = Timestamp::in(stream);
    if (message.send) {
        uint32_t& sent = sent_[size_t(peer)];
        peers_->await(out(peer), sent++, stream);
        copies.add_to_peer(slot(rank_, peer), message.data, message.bytes);
        copies.queue(stream);
        peers_->tell(peer, in(rank_), sent, stream);
    } else {
        uint32_t& received = received_[size_t(peer)];
        peers_->await(in(peer), ++received, stream);
        copies.add(message.data, slot(peer, rank_), message.bytes);
        copies.queue(stream);
        peers_->tell(peer, out(rank_), received, stream);
    }
    finish_copies(work, begin, stream);
}

}  // namespace ultrascale
