#!/usr/bin/env bash
# Is a change slower? Builds another revision, and runs the same training alternately with that
# revision and with this tree.
#   tests/bench/against.sh REVISION BACKEND RANKS CHAPTER [OPTIONS...]
#   tests/bench/against.sh HEAD~5 cuda 2 02_zero --stage 3 --model llama-3-8b --dtype bf16 \
#       --micro-batch 1 --steps 8
# ROUNDS=3: the number of runs of each. DIR: the folder in which the other revision is built (and
# kept, so that a second call is quick).
set -euo pipefail
cd "$(dirname "$0")/../.."
revision=$1 backend=$2 ranks=$3 chapter=$4
shift 4
commit=$(git rev-parse --short "$revision")
other=${DIR:-/tmp/ultrascale-against}/$commit
if [ ! -d "$other" ]; then
    mkdir -p "$other"
    git archive "$commit" | tar x -C "$other"
    [ ! -d .deps ] || cp -a .deps "$other"
fi
cores=$(env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc)  # nproc obeys these
for tree in "$other" .; do
    make -s -C "$tree" -j"$cores" BACKEND="$backend" "$chapter" >/dev/null
done
mpirun=$(make -s BACKEND="$backend" mpirun)

# Tokens per second of one run, over all ranks.
rate() {
    local json
    json=$(mktemp)
    $mpirun -n "$ranks" "$1/build/$backend/$chapter" "${@:2}" --no-verify --json "$json" >/dev/null
    tail -1 "$json" | sed -nE 's/.*"speed":\{[^}]*"tokens_per_second":([0-9.]+).*/\1/p'
    rm -f "$json"
}
median() { sort -g | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'; }

before=() now=()
for ((round = 0; round < ${ROUNDS:-3}; ++round)); do
    before+=("$(rate "$other" "$@")")
    now+=("$(rate . "$@")")
done
printf '%s: %s\nhere: %s\n' "$commit" "${before[*]}" "${now[*]}"
awk -v a="$(printf '%s\n' "${before[@]}" | median)" -v b="$(printf '%s\n' "${now[@]}" | median)" \
    'BEGIN { printf "medians %d and %d tokens/s: %.3f times as fast\n", a, b, b / a }'
