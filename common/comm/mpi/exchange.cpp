// Messages over MPI, and reductions of the received data.
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <set>
#include <thread>

#include "core/error.h"
#include "slow_links.h"

namespace ultrascale {

CommunicationSettings& communication_settings() {
    static CommunicationSettings settings;
    return settings;
}

std::atomic<int64_t>& bytes_handed_over() {
    static std::atomic<int64_t> bytes = 0;
    return bytes;
}

void Exchange::send(const void* data, int64_t bytes, int peer, int tag) {
    if (peer != rank()) bytes_handed_over() += bytes;
    for (int64_t begin = 0; begin < bytes; begin += communication_settings().piece_bytes) {
        int piece = int(std::min(communication_settings().piece_bytes, bytes - begin));
        MPI_Isend(static_cast<const char*>(data) + begin, piece, MPI_BYTE,
                  mpi_rank(group_->world_ranks[peer]), tag, MPI_COMM_WORLD,
                  &requests_.emplace_back());
        expected_.push_back(-1), peers_.push_back(group_->world_ranks[peer]);
    }
    if (slow_links().between(group_->world_ranks[peer], group_->world_ranks[rank()]) && bytes > 0) {
        bytes_between_nodes() += bytes;
        SlowMessage& slow = slow_.emplace_back(bytes, false, send_over_slow_link(bytes, set_out_));
        MPI_Isend(&slow.trip, sizeof slow.trip, MPI_BYTE, mpi_rank(group_->world_ranks[peer]), tag,
                  MPI_COMM_WORLD, &requests_.emplace_back());
        expected_.push_back(-1), peers_.push_back(group_->world_ranks[peer]);
    }
}

void Exchange::recv(void* data, int64_t bytes, int peer, int tag) {
    for (int64_t begin = 0; begin < bytes; begin += communication_settings().piece_bytes) {
        int piece = int(std::min(communication_settings().piece_bytes, bytes - begin));
        MPI_Irecv(static_cast<char*>(data) + begin, piece, MPI_BYTE,
                  mpi_rank(group_->world_ranks[peer]), tag, MPI_COMM_WORLD,
                  &requests_.emplace_back());
        expected_.push_back(piece), peers_.push_back(group_->world_ranks[peer]);
    }
    if (slow_links().between(group_->world_ranks[peer], group_->world_ranks[rank()]) && bytes > 0) {
        SlowMessage& slow = slow_.emplace_back(bytes, true, SlowTrip{});
        MPI_Irecv(&slow.trip, sizeof slow.trip, MPI_BYTE, mpi_rank(group_->world_ranks[peer]), tag,
                  MPI_COMM_WORLD, &requests_.emplace_back());
        expected_.push_back(sizeof slow.trip), peers_.push_back(group_->world_ranks[peer]);
    }
}

static std::atomic<double> seconds_asleep = 0;  // between two checks
void let_waits_sleep(double seconds) { seconds_asleep = seconds; }

static std::atomic<double> longest_wait = 0, longest_on_host = 0, limited_at = 0;
static std::atomic<bool> limited_in_step = false;
void limit_waits(double seconds, double host_seconds, bool in_step) {
    limited_at = machine_seconds(), limited_in_step = in_step;
    longest_wait = seconds, longest_on_host = host_seconds;
}
double seconds_over_limit() {
    const double limit = limited_in_step ? longest_wait.load() : 0;
    return limit > 0 ? std::max(0.0, machine_seconds() - limited_at - limit) : 0;
}

void Exchange::wait() {
    const double since = machine_seconds();
    while (!arrived()) {
        check_not_abandoned();
        const double waited = machine_seconds() - since;
        if (const double limit = longest_wait; limit > 0 && waited > limit)
            end_after_long_wait(waited);
        if (seconds_asleep > 0 && waited > 2e-4)
            std::this_thread::sleep_for(std::chrono::duration<double>(seconds_asleep));
        else
            sched_yield();
    }
    if (slow_until_ > 0) sleep_until(slow_until_);
}

void Exchange::wait_asleep(double between_checks, bool limited) {
    const double since = machine_seconds();
    for (int turn = 0; !done(); ++turn) {
        check_not_abandoned();
        const double waited = machine_seconds() - since,
                     limit = limited ? longest_on_host.load() : 0;
        if (limit > 0 && waited > limit) end_after_long_wait(waited);
        if (turn < 50)
            sched_yield();
        else
            std::this_thread::sleep_for(std::chrono::duration<double>(between_checks));
    }
}

// A rank that waits for others may be waited for itself. All of them print their line before the
// first one ends the job; the culprit is the rank that prints none, or whose host is unreachable.
void Exchange::end_after_long_wait(double seconds) {
    std::set<int> senders, receivers;  // that are missing
    for (size_t i = 0; i < requests_.size(); ++i) {
        int done = 0;
        MPI_Request_get_status(requests_[i], &done, MPI_STATUS_IGNORE);
        if (!done) (expected_[i] < 0 ? receivers : senders).insert(peers_[i]);
    }
    std::string names;
    for (const int rank : senders.empty() ? receivers : senders)
        names += (names.empty() ? "" : ", ") + rank_name(rank);
    fmt::print(stderr,
               "error: {}has waited {:.0f} s for {} in {} of group {}; the job ends "
               "(--hang-seconds)\n",
               rank_prefix(), seconds, names, name_, group_->name);
    std::fflush(stderr);
    std::this_thread::sleep_for(std::chrono::seconds(2));
    abort_all_ranks(int(Exit::peer));
}

bool Exchange::done() {
    return arrived() && (slow_until_ == 0 || machine_seconds() >= slow_until_);
}

bool Exchange::arrived() {
    statuses_.resize(requests_.size());
    int done = 0;
    if (MPI_Testall(int(requests_.size()), requests_.data(), &done, statuses_.data()) !=
        MPI_SUCCESS)
        end_after_errors();
    if (!done) return false;
    check_sizes();
    for (const SlowMessage& m : slow_)
        slow_until_ = std::max(slow_until_,
                               m.received ? receive_over_slow_link(m.bytes, m.trip) : m.trip.end);
    slow_.clear();
    set_out_ = 0;
    return true;
}

// Only failed messages have an error in their status; the others have MPI_SUCCESS or
// MPI_ERR_PENDING.
void Exchange::end_after_errors() const {
    for (const MPI_Status& status : statuses_)
        if (status.MPI_ERROR != MPI_SUCCESS && status.MPI_ERROR != MPI_ERR_PENDING)
            end_after_mpi_error(status.MPI_ERROR);
    end_after_mpi_error(MPI_ERR_OTHER);
}

void Exchange::check_sizes() {
    for (size_t i = 0; i < requests_.size(); ++i) {
        if (expected_[i] < 0) continue;
        int received = 0;
        MPI_Get_count(&statuses_[i], MPI_BYTE, &received);
        check(received == expected_[i],
              "a message was shorter than expected: the ranks' tensors differ in size");
    }
    requests_.clear();
    expected_.clear();
    peers_.clear();
}

// ---- reductions ---------------------------------------------------------------------------------

template <class T>
static void reduce_typed(T* out, const std::vector<const void*>& inputs, int64_t count, Reduce op) {
    // Sums are wider than the elements, and rounded once. An int32 sum may need 64 bits before it
    // is divided.
    using Sum = std::conditional_t<std::is_same_v<T, int32_t>, int64_t,
                                   std::conditional_t<std::is_same_v<T, double>, double, float>>;
    // A block stays in the L1 cache while all ranks' blocks are added.
    constexpr int64_t block = 1024;
    Sum sum[block];
    for (int64_t begin = 0; begin < count; begin += block) {
        int64_t length = std::min(block, count - begin);
        for (size_t r = 0; r < inputs.size(); ++r) {
            const T* x = static_cast<const T*>(inputs[r]) + begin;
            if (r == 0) {
                for (int64_t i = 0; i < length; ++i) sum[i] = Sum(x[i]);
            } else if (op == Reduce::max) {  // NaN wins over every number
                for (int64_t i = 0; i < length; ++i) {
                    Sum value = Sum(x[i]);
                    sum[i] = sum[i] > value || sum[i] != sum[i] ? sum[i] : value;
                }
            } else {
                for (int64_t i = 0; i < length; ++i) sum[i] += Sum(x[i]);
            }
        }
        if (op == Reduce::average) {  // of int32: truncates towards zero
            Sum n = Sum(inputs.size());
            for (int64_t i = 0; i < length; ++i) sum[i] /= n;
        }
        for (int64_t i = 0; i < length; ++i) out[begin + i] = T(sum[i]);
    }
}

void reduce_in_rank_order(void* out, const std::vector<const void*>& inputs, int64_t count,
                          DType dtype, Reduce op) {
    switch (dtype) {
        case DType::fp32: return reduce_typed(static_cast<float*>(out), inputs, count, op);
        case DType::bf16: return reduce_typed(static_cast<bf16*>(out), inputs, count, op);
        case DType::fp16: return reduce_typed(static_cast<fp16*>(out), inputs, count, op);
        case DType::fp64: return reduce_typed(static_cast<double*>(out), inputs, count, op);
        case DType::int32: return reduce_typed(static_cast<int32_t*>(out), inputs, count, op);
        case DType::e4m3: return reduce_typed(static_cast<e4m3*>(out), inputs, count, op);
        case DType::e5m2: return reduce_typed(static_cast<e5m2*>(out), inputs, count, op);
    }
}

}  // namespace ultrascale
