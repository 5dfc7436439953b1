#!/usr/bin/env bash
# Runs the test programs that were built and ends with "N passed, N failed".
# Usage: tests/run_all.sh cpu|cuda "MPIRUN FLAGS" [all]
# `all` adds slower tests: those whose names begin with Long, other numbers of ranks, and on the CPU
# the CUDA kernels, the sanitizers, Open MPI and two minutes of fuzzing. Tests that passed before
# without `all` are then counted but not run again, unless a program or a test has changed since.
set -u
cd "$(dirname "$0")/.."
backend=$1 mpirun=$2 all=${3:+yes}
passed=0 failed=0 failures=
# Several tests run at a time, so threads that wait must sleep: if they spin, they take the others'
# cores.
export GTEST_COLOR=no MPIRUN=$mpirun OMP_WAIT_POLICY=passive
log=$(mktemp)
waiting=$(mktemp -d)
declare -A started
trap 'kill -INT -- "${started[@]/#/-}" 2>/dev/null; rm -rf "$log" "$waiting"' EXIT
# tests/tsan.supp explains these settings.
export TSAN_OPTIONS="suppressions=$PWD/tests/tsan.supp history_size=7 exitcode=66" UCX_MEM_EVENTS=n
export ASAN_OPTIONS="detect_leaks=0"  # MPI libraries keep what they allocated until the end

# suite NAME COMMAND...: runs it, counts GoogleTest's lines, shows the whole output of a failure.
suite() {
    local name=$1 begin=$SECONDS ok bad status=0
    shift
    "$@" >"$log" 2>&1 || status=$?
    ok=$(grep -c '^\[       OK \]' "$log")
    bad=$(grep -c '^\[  FAILED  \] .*ms)$' "$log")
    if [ "$status" -ne 0 ] && [ "$bad" -eq 0 ] || [ "$((ok + bad))" -eq 0 ]; then
        bad=$((bad + 1))
    fi
    if [ "$bad" -gt 0 ]; then
        cat "$log"
        echo "exit code $status: $*"
        failures+=$(grep '^\[  FAILED  \] .*ms)$' "$log" || echo "exit code $status: $name")$'\n'
    fi
    printf '%-44s %4d passed %4d failed   %4d s\n' "$name" "$ok" "$bad" $((SECONDS - begin))
    passed=$((passed + ok)) failed=$((failed + bad))
}

