// The number of host threads per rank: the machine's cores divided by the ranks that share it.
#pragma once

namespace ultrascale {

// Sets the number of threads of OpenMP and of the backend's libraries. If OMP_NUM_THREADS is set,
// it decides.
void use_threads(int ranks_on_this_machine);
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
