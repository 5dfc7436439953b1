// One rank of several fails (tests/faults/fault_program.cpp): the job ends within seconds, says
// why, and leaves nothing behind.
#include <sched.h>

#include "processes.h"

namespace ultrascale::test {
namespace {

using Clock = std::chrono::steady_clock;

std::vector<std::string> lines_with(const std::string& text, const std::string& part) {
    std::vector<std::string> found;
    std::istringstream in(text);
    for (std::string line; std::getline(in, line);)
        if (contains(line, part)) found.push_back(line);
    return found;
}

class Faults : public testing::Test {
protected:
    // Expects that the job ends and does not wait for a rank that has failed.
    static Outcome in_time(const std::function<Outcome()>& run) {
        const auto begin = Clock::now();
        Outcome outcome = run();
        EXPECT_LT(std::chrono::duration<double>(Clock::now() - begin).count(), 30);
        return outcome;
    }

    // Runs three ranks, of which rank 1 fails.
    static Outcome run_fault(const std::string& fault, int on = 1) {
        return in_time([&] {
            return run_ranks(3, "fault_program", {"--fault", fault, "--on", fmt::format("{}", on)},
                             60);
        });
    }

    // Expects `line` on stderr, and no other line from the program. (Open MPI's launcher adds its
    // own lines.)
    void expect_line(const Outcome& outcome, int exit_code, const std::string& line) {
        EXPECT_EQ(outcome.exit_code, exit_code) << outcome.err << outcome.out;
        EXPECT_EQ(lines_with(outcome.err, "error: "), (std::vector<std::string>{line}))
            << outcome.err;
        EXPECT_EQ(lines_with(outcome.err, "died; the job ends").size(), 0u) << outcome.err;
    }

    void expect_refused(const std::vector<std::string>& commands, const std::string& telling) {
        SCOPED_TRACE(telling);
        expect_line(in_time([&] { return run_each_rank(commands, 60); }), 2, "error: " + telling);
    }

    // Only the dead rank is named, although the launcher then kills the others.
    void expect_death(const Outcome& outcome, int rank) {
        const char* const launcher = std::getenv("MPIRUN");
        if (launcher && contains(launcher, "--oversubscribe"))  // Open MPI's
            EXPECT_NE(outcome.exit_code, 0) << outcome.err << outcome.out;
        else  // watch.cpp asks MPICH's for it
            EXPECT_EQ(outcome.exit_code, 4) << outcome.err << outcome.out;
        const auto lines = lines_with(outcome.err, "died; the job ends");
        ASSERT_EQ(lines.size(), 1u) << outcome.err;
        EXPECT_TRUE(lines[0].starts_with(fmt::format("rank {} (pid ", rank))) << lines[0];
        EXPECT_TRUE(lines_with(outcome.err, "error: ").empty()) << outcome.err;
    }

