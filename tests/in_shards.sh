#!/usr/bin/env bash
# Shares out a GoogleTest program's tests over N processes at once. Usage: tests/in_shards.sh N PROGRAM ARGUMENTS...
# Prints their outputs at the end, also where it is stopped before (timeout): what has run, and where each process was.
set -u
export GTEST_TOTAL_SHARDS=$1
shift
logs=$(mktemp -d)
pids=() status=0
finish() {
    trap - EXIT TERM INT
    kill "${pids[@]}" 2>/dev/null
    cat "$logs"/*
    rm -rf "$logs"
    exit "$1"
}
trap 'finish 143' TERM INT
for ((shard = 0; shard < GTEST_TOTAL_SHARDS; ++shard)); do
    GTEST_SHARD_INDEX=$shard "$@" >"$logs/$shard" 2>&1 &
    pids+=($!)
done
for pid in "${pids[@]}"; do wait "$pid" || status=$?; done
finish $status
