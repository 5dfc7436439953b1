// One clock for all ranks: converts every rank's time to rank 0's.
//
// Every rank counts from its own program's start. Ranks of one machine read the same steady clock
// and exchange their start times on it, which is exact. The clocks of two machines are unrelated,
// so the first rank of each machine asks rank 0 for the time many times:
//
//     asks      asked ------.                       ,---> back
//     rank 0                 \---> theirs ---------'     theirs is taken for (asked + back) / 2
//
// However long a message is delayed, rank 0 read its clock between `asked` and `back`. So the error
// is at most half the round trip, and the fastest round trip counts (Cristian 1989, "Probabilistic
// clock synchronization"). Two quartz clocks also drift apart, typically by some 10 us per second;
// this is not corrected.
#include <algorithm>
#include <filesystem>
#include <fstream>

#include "comm_mpi.h"
#include "core/trace.h"

namespace ultrascale {

std::string this_machine() {
    std::string boot;  // new at every boot of the kernel, which keeps the clock
    std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
    if (boot.empty()) return "";
    std::error_code missing;  // a container may have a clock of its own
    return boot + " " + std::filesystem::read_symlink("/proc/self/ns/time", missing).string();
}

// Returns rank 0's clock minus the asking rank's. Only these two ranks call it.
static double ask_rank_0(const Communicator::Impl& world, int asking, int tag) {
    double offset = 0, fastest = 1e30;
    for (int question = 0; question < 200; ++question) {
        Exchange exchange(world, tag);
        double asked = now_seconds(), theirs = 0;
        if (world.rank == 0) {
            exchange.recv(&asked, sizeof asked, asking);
            exchange.wait();
            theirs = now_seconds();
            exchange.send(&theirs, sizeof theirs, asking);
            exchange.wait();
            continue;
        }
        exchange.recv(&theirs, sizeof theirs, 0);
        exchange.send(&asked, sizeof asked, 0);
        exchange.wait();
        const double back = now_seconds();
        if (back - asked < fastest) fastest = back - asked, offset = theirs - (asked + back) / 2;
    }
    return offset;
}

std::vector<double> Communicator::clock_offsets(const std::string& machine) const {
    const std::vector<std::string> machines = gather_strings(machine);
    const std::vector<double> starts = tell_all(*impl_, program_start());
    const auto first_of_machine = [&](size_t rank) {
        return machines[rank].empty()
                   ? rank
                   : size_t(std::ranges::find(machines, machines[rank]) - machines.begin());
    };
    double measured = 0;
    for (size_t asking = 1; asking < machines.size(); ++asking) {
        if (first_of_machine(asking) != asking) continue;
        const int tag = impl_->collective_tag();
        if (rank() == 0 || rank() == int(asking)) measured = ask_rank_0(*impl_, int(asking), tag);
    }
    std::vector<double> offsets = tell_all(*impl_, measured);
    for (size_t rank = 0; rank < offsets.size(); ++rank) {
        const size_t first = first_of_machine(rank);
        if (rank != first) offsets[rank] = offsets[first] + starts[rank] - starts[first];
    }
    return offsets;
}

}  // namespace ultrascale
