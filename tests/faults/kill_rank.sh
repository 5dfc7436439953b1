#!/usr/bin/env bash
# Kills one rank of 01_data_parallel with kill -9 in the middle of a step. Shows the job's output
# and how long the job continues.
# Usage: tests/faults/kill_rank.sh BUILD "MPIRUN FLAGS" OPTIONS...
#        e.g. build/cpu "mpirun -n 2" --model nano --no-verify
# MPIRUN starts the ranks on this machine, and the youngest of them is killed. No other training of
# this build may run at the same time.
set -u
cd "$(dirname "$0")/../.."
build=$1 mpirun=$2
shift 2
output=$(mktemp)
trap 'rm -f "$output"' EXIT

$mpirun "$build/01_data_parallel" --data common/text.txt --steps 1000000 "$@" >"$output" 2>&1 &
job=$!
until grep -q "step  *1 " "$output"; do
    sleep 0.2
    kill -0 $job 2>/dev/null || { cat "$output"; exit 1; }
done
sleep 2
kill -9 "$(pgrep -n -f "^$build/01_data_parallel ")"
for ((tenths = 0; tenths < 300; ++tenths)); do
    kill -0 $job 2>/dev/null || break
    sleep 0.1
done
echo -n "after $((tenths / 10)).$((tenths % 10)) s: "
if kill -0 $job 2>/dev/null; then
    echo "the job still runs (killed now)"
    pkill -9 -f "^$build/01_data_parallel "
fi
wait $job
echo "exit code $?"
tr "\r\033" "\n\n" <"$output" | grep -E "died|rror|NCCL" | head -5
