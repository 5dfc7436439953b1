// A rank's messages during a step: activations to the next stage, gradients to the one before.
//
//     rank 0  == to 1 ==>  rank 1        one stream and one group for each ordered pair of ranks:
//             <== to 0 ==                a receive that waits for its message holds up nothing else
//
// NCCL runs the calls of a group one after another, and a posted receive blocks those behind it.
// (Two ranks that each wait for the other's message before their own send would hang.) So the
// messages from a to b have a group of their own, in which a only sends and b only receives, both
// in the order in which a's schedule produces them. message_plan.h has worked out before the step
// when receives are posted and when a sent tensor is freed.
//
// A receive may wait for its message as long as an action lasts, so on GPUs a link has a mailbox
// (comm.h): NCCL's receive would occupy multiprocessors all that time.
#pragma once

#include <map>
#include <memory>

#include "comm/comm.h"
#include "core/stream.h"
#include "message_plan.h"
#include "pretend.h"

namespace ultrascale::pipeline {

class Messages {
public:
    // All ranks of `pp` call it. `shape` and `dtype` are those of a message, (B, T, h). The plan
    // must live as long as this object. hop_seconds: the time that every message takes in addition
    // to its real time (pretend.h).
    Messages(const Communicator& pp, const MessagePlan& plan, Shape shape, DType dtype,
             double hop_seconds = 0)
        : plan_(plan),
          rank_(pp.rank()),
          shape_(std::move(shape)),
          dtype_(dtype),
          hop_seconds_(hop_seconds) {
        // One split creates the groups of several pairs, as long as no rank is in two of them.
        std::vector<std::pair<int, int>> left = plan.links();
        while (!left.empty()) {
            std::vector<int> color(size_t(pp.size()), -1), peer = color;
            std::vector<std::pair<int, int>> now, later;
            const bool down = left.front().first < left.front().second;
            for (const auto& link : left) {
                const auto [from, to] = link;
                const bool fits =
                    (from < to) == down && color[size_t(from)] < 0 && color[size_t(to)] < 0;
                if (fits) {
                    color[size_t(from)] = color[size_t(to)] = from;
                    peer[size_t(from)] = to, peer[size_t(to)] = from;
                }
                (fits ? now : later).push_back(link);
            }
            const int mine = color[size_t(rank_)];
            const int other = peer[size_t(rank_)];
            Communicator group =
                pp.split(mine >= 0 ? mine : pp.size() + rank_, rank_, down ? "down" : "up",
                         other >= 0 ? 2 : 1, other >= 0 && other < rank_);
            for (const auto& [from, to] : now)
                if (rank_ == from || rank_ == to) {
                    mailboxes_ += group.open_mailbox(numel(shape_) * dtype_bytes(dtype_));
                    connect(group, from == rank_);
                    links_.emplace(std::pair(from, to),
                                   std::make_unique<Link>(std::move(group), from, to));
                }
            left = std::move(later);
        }
    }

    const Shape& shape() const { return shape_; }  // of a message
    DType dtype() const { return dtype_; }
    // The memory of the links' mailboxes, on GPUs that have them (comm.h).
    int64_t mailboxes() const { return mailboxes_; }

    // Call it before an action: posts receives, and frees what has been sent by then.
    void before(int action) {
        for (const int m : plan_.posts(rank_, action)) post(m);
        for (const int m : plan_.releases(rank_, action)) leaving_.erase(m);  // waits
    }
    // Returns an action's input when it has arrived: (B, T, h), or an empty tensor.
    Tensor input_of(int action) {
        const int m = plan_.input(rank_, action);
        if (m < 0) return {};
        if (plan_.messages()[size_t(m)].local()) return std::move(kept_.extract(m).mapped());
        auto arriving = std::move(arriving_.extract(m).mapped());
        arriving.work.wait();
        return std::move(arriving.x);
    }
    void output_of(int action, Tensor x) {
        const int m = plan_.output(rank_, action);
        if (m < 0) return;
        const Message& message = plan_.messages()[size_t(m)];
        if (message.local()) {
            kept_.emplace(m, std::move(x));
            return;
        }
        Link& link = *links_.at({rank_, message.to});
        const std::string name = plan_.name(m);
        const TraceName of(TraceName::whole, name);
        if (hop_seconds_ > 0) {
            const double arrives = now_seconds() + hop_seconds_;
            link.stream.submit([arrives] { sleep_until_seconds(arrives); });
        }
        leaving_.emplace(m, link.group.send(std::move(x), 1 - link.group.rank(), link.stream));
    }

    // Forgets what provisional actions have sent and received (message_plan.h); all ranks do so
    // before these actions run again. They have ended, and `next` is the action after them.
    void forget_provisional(int next) {
        for (int action = next; action <= plan_.actions(rank_); ++action)
            for (const int m : plan_.posts(rank_, action))
                if (plan_.provisional(plan_.messages()[size_t(m)]) && !arriving_.contains(m))
                    post(m);
        arriving_.clear();  // waits
        leaving_.clear();
        kept_.clear();
    }

private:
    // Sends the first message of a group: NCCL connects its ranks then, and the host waits for
    // both.
    void connect(const Communicator& group, bool sends) const {
        const Tensor x = Tensor::zeros({1}, DType::fp32, Memory::workspace);
        sends ? group.send(x, 1 - group.rank()) : group.recv(x, 1 - group.rank());
    }
    struct Link {
        Communicator group;
        Stream stream;
        Link(Communicator group, int from, int to)
            : group(std::move(group)), stream(fmt::format("{} to {}", from, to)) {}
    };
    struct Arriving {
        Tensor x;
        Work work;
    };
    void post(int m) {
        Link& link = *links_.at({plan_.messages()[size_t(m)].from, rank_});
        const std::string name = plan_.name(m);
        const TraceName of(TraceName::whole, name);
        const Tensor x = Tensor::empty(shape_, dtype_, Memory::activation);
        arriving_.emplace(m, Arriving{x, link.group.recv(x, 1 - link.group.rank(), link.stream)});
    }

    const MessagePlan& plan_;
    int rank_;
    Shape shape_;
    DType dtype_;
    double hop_seconds_;
    int64_t mailboxes_ = 0;  // bytes
    std::map<std::pair<int, int>, std::unique_ptr<Link>> links_;
    std::map<int, Arriving> arriving_;
    std::map<int, Work> leaving_;  // each holds its tensor
    std::map<int, Tensor> kept_;   // from one chunk to another
};

}  // namespace ultrascale::pipeline
