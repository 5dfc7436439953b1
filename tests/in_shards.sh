#!/usr/bin/env bash
# Shares out a GoogleTest program's tests over N processes at once. Usage: tests/in_shards.sh N PROGRAM ARGUMENTS...
set -u
export GTEST_TOTAL_SHARDS=$1
shift
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
pids=() status=0
for ((shard = 0; shard < GTEST_TOTAL_SHARDS; ++shard)); do
    GTEST_SHARD_INDEX=$shard "$@" >"$logs/$shard" 2>&1 &
    pids+=($!)
done
for pid in "${pids[@]}"; do wait "$pid" || status=$?; done
cat "$logs"/*
exit $status