# in_shards PROGRAM...: as many processes as cores, at most eight on a GPU, share the program's
# tests, in shards of a quarter of a core's share, so that all end at about the same time.
in_shards() {
    local status=0 logs shards=$((4 * cores))
    logs=$(mktemp -d)
    seq 0 $((shards - 1)) | GTEST_TOTAL_SHARDS=$shards \
        xargs -P "$cores" -I{} bash -c '
            log=$1/$2
            shift 2
            GTEST_SHARD_INDEX=${log##*/} "$@" >"$log" 2>&1' _ "$logs" {} "$@" || status=$?
    cat "$logs"/*
    rm -r "$logs"
    return "$status"
}

# as_test NAME COMMAND...: makes one test of a program that does not use GoogleTest, for a suite.
as_test() {
    "${@:2}" && echo "[       OK ] $1 (0 ms)"
}
# start NAME COMMAND...: begins a command beside other suites, as a group of processes that can be
# ended as a whole. ended NAME: waits for it, for a suite.
start() {
    set -m
    "${@:2}" >"$waiting/$1" 2>&1 </dev/null &
    started[$1]=$!
    set +m
}
start_test() {  # one that mostly waits, and does not use GoogleTest
    start "$1" as_test "$@"
}
ended() {
    local status=0
    wait "${started[$1]}" || status=$?
    unset "started[$1]"
    cat "$waiting/$1"
    return "$status"
}

all_cores=$(env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc)  # nproc obeys these
cores=$all_cores
[ "$backend" = cpu ] || cores=$((all_cores < 8 ? all_cores : 8))

# The number of tests that passed without `all`.
before=build/$backend/quick_tests_passed
tests='*'
if [ -z "$all" ]; then
    rm -f "$before"
    tests='-Long*'
elif [ -s "$before" ] &&
    [ -z "$(find build/"$backend"/[0-9]* build/"$backend"/*_test tests classroom \
        -newer "$before" -type f ! -name '*.pyc' ! -name long_test -print -quit)" ]; then
    passed=$(cat "$before")
    tests='Long*'  # the remaining tests
    printf '%-44s %4d passed %4d failed   before\n' "all of make test" "$passed" 0
fi
filter=--gtest_filter=$tests

suite "unit" in_shards build/$backend/unit_test "$filter"
# On GPUs more ranks than GPUs communicate through the host. With a GPU for each rank, NCCL's
# communicators of all tests, which live as long as the process, would fill 80 GB: so the tests run
# in four parts.
export GTEST_TOTAL_SHARDS=$([ "$backend" = cuda ] && echo 4 || echo 1) GTEST_SHARD_INDEX
# None of these tests is long.
for ranks in ${all:+1 2} $([ "$tests" = 'Long*' ] || echo 3) ${all:+4 8}; do
    for ((GTEST_SHARD_INDEX = 0; GTEST_SHARD_INDEX < GTEST_TOTAL_SHARDS; ++GTEST_SHARD_INDEX)); do
        suite "communication, $ranks ranks" $mpirun -n $ranks build/$backend/comm_test
    done
done
unset GTEST_TOTAL_SHARDS GTEST_SHARD_INDEX
if [ "$backend" = cpu ] && [ -z "$all" ]; then  # two pretended nodes of four
    suite "bytes between nodes, 8 ranks" \
        $mpirun -n 8 build/cpu/comm_test --gtest_filter='CardBytes*'
fi
# Runs several chapter tests at a time, because a short run mostly starts up and waits. On GPUs the
# driver starts and ends one process after the other, about three a second, whatever runs at the
# same time. So the quick tests there are those of code that differs on a GPU (kernels, memory,
# copies and NCCL), and `all` adds those of options, files, pictures and predictions. Their small
# computations on the CPU get 2 threads each, so that they do not wait for each other's cores.
gpu_tests=$(tr -s ' \n' : <<'END'
SingleGpu/Reference* SingleGpuEqual* SingleGpuMemory* SingleGpuVerify* SingleGpuReference*
SingleGpuProfile* SingleGpu/Resume*/2 DataParallel.EqualsChapter00 DataParallel.WithCopyEngines*
DataParallel/DataParallelRanks* DataParallelReduceDtype* Ranks/ZeroAgree*
ZeroStages.AgreeFromAFreshStart ZeroStages.BuffersStayConstant ZeroOffload* Ranks/TensorParallel*
TensorParallelCosts* ContextParallel.EqualsChapter00 ContextParallelDocuments.EqualOneDevice
ContextParallelPrecision* Pipeline.EveryScheduleEqualsOneDevice
Pipeline.PostValidationIsTheSameTraining ExpertParallel.EqualsOneDevice ExpertParallel.EveryDispatch
ExpertParallelReference.HuggingFace Family/* KernelsMine* Precision.EveryRecipeEqualsOneDevice
Precision.OverflowedStepsAreSkippedByAllRanks Precision.PlainRecipesArePlainTraining
FiveD.EveryPairOfAxesEqualsOneDevice FiveD.PeaksOfFewLayoutsAreAsPredicted FiveD.EightBit*
BadInput.OutOfMemory NotFinite* Estimate.IsWhatASingleGpuPredicts CudaGraph/*
END
)
at_once=$((all_cores < 8 ? all_cores : 8))
chapters=$filter
if [ "$backend" = cuda ]; then
    export OMP_NUM_THREADS=2
    [ -n "$all" ] || chapters=--gtest_filter=$gpu_tests
    [ "$tests" != 'Long*' ] || chapters=--gtest_filter=-$gpu_tests
fi
if [ "$tests" != 'Long*' ]; then
    start_test Processes python3 tests/processes_test.py
    start_test Sweep python3 tests/sweep_test.py
    start_test Deps python3 tests/deps_test.py
fi
suite "chapters, $at_once at a time" \
    tests/in_parallel.sh "$at_once" build/$backend/chapter_test "$chapters"
if [ -n "$all" ]; then
    # The first measure how ranks share the cores, or a few milliseconds, so nothing else may run.
    # The others leave most of the cores idle. What runs beside them has so low a priority that they
    # take as long as alone.
    alone='LongExpertsOverlap*' waits='LongPlannerWaits*'
    [ "$backend" = cuda ] || alone+=:LongPipeline.OnlyPostValidationKeepsWhatZeroBubbleH2Promises
    [ "$backend" = cuda ] || waits+=:LongPipeline.PretendedTimesAreAsSimulated
    suite "chapters, long" tests/in_parallel.sh $at_once build/$backend/long_test \
        "--gtest_filter=-$alone:$waits"
    if [ "$backend" = cpu ]; then
        # Each rank has one OpenMP thread, because the sanitizer does not see how OpenMP
        # synchronizes its threads. Two ranks and one data type suffice: a rank's other threads
        # synchronize in the same way with any.
        start Threads nice -n 19 env OMP_NUM_THREADS=1 $mpirun -n 2 build/cpu-thread/comm_test \
            --gtest_filter=-Collectives/1.*:Collectives/2.*:Collectives/3.*
        start_test Fuzz nice -n 19 build/cpu-address/fuzz_readers 120
        suite "waits as predicted" build/cpu/long_test "--gtest_filter=$waits"
        suite "streams and communication, thread sanitizer" ended Threads
        suite "wrong files, made at random" ended Fuzz
        suite "times as predicted, alone" build/cpu/long_test "--gtest_filter=$alone"
    fi
fi
unset OMP_NUM_THREADS
if [ "$tests" != 'Long*' ]; then
    suite "runs of which no process stays" ended Processes
    suite "sweeps that survive what their runs do" ended Sweep
    suite "what make deps finds and installs" ended Deps
    suite "the grader's words" as_test GradersWords python3 tests/classroom_test.py
    suite "the clinic's words" as_test ClinicsWords python3 tests/clinic_test.py
fi
if [ "$backend" = cpu ] && [ "$tests" != 'Long*' ]; then
    suite "the committed bits" as_test Bits make -s --no-print-directory BACKEND=cpu bits
    suite "a kernel called from Python" \
        as_test Python make -s --no-print-directory BACKEND=cpu python
fi
# The grader is proved: right solutions get all points, wrong ones do not. A daily run takes a
# sixtieth.
if [ "$backend" = cpu ]; then
    suite "classroom, the grader's proof" make -s --no-print-directory BACKEND=cpu prove \
        SHARE=$([ -n "$all" ] && echo today/60 || echo quick)
fi
if [ "$backend" = cpu ] && [ -n "$all" ]; then
    # One of its ten cases a day.
    suite "a case of the clinic" make -s --no-print-directory BACKEND=cpu prove ONLY=clinic \
        CASE=$((10#$(date +%j) % 10 + 1))
    suite "CUDA kernels, executed on the CPU" in_shards build/simt/simt_test
    if [ -x build/cpu-openmpi/comm_test ]; then
        suite "communication, 2 ranks, Open MPI" \
            mpirun.openmpi --allow-run-as-root --oversubscribe -n 2 build/cpu-openmpi/comm_test
    fi
    start_test Nodes make -s --no-print-directory BACKEND=cpu test-nodes
    # The address sanitizer does not know the stack on which that test throws (Boost.Context).
    suite "unit, address and undefined sanitizers" \
        in_shards build/cpu-address/unit_test --gtest_filter=-Interleave.AFailureUnwindsBoth
    suite "bad input, address and undefined sanitizers" \
        env CHAPTERS_DIR=build/cpu-address \
        tests/in_parallel.sh $at_once build/cpu/chapter_test --gtest_filter='BadInput*'
    suite "several hosts, and Slurm" ended Nodes
fi

printf %s "$failures"  # again, so that they are found without a search
[ -n "$all" ] || [ "$failed" -gt 0 ] || echo "$passed" >"$before"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
