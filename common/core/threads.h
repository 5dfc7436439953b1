// The number of host threads per rank: the cores on which it may run, divided by the ranks that
// share them.
#pragma once

#include <string>

namespace ultrascale {

// Sets the number of threads of OpenMP and of the backend's libraries for a rank whose cores are
// shared by so many ranks, itself included. If OMP_NUM_THREADS is set, it decides.
void use_threads(int ranks_on_these_cores);
// The cores on which this process may run, as a text to compare: "0 1 5".
std::string allowed_cores();
int threads();

// During its lifetime this rank computes with all cores of the machine, while the other ranks sleep
// (Communicator::wait_asleep_for).
class AllCores {
public:
    AllCores() { use_threads(1); }
    ~AllCores();

private:
    int before_ = threads();
};

}  // namespace ultrascale
