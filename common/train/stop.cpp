#include "stop.h"

#include <csignal>

namespace ultrascale {

static volatile std::sig_atomic_t received = 0;

void listen_for_stop() {
    received = 0;
    struct sigaction action = {};
    action.sa_handler = [](int signal) { received = signal; };
    action.sa_flags = SA_RESTART;
    for (const int signal : {SIGTERM, SIGUSR1}) sigaction(signal, &action, nullptr);
}

int stop_signal() { return received; }

}  // namespace ultrascale
