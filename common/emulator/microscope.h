// Shows without a GPU how kernels access memory: for each line of their source, the numbers of
// Nsight Compute's source page (sectors, bank conflicts, active threads), and the races in shared
// memory that compute-sanitizer's racecheck finds.
//
//     simt::Microscope microscope;               // from here on it watches every kernel
//     ops::rmsnorm_forward(...);
//     fmt::print("{}", simt::table(microscope.take()));
//
// A warp's 32 threads execute a load or store together: one request. The memory system splits it:
//   global memory   into sectors of 32 bytes; it moves whole sectors, however few of their bytes
//                   are asked for
//   shared memory   into wavefronts: 32 banks give one 4-byte word each in a turn; different words
//                   in one bank need a turn each
//
// Here each thread runs by itself until it waits. So the n-th time that a lane executes an
// instruction since its warp last synchronized (at a barrier, a shuffle, a vote) counts as the same
// request as the n-th time of the warp's other lanes. A GPU does the same if lanes reconverge after
// each branch and loop.
//
// A GPU may differ in these points:
//   - The instructions are g++'s (-O1, everything inlined into the kernel, see the Makefile). It
//     keeps a 16-byte struct's copy in one piece and does not unroll; nvcc may join neighbouring
//     loads into a wider one, keep in a register what is loaded twice, move a load out of a loop,
//     or load both sides of a branch. Bytes per line agree where each thread needs what it loads.
//   - A copy of a struct that no single access can do counts as several: of the largest power of
//     two that divides its size, 16 bytes at most; of 4 bytes, if it has the size of an access but
//     not the alignment. g++ does not say what the alignment is. What memcpy copies is seen up to
//     16 bytes.
//   - There are no caches: the sectors are those that a request asks L1 for, even if L1 or L2
//     already has them.
//   - An 8-byte access to shared memory takes two halves of a warp in turn, a 16-byte access four
//     quarters, also where a GPU would join them. Atomic operations on one bank are counted one
//     after another.
//   - Threads' stacks are registers; kernel arguments and threadIdx etc. are not counted. PTX is
//     not executed at all.
//   - Lanes that drift more than some thousand accesses apart without meeting are no longer
//     matched.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "observer.h"

namespace simt {

// Sums over requests.
struct Counts {
    int64_t requests = 0;          // instructions, executed by a warp
    int64_t lanes = 0;             // threads that took part in the requests
    int64_t bytes_asked = 0;       // by all threads, each counted by itself
    int64_t sectors = 0;           // 32 bytes each; global memory
    int64_t ideal_sectors = 0;     // the fewest that hold the distinct bytes of each request
    int64_t wavefronts = 0;        // rounds of the banks; shared memory
    int64_t ideal_wavefronts = 0;  // without conflicts

    double active_threads() const { return mean(lanes); }  // per request, of 32
    double sectors_per_request() const { return mean(sectors); }
    int64_t bytes_moved() const { return 32 * sectors; }
    double ways() const {
        return ideal_wavefronts ? double(wavefronts) / double(ideal_wavefronts) : 0;
    }  // 1: no bank conflicts
    Counts& operator+=(const Counts& other);

private:
    double mean(int64_t sum) const { return requests ? double(sum) / double(requests) : 0; }
};

struct LineCounts {
    std::string file;  // "ops_rmsnorm.cu"
    // in the kernel's own file, even if a function of another file was inlined there
    int line = 0;
    std::string source;  // that line, "" where the file cannot be read
    Access access = Access::global_load;
    int bytes = 0;  // of one thread's access; the largest if they differ
    Counts counts;
};

struct KernelCounts {
    std::string name;  // "forward_kept<32, 8, bf16>"
    std::string file;
    int line = 0;
    int64_t launches = 0, blocks = 0, threads = 0;
    std::vector<LineCounts> lines;  // by line, then access

    Counts total(Access access) const;
    Counts total() const;
    // The sum over the lines that contain `text`.
    Counts at(const std::string& text, Access access) const;
};

// Two threads of a block access the same bytes of shared memory, at least one of them writes, and
// neither __syncthreads nor, within a warp, __syncwarp orders the two accesses. It is found in
// whichever order they ran. As in racecheck, writes that do not change the value and pairs of
// atomic operations do not count.
struct Race {
    struct Side {
        std::string file;
        int line = 0;
        std::string source;
        Access access = Access::shared_load;
        uint32_t thread = 0;  // in the block
    };
    std::string kernel;
    Side one, other;
    uint3 block{};  // of this example: the first block that has the race
    // from the beginning of dynamic shared memory, in bytes; -1: in a __shared__ array
    int64_t offset = 0;
    int64_t count = 0;  // how often it was seen
};

struct Observation {
    std::vector<KernelCounts> kernels;  // in the order of their first launches
    std::vector<Race> races;            // each pair of lines once; 50 at most

    // The kernel whose name begins with `name`; an empty one if there is none.
    KernelCounts kernel(const std::string& name) const;
};

// Watches all kernels while it exists. Only one may exist at a time.
class Microscope : public Observer {
public:
    Microscope();
    ~Microscope() override;
    Microscope(const Microscope&) = delete;

    Observation take();  // the observations since the beginning, or since the last take()

    void launched(const Call& call, dim3 grid, dim3 block) override;
    std::unique_ptr<CoreObserver> on_core(const Call& call) override;

    struct Seen;

private:
    std::unique_ptr<Seen> seen_;
};

// Text for the terminal, 100 columns wide: each kernel's lines and totals, followed by the races.
std::string table(const Observation& observation);

}  // namespace simt
