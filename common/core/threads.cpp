#include "threads.h"

#include <omp.h>
#include <sched.h>

#include <algorithm>
#include <cstdlib>

#include "device.h"

namespace ultrascale {

// Empty if the system does not say.
static cpu_set_t affinity() {
    cpu_set_t allowed;
    CPU_ZERO(&allowed);
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) CPU_ZERO(&allowed);
    return allowed;
}

std::string allowed_cores() {
    const cpu_set_t allowed = affinity();
    std::string cores;
    for (int core = 0; core < CPU_SETSIZE; ++core)
        if (CPU_ISSET(core, &allowed)) cores += (cores.empty() ? "" : " ") + std::to_string(core);
    return cores;
}

void use_threads(int ranks_on_these_cores) {
    if (!std::getenv("OMP_NUM_THREADS")) {
        const cpu_set_t allowed = affinity();
        const int cores = CPU_COUNT(&allowed) > 0 ? CPU_COUNT(&allowed) : omp_get_num_procs();
        omp_set_num_threads(std::max(1, cores / ranks_on_these_cores));
    }
    device_use_threads(omp_get_max_threads());
}

int threads() { return omp_get_max_threads(); }

AllCores::~AllCores() {
    omp_set_num_threads(before_);
    device_use_threads(before_);
}

}  // namespace ultrascale
