#!/usr/bin/env bash
# Runs a GoogleTest program's tests N at a time, each in a process of its own: whoever is done takes the next one, so that a few long tests
# do not wait for each other. Usage: tests/in_parallel.sh N PROGRAM ARGUMENTS...
# Prints their outputs at the end, also where it is stopped before (timeout): what has run, and where each process was.
set -u
count=$1
shift
logs=$(mktemp -d)
set -m  # the processes are a group, which can be ended as one
finish() {
    trap - TERM INT
    kill -- -"$pool" 2>/dev/null
    cat "$logs"/*
    rm -rf "$logs"
    exit "$1"
}
trap 'finish 143' TERM INT
names=$("$@" --gtest_list_tests | awk '/^[^ ]/ { suite = $1 } /^ / { print suite $1 }')
xargs -P "$count" -I{} bash -c 'log=$1/${2//\//-} name=$2; shift 2; "$@" --gtest_filter="$name" >"$log" 2>&1' _ "$logs" {} "$@" <<<"$names" &
pool=$!
wait "$pool"
finish $?
