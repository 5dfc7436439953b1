// Linked into every program that is graded, to report where a rank is. When a rank crashes, or gets
// SIGUSR1, which the grader sends if a program runs for too long, it prints the names of the
// functions that its main thread is in, innermost first:
//
//     [classroom] 1234: signal 10: ops::add < ring_all_reduce < main
//
// It also replaces the program's main(): it calls the real one and, when that has returned, prints
// a word that the grader has chosen for this run. So a program that ends early, for example by
// exit(0) after printing results of its own, can be told from one that has run to its end.
#include <cxxabi.h>
#include <dlfcn.h>
#include <execinfo.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

namespace {

// Returns a name without the clutter of namespaces and arguments. It allocates; the process ends
// afterwards.
std::string name_at(void* address) {
    Dl_info info = {};
    if (dladdr(address, &info) == 0 || info.dli_sname == nullptr) return "";
    int status = 0;
    char* plain = abi::__cxa_demangle(info.dli_sname, nullptr, nullptr, &status);
    std::string name = status == 0 ? plain : info.dli_sname;
    std::free(plain);
    const size_t arguments = name.find('(');
    return name.substr(0, arguments);
}

void say_where(int signal) {
    void* frames[48];
    const int count = backtrace(frames, 48);
    std::string line =
        "\n[classroom] " + std::to_string(getpid()) + ": signal " + std::to_string(signal) + ":";
    for (int i = 0; i < count; ++i)
        if (const std::string name = name_at(frames[i]); !name.empty()) line += " < " + name;
    line += '\n';
    if (write(STDERR_FILENO, line.data(), line.size()) < 0) _exit(1);
    if (signal == SIGUSR1) _exit(1);
    ::signal(signal, SIG_DFL);
    raise(signal);
}

std::string word_of_this_run() {
    const char* given = std::getenv("CLASSROOM_WORD");
    const std::string word = given ? given : "";
    unsetenv("CLASSROOM_WORD");
    return word;
}

const bool installed = [] {
    void* frames[1];
    backtrace(frames, 1);  // loads its library now, not in a handler
    for (const int which : {SIGUSR1, SIGSEGV, SIGFPE, SIGBUS, SIGILL}) {
        struct sigaction action = {};
        action.sa_handler = say_where;
        sigaction(which, &action, nullptr);
    }
    return true;
}();

}  // namespace

extern "C" {
int __real_main(int, char**, char**);
int __wrap_main(int argc, char** argv, char** environment) {  // the linker's --wrap=main
    const std::string word = word_of_this_run();
    const int result = __real_main(argc, argv, environment);
    const std::string line =
        "\n[classroom] ended " + word + " " + std::to_string(result) + "\n";
    if (write(STDERR_FILENO, line.data(), line.size()) < 0) return 1;
    return result;
}
}
