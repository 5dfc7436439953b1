#!/usr/bin/env bash
# Runs a GoogleTest program's tests N at a time, each in its own process. The next test starts as
# soon as one has finished, so that long tests do not delay the others. Prints their outputs at the
# end, even if it is stopped early (timeout): they show which tests have run, and how far each
# process came.
# Usage: tests/in_parallel.sh N PROGRAM ARGUMENTS...
set -u
count=$1
shift
logs=$(mktemp -d)
set -m  # makes the processes a group, which can be killed as a whole
finish() {
    trap - TERM INT
    kill -- -"$pool" 2>/dev/null
    cat "$logs"/*
    rm -rf "$logs"
    exit "$1"
}
trap 'finish 143' TERM INT
names=$("$@" --gtest_list_tests | awk '/^[^ ]/ { suite = $1 } /^ / { print suite $1 }')
xargs -P "$count" -I{} bash -c '
    log=$1/${2//\//-} name=$2
    shift 2
    "$@" --gtest_filter="$name" >"$log" 2>&1' _ "$logs" {} "$@" <<<"$names" &
pool=$!
wait "$pool"
finish $?
