#include "cli.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ranges>
#include <system_error>

#include "comm/comm.h"
#include "core/error.h"
#include "core/stream_failure.h"
#include "core/threads.h"

namespace ultrascale {
namespace {

using Words = std::vector<std::string>;

// The part of command line `a` that differs from `b`: without the words that both share at the
// beginning and end, but with the option to which a differing value belongs.
std::string differing_part(const Words& a, const Words& b) {
    const auto same_first = std::ranges::mismatch(a, b);
    const auto same_last =
        std::ranges::mismatch(std::ranges::subrange(same_first.in1, a.end()) | std::views::reverse,
                              std::ranges::subrange(same_first.in2, b.end()) | std::views::reverse);
    auto begin = same_first.in1;
    const auto is_value = [](auto word, auto end) {
        return word != end && !word->starts_with("-");
    };
    if (begin != a.begin() && (is_value(begin, a.end()) || is_value(same_first.in2, b.end())))
        --begin;
    std::string text;
    for (auto word = begin; word != same_last.in1.base(); ++word)
        text += (text.empty() ? "" : " ") + *word;
    for (char& c : text)
        if (uint8_t(c) < ' ') c = ' ';  // the message must stay on one line
    constexpr size_t longest = 60;
    if (text.size() > longest) text = text.substr(0, longest) + "...";
    return text.empty() ? "nothing" : "`" + text + "`";
}

// All ranks call it, each with its program and its command line. Throws on all ranks if they
// differ: ranks that do different things would wait for each other forever.
void compare_with_other_ranks(const std::string& program, int argc, char** argv) {
    std::string line;
    for (int i = 1; i < argc; ++i) line += std::string(argv[i]) + '\0';
    const auto words_of = [](const std::string& all) {
        Words words;
        for (const auto word : all | std::views::split('\0'))
            words.emplace_back(word.begin(), word.end());
        if (!words.empty()) words.pop_back();  // the empty word after the last \0
        return words;
    };
    const Communicator& world = Communicator::world();
    const Words programs = world.gather_strings(program), lines = world.gather_strings(line);
    for (size_t rank = 1; rank < lines.size(); ++rank) {
        if (programs[rank] != programs[0])
            user_error("{} was started as {}, rank 0 as {}", rank_name(int(rank)), programs[rank],
                       programs[0]);
        if (lines[rank] == lines[0]) continue;
        const Words here = words_of(lines[rank]), there = words_of(lines[0]);
        user_error("{} was started with other options than rank 0: {} against {}",
                   rank_name(int(rank)), differing_part(here, there), differing_part(there, here));
    }
}

// If mpirun belongs to a different MPI than the one with which this program was built, or if srun
// does not speak to it, they start programs that do not know of each other and would overwrite each
// other's files.
void check_launcher() {
    if (Communicator::world().size() > 1) return;
    for (const char* name :
         {"PMI_SIZE", "OMPI_COMM_WORLD_SIZE"}) {  // MPICH's and Open MPI's mpirun set these
        const char* const ranks = std::getenv(name);
        if (ranks && std::atoi(ranks) > 1)
            user_error(
                "each of the {} programs believes it is alone: this mpirun belongs to a different "
                "MPI than the one they were built with; `make mpirun` prints the right one",
                ranks);
        if (ranks) return;  // mpirun -n 1, perhaps in a shell that srun started
    }
    // Set in the tasks of srun only; an allocation's own shell has SLURM_NTASKS alone.
    const char *const tasks = std::getenv("SLURM_STEP_NUM_TASKS"),
                      *task = std::getenv("SLURM_PROCID");
    if (tasks && task && std::atoi(tasks) > 1)
        user_error(
            "task {} of {} believes it is alone: srun has told MPI of no others; start them with "
            "`srun --mpi=pmi2` (MPICH) or `srun --mpi=pmix` (Open MPI)",
            task, tasks);
}

// The ranks that share this rank's cores: all of its machine, unless the launcher has bound some to
// cores of their own.
int ranks_on_these_cores() {
    const Communicator& world = Communicator::world();
    const std::string mine = this_machine() + " " + allowed_cores();
    const Words all = world.gather_strings(mine);
    return std::min(int(std::ranges::count(all, mine)), ranks_on_this_node());
}

// Runs the program and flushes what it printed: on a full disk either may fail.
bool run_and_print(const std::function<bool()>& program) {
    bool ok = false;
    std::string reason;
    try {
        ok = program();
        if (std::fflush(stdout) != 0) reason = std::strerror(errno);
    } catch (const std::system_error& error) {  // as fmt::print() throws
        if (!std::ferror(stdout)) throw;
        reason = error.code().message();
    }
    if (!reason.empty()) user_error("the standard output cannot be written: {}", reason);
    return ok;
}

// Ends a program that has thrown the error. Returns its exit code.
int end_after(const UserError& error) {
    const int code = int(error.exit_code);
    const char* const kind = error.exit_code == Exit::stopped ? "stopped" : "error";
    std::fflush(stdout);
    if (!all_ranks_arrive(5)) {
        // The other ranks had no error and wait for this one in a call that it will never make.
        fmt::print(stderr, "{}: {}{}\n", kind, rank_prefix(), error.what());
        abort_all_ranks(code);
    }
    if (Communicator::world().rank() == 0) fmt::print(stderr, "{}: {}\n", kind, error.what());
    if (communication_is_abandoned()) abort_all_ranks(code);
    finalize_communication();
    return code;
}

}  // namespace

void check_on_all_ranks(const std::function<void()>& checks) {
    std::string wrong;
    try {
        checks();
    } catch (const UserError& error) {
        wrong = error.what();
    }
    const Words errors = Communicator::world().gather_strings(wrong);
    const size_t rank =
        std::ranges::find_if(errors, [](const std::string& e) { return !e.empty(); }) -
        errors.begin();
    if (rank == 0) throw UserError(errors[0]);
    if (rank < errors.size()) user_error("{}: {}", rank_name(int(rank)), errors[rank]);
}

void parse_command_line(int argc, char** argv, const std::string& name,
                        const std::string& description,
                        const std::function<void(OptionList&)>& add_options,
                        const std::function<void(const OptionList&)>& check_values,
                        const std::function<void(OptionList&)>& resume) {
    OptionList options(name, description);
    add_options(options);
    bool asks_for_help = false;
    compare_with_other_ranks(name, argc, argv);
    check_on_all_ranks([&] { asks_for_help = !options.parse(argc, argv); });
    if (asks_for_help) {
        if (Communicator::world().rank() == 0) fmt::print("{}", options.help());
        finalize_communication();
        std::exit(0);
    }
    check_on_all_ranks([&] { resume(options); });
    check_on_all_ranks([&] { options.check_effects(), check_values(options); });
}

int run_program(const std::function<bool()>& program) {
    try {
        Communicator::world();
        check_launcher();
        use_threads(ranks_on_these_cores());
        const bool ok = run_and_print(program);
        finalize_communication();
        return int(ok ? Exit::fine : Exit::missed);
    } catch (const UserError& error) {
        return end_after(error);
    } catch (const std::bad_alloc&) {
        fmt::print(stderr, "error: {}out of memory on the host\n", rank_prefix());
        if (Communicator::world().size() > 1) abort_all_ranks(int(Exit::input));
        finalize_communication();
        return int(Exit::input);
    } catch (const std::exception& error) {
        abort_all_ranks(error);
    }
}

}  // namespace ultrascale
