#include "threads.h"

#include <omp.h>
#include <sched.h>

#include <algorithm>
#include <cstdlib>

#include "device.h"

namespace ultrascale {

void use_threads(int ranks_on_this_machine) {
    if (!std::getenv("OMP_NUM_THREADS")) {
        cpu_set_t allowed;
        CPU_ZERO(&allowed);
        int cores = sched_getaffinity(0, sizeof allowed, &allowed) == 0 ? CPU_COUNT(&allowed)
                                                                        : omp_get_num_procs();
        omp_set_num_threads(std::max(1, cores / ranks_on_this_machine));
    }
    device_use_threads(omp_get_max_threads());
}

int threads() { return omp_get_max_threads(); }

AllCores::~AllCores() {
    omp_set_num_threads(before_);
    device_use_threads(before_);
}

}  // namespace ultrascale
