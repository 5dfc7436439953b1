// A program that fails on one rank, for tests/chapters/long_faults_test.cpp:
//     mpirun -n 3 build/cpu/fault_program --fault killed --on 2
// The other ranks continue, and wait for that rank in an all-reduce, as they would in a step.
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <thread>

#include "comm/mpi/comm_mpi.h"
#include "core/error.h"
#include "lab/options/cli.h"
#include "lab/report/json_lines.h"

using namespace ultrascale;

int main(int argc, char** argv) {
    return run_program([&] {
        std::string fault;
        int on = 0;
        const Options options =
            parse_options(argc, argv, "fault_program", "Fails on one rank",
                          [&](OptionList& options, const Options&) {
                              options.add("--fault", fault, "What happens");
                              options.add("--on", on, "On which rank; -1: on all");
                          });
        const Communicator& world = Communicator::world();
        Tensor x = Tensor::zeros({1000}, DType::fp32, Memory::workspace);
        for (int step = 0; step < 10; ++step) world.all_reduce(x);
        if (fault == "killed under way") {  // while its peers copy from its memory
            const Tensor large = Tensor::zeros({1 << 20}, DType::fp32, Memory::workspace);
            const auto die_soon = [] {
                std::this_thread::sleep_for(std::chrono::milliseconds(100));
                kill(getpid(), SIGKILL);
            };
            if (world.rank() == on) std::thread(die_soon).detach();
            for (;;) world.all_reduce(large);
        }
        if (on < 0 || world.rank() == on) {
            // By then the other ranks are waiting in the all-reduce.
            std::this_thread::sleep_for(std::chrono::milliseconds(100));
            if (fault == "user error") user_error("the file is wrong");
            if (fault == "killed") kill(getpid(), SIGKILL);
            if (fault == "crash") std::raise(SIGSEGV);
            if (fault == "exit") std::_Exit(9);
            if (fault == "full disk") {  // a disk of 1000 bytes: 28 lines and a half
                std::signal(SIGXFSZ, SIG_IGN);
                rlimit limit{};
                getrlimit(RLIMIT_FSIZE, &limit);
                limit.rlim_cur = 1000;
                setrlimit(RLIMIT_FSIZE, &limit);
                JsonLines lines(options.json);
                for (;;) lines.write(R"({"a line": "of 34 bytes, its end"})");
            }
            if (fault == "link") throw PeerError("the link is broken");
            if (fault == "MPI") MPI_Comm_call_errhandler(MPI_COMM_WORLD, MPI_ERR_OTHER);
            if (fault == "long message") world.recv(x.slice(0, 10), 0).wait();
            if (fault == "internal error") throw std::runtime_error("this should not happen");
            if (fault == "out of memory") throw std::bad_alloc();
            if (fault == "false") return false;
            if (fault == "user error under way") {  // receives a message that nobody sends
                Work work =
                    world.recv(x, (world.rank() + 1) % world.size(), communication_stream());
                user_error("the file is wrong");
            }
        }
        if (fault == "long message" && world.rank() == 0) world.send(x, on).wait();
        if (fault != "false") world.all_reduce(x);
        return fault != "false";
    });
}
