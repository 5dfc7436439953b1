// How many threads compute on the host: the cores of this machine over the ranks that share it.
#pragma once

namespace ultrascale {

// Sets the number of threads of OpenMP and of the backend's libraries. OMP_NUM_THREADS, where it is
// set, stays as it is.
void use_threads(int ranks_on_this_machine);
int threads();

// While it lives, this rank computes with all cores of the machine: for a time in which the other
// ranks sleep (Communicator::wait_asleep_for).
class AllCores {
public:
    AllCores() { use_threads(1); }
    ~AllCores();

private:
    int before_ = threads();
};

}  // namespace ultrascale
