#!/usr/bin/env bash
# Runs every test program that `make test` built and ends with "N passed, N failed". Usage: tests/run_all.sh cpu|cuda "MPIRUN FLAGS"
set -u
cd "$(dirname "$0")/.."
backend=$1 mpirun=$2
passed=0 failed=0
export GTEST_COLOR=no MPIRUN=$mpirun
log=$(mktemp)
trap 'rm -f "$log"' EXIT
export TSAN_OPTIONS="suppressions=$PWD/tests/tsan.supp history_size=7 exitcode=66" UCX_MEM_EVENTS=n  # why: tests/tsan.supp
export ASAN_OPTIONS="detect_leaks=0"  # MPI libraries keep what they allocated until the end

# suite NAME COMMAND...: runs it, counts GoogleTest's lines, shows the whole output of a failure.
suite() {
    local name=$1 begin=$SECONDS ok bad status=0
    shift
    "$@" >"$log" 2>&1 || status=$?
    ok=$(grep -c '^\[       OK \]' "$log")
    bad=$(grep -c '^\[  FAILED  \] .*ms)$' "$log")
    if [ "$status" -ne 0 ] && [ "$bad" -eq 0 ] || [ "$((ok + bad))" -eq 0 ]; then bad=$((bad + 1)); fi
    if [ "$bad" -gt 0 ]; then cat "$log"; echo "exit code $status: $*"; fi
    printf '%-44s %4d passed %4d failed   %4d s\n' "$name" "$ok" "$bad" $((SECONDS - begin))
    passed=$((passed + ok)) failed=$((failed + bad))
}

suite "unit" build/$backend/unit_test
for ranks in 1 2 3 4 8; do  # on GPUs: more ranks than GPUs communicate through the host
    suite "communication, $ranks ranks" $mpirun -n $ranks build/$backend/comm_test
done
# On a GPU most of a chapter's short run is starting up: several at a time, each of up to eight ranks. But the driver makes one context
# after the other: more than 12 at a time only wait for each other, until tests find that refusing an option takes too long. What little
# they do on the CPU must not be 16 threads each, which wait for each other's cores.
if [ "$backend" = cuda ]; then
    at_once=$(($(nproc) / 2))
    at_once=$((at_once < 4 ? 4 : at_once > 12 ? 12 : at_once))
    suite "chapters" env OMP_NUM_THREADS=2 tests/in_parallel.sh $at_once build/cuda/chapter_test
else
    suite "chapters" build/cpu/chapter_test
fi
if [ "$backend" = cpu ]; then
    suite "CUDA kernels, executed on the CPU" build/simt/simt_test
    if [ -x build/cpu-openmpi/comm_test ]; then
        suite "communication, 4 ranks, Open MPI" mpirun.openmpi --allow-run-as-root --oversubscribe -n 4 build/cpu-openmpi/comm_test
    fi
    suite "unit, address and undefined sanitizers" build/cpu-address/unit_test
    suite "bad input, address and undefined sanitizers" env CHAPTERS_DIR=build/cpu-address build/cpu/chapter_test --gtest_filter='BadInput*'
    # One thread a rank: the sanitizer does not see how OpenMP orders its threads. A rank's other threads meet in the same way however many
    # ranks there are, and whatever the type of what they carry.
    suite "streams and communication, thread sanitizer" env OMP_NUM_THREADS=1 $mpirun -n 2 build/cpu-thread/comm_test \
        --gtest_filter=-Collectives/1.*:Collectives/2.*:Collectives/3.*
fi

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