    const ProcessMark mark;  // nothing of the job is left at the test's end
};

TEST_F(Faults, OrderlyEnds) {
    for (const char* fault : {"none", "false"}) {
        const Outcome outcome = run_fault(fault, -1);
        EXPECT_EQ(outcome.exit_code, fault == std::string("false")) << outcome.err;
        EXPECT_FALSE(contains(outcome.err, "error: ") || contains(outcome.err, "died; "))
            << outcome.err;
    }
    const Outcome help = run_ranks(3, "fault_program", "--help");
    EXPECT_EQ(help.exit_code, 0);
    EXPECT_EQ(help.err, "");
    EXPECT_EQ(lines_with(help.out, "--fault").size(), 1u) << help.out;
}

TEST_F(Faults, DifferentOptions) {
    const auto expect = [this](std::vector<std::string> arguments, const std::string& telling) {
        for (std::string& rank_arguments : arguments)
            rank_arguments = "fault_program " + rank_arguments;
        expect_refused(arguments, telling);
    };
    expect({"--steps 4 --seq 8", "--steps 4 --seq 8", "--steps 3 --seq 8"},
           "rank 2 was started with other options than rank 0: `--steps 3` against `--steps 4`");
    expect({"--seq 8", "--seq 8 --shuffle"},
           "rank 1 was started with other options than rank 0: `--shuffle` against nothing");
    expect({"", "--shuffle"},
           "rank 1 was started with other options than rank 0: `--shuffle` against nothing");
    expect({"--steps 4", "--steps"},
           "rank 1 was started with other options than rank 0: `--steps` against `--steps 4`");
    expect({"--help", "--seq 8"},
           "rank 1 was started with other options than rank 0: `--seq 8` against `--help`");
    const std::string a(1000, 'a'), b(1000, 'b');
    expect({"--data " + a, "--data " + b},
           fmt::format("rank 1 was started with other options than rank 0: `--data {}...` against "
                       "`--data {}...`",
                       b.substr(0, 53), a.substr(0, 53)));
}

TEST_F(Faults, DifferentPrograms) {
    expect_refused({"fault_program", "fault_program", "01_data_parallel"},
                   "rank 2 was started as 01_data_parallel, rank 0 as fault_program");
    expect_refused({"03_tensor_parallel --seq 8", "02_zero --seq 8"},
                   "rank 1 was started as 02_zero, rank 0 as 03_tensor_parallel");
}

// A launcher may bind ranks to cores: each uses its own, and only ranks with the same ones share.
TEST_F(Faults, RanksUseTheCoresTheyAreBoundTo) {
    cpu_set_t allowed;
    CPU_ZERO(&allowed);
    sched_getaffinity(0, sizeof allowed, &allowed);
    std::vector<std::string> cores;
    for (int core = 0; core < CPU_SETSIZE; ++core)
        if (CPU_ISSET(core, &allowed)) cores.push_back(std::to_string(core));
    if (cores.size() < 2) GTEST_SKIP() << "needs two cores";
    const std::string a = cores[0], b = cores[1];
    const auto threads = [&](const std::string& first, const std::string& second) {
        const std::string train = " 01_data_parallel --layers 1 --seq 8 --steps 1 --no-verify";
        return run_each_rank({"taskset -c " + first + train, "taskset -c " + second + train}).out;
    };
    const char* const given = std::getenv("OMP_NUM_THREADS");
    const std::string before = given ? given : "";
    unsetenv("OMP_NUM_THREADS");
    EXPECT_TRUE(contains(threads(a + "," + b, a), "2 threads"));
    EXPECT_TRUE(contains(threads(a + "," + b, a + "," + b), "1 thread "));
    EXPECT_TRUE(contains(threads(a, b), "1 thread "));
    if (given) setenv("OMP_NUM_THREADS", before.c_str(), 1);
}

// Another MPI's launcher would start n processes, each of them alone.
TEST_F(Faults, LauncherOfAnotherMpi) {
    setenv("OMPI_COMM_WORLD_SIZE", "4", 1);
    const Outcome outcome = run("01_data_parallel", "--demo collectives");
    unsetenv("OMPI_COMM_WORLD_SIZE");
    EXPECT_EQ(outcome.exit_code, 2);
    EXPECT_EQ(outcome.out, "");
    EXPECT_TRUE(outcome.err.starts_with("error: each of the 4 programs believes it is alone"))
        << outcome.err;
}

// srun without --mpi has the same effect. The shell of an allocation is not one of its tasks.
TEST_F(Faults, SrunThatDoesNotSpeakToMpi) {
    setenv("SLURM_NTASKS", "2", 1), setenv("SLURM_PROCID", "1", 1);
    EXPECT_EQ(run("fault_program", "--help").exit_code, 0);
    setenv("SLURM_STEP_NUM_TASKS", "2", 1);
    const Outcome task = run("fault_program", "--help"),
                  by_mpirun = run_ranks(1, "fault_program", "--help"),
                  together = run_ranks(2, "fault_program", "--fault none");
    for (const char* name : {"SLURM_NTASKS", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"})
        unsetenv(name);
    EXPECT_EQ(task.out, "");
    expect_line(task, 2,
                "error: task 1 of 2 believes it is alone: srun has told MPI of no others; start "
                "them with `srun --mpi=pmi2` (MPICH) or `srun --mpi=pmix` (Open MPI)");
    EXPECT_EQ(by_mpirun.exit_code, 0) << by_mpirun.err;
    EXPECT_EQ(together.exit_code, 0) << together.err;
}

TEST_F(Faults, WrongOptionsOnAllRanks) {
    expect_line(run_ranks(3, "fault_program", "--steps"), 2,
                "error: --steps: 1 required INT:at least 0 missing; --help lists the options");
}

TEST_F(Faults, UserErrorOnAllRanks) {
    expect_line(run_fault("user error", -1), 2, "error: the file is wrong");
}

TEST_F(Faults, UserErrorOnOneRank) {
    expect_line(run_fault("user error"), 2, "error: rank 1: the file is wrong");
}

// A communication that can never end is in flight.
TEST_F(Faults, UserErrorUnderWay) {
    expect_line(run_fault("user error under way", -1), 2, "error: the file is wrong");
}

TEST_F(Faults, InternalErrorOnOneRank) {
    expect_line(run_fault("internal error"), 3, "internal error: rank 1: this should not happen");
}

TEST_F(Faults, BrokenLink) {
    expect_line(run_fault("link"), 4, "error: rank 1: the link is broken");
    const Outcome told = run_fault("MPI");
    ASSERT_EQ(lines_with(told.err, "error: ").size(), 1u) << told.err;
    expect_line(told, 4, lines_with(told.err, "error: rank 1: MPI: ").at(0));
}

TEST_F(Faults, MessageThatIsTooLong) {
    const Outcome outcome = run_fault("long message");
    EXPECT_EQ(outcome.exit_code, 3) << outcome.err;
    EXPECT_EQ(lines_with(outcome.err, "internal error: rank 1: MPI: ").size(), 1u) << outcome.err;
}

TEST_F(Faults, FullDiskOfOneRank) {
    const TempDir dir;
    const std::string json = dir / "full.jsonl";
    expect_line(in_time([&] {
                    return run_ranks(3, "fault_program",
                                     {"--fault", "full disk", "--on", "0", "--json", json}, 60);
                }),
                2, fmt::format("error: rank 0: {}: cannot be written: File too large", json));
    const std::string lines = slurp(json);
    EXPECT_EQ(lines.size() % 35, 0u) << lines;  // whole lines
    EXPECT_GT(lines.size(), 900u);
}

TEST_F(Faults, OutOfMemoryOnOneRank) {
    expect_line(run_fault("out of memory"), 2, "error: rank 1: out of memory on the host");
}

TEST_F(Faults, KilledRankIsNamed) {
    for (int rank : {0, 1, 2}) expect_death(run_fault("killed", rank), rank);
}

// Peers that were copying from the dead rank's memory fail, too, but must not be named.
TEST_F(Faults, RankKilledUnderWayIsNamed) {
    if (on_gpu) GTEST_SKIP() << "on GPUs tests/faults/kill_rank.sh tries it";
    for (int time = 0; time < 6; ++time)
        expect_death(run_fault("killed under way", time % 3), time % 3);
}

TEST_F(Faults, CrashedRankIsNamed) { expect_death(run_fault("crash"), 1); }

TEST_F(Faults, RankThatJustLeavesIsNamed) { expect_death(run_fault("exit"), 1); }

}  // namespace
}  // namespace ultrascale::test
