// All of this process's NCCL communicators, and a thread that checks them for errors five times a
// second. An operation may fail while it runs, for example because a rank at the other end of a
// socket has died. Then it never ends, and the host may be waiting for it inside any CUDA call, so
// only this thread can end the job. Over NVLink NCCL does not notice that a rank is gone; the
// launcher does.
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <thread>

#include "comm_nccl.h"

namespace ultrascale {

using Link = Communicator::Impl::Link;

void nccl_check(ncclResult_t result, const Link& link) {
    if (result == ncclSuccess) return;
    const std::string says = fmt::format("communicator {}: NCCL: {}: {}", link.name,
                                         ncclGetErrorString(result), ncclGetLastError(link.nccl));
    // A peer that is gone, or a socket or device of the network that fails.
    if (result == ncclRemoteError || result == ncclSystemError) throw PeerError(says);
    throw std::runtime_error(says);
}

namespace {

void check_link(const Link& link) {
    ncclResult_t error = ncclSuccess;
    nccl_check(ncclCommGetAsyncError(link.nccl, &error), link);
    nccl_check(error, link);
}

class Links {
public:
    void add(std::shared_ptr<Link> link) {
        std::lock_guard lock(mutex_);
        links_.push_back(std::move(link));
        if (!watch_.joinable())
            watch_ = std::jthread([this](std::stop_token stop) { watch(stop); });
    }
    void close() {
        if (!watch_.joinable()) return;
        watch_.request_stop();
        watch_.join();
        for (const auto& link : links_) check_link(*link);
        cuda_check(cudaDeviceSynchronize());
        for (const auto& link : links_) ncclCommDestroy(link->nccl);
        links_.clear();
    }

private:
    std::mutex mutex_;
    std::vector<std::shared_ptr<Link>> links_;  // guarded by the mutex while the thread runs
    std::condition_variable_any never_;
    std::jthread watch_;

    void watch(const std::stop_token& stop) {
        std::unique_lock lock(mutex_);
        while (!stop.stop_requested()) {
            for (const auto& link : links_) {
                try {
                    check_link(*link);
                } catch (const std::exception& error) {
                    abort_all_ranks(error);
                }
            }
            if (const double over = seconds_over_limit(); over > 0)
                abort_all_ranks(PeerError(fmt::format(
                    "this GPU has not finished its step, {:.0f} s after the limit of "
                    "--hang-seconds: some call waits for other ranks (--trace shows them)",
                    over)));
            never_.wait_for(lock, stop, std::chrono::milliseconds(200), [] { return false; });
        }
    }
};

Links& all() {
    static auto& links = *new Links;
    return links;
}

}  // namespace

void links::add(std::shared_ptr<Link> link) { all().add(std::move(link)); }
void links::close() { all().close(); }

}  // namespace ultrascale
