#!/usr/bin/env bash
# The planner of 09_5d_parallel beside two GPUs. First one global batch of Llama-3-8B by ZeRO-3, tp,
# pp and cp, in bf16 and with products in fp8: the GPUs are calibrated, and the table at the end has
# the planner's order, times and memory beside the measured ones. Then one rank of Llama-3-405B, at
# tp 8, cp 2, pp 16, is rehearsed on one GPU, which holds the 8 of 126 layers that this rank has:
# its memory, predicted beside measured. A run that fails leaves its line; the others go on.
# Usage: tests/bench/planner_gpu.sh BUILD "MPIRUN FLAGS" [RESULTS]
#        e.g. build/cuda "$(make -s mpirun)" planner_results
# RESULTS: a folder that keeps a JSON object a run; if it has some already, only the others are run.
# MODEL, SEQ, BATCH: the model's options, tokens of a sequence, sequences of a step; STEPS of a run,
# of which the median without the first two counts; ROUNDS: calibrations, and runs of each layout.
# RANK, LARGE: what is rehearsed, and its other options. On a laptop:
#        MODEL="--model nano" SEQ=128 STEPS=4 RANK=17/6144 LARGE="--model nano --seq 128 --pp 8" \
#        tests/bench/planner_gpu.sh build/cpu "$(make -s mpirun)"
set -u
cd "$(dirname "$0")/../.." || exit
build=$1 mpirun=$2 results=${3:-}
model=${MODEL---model llama-3-8b}
seq=${SEQ:-4096} batch=${BATCH:-8} steps=${STEPS:-8} rounds=${ROUNDS:-1}
rank=${RANK:-17/6144}
large=${LARGE---model llama-3-405b --seq 8192 --pp 16}
export OMP_WAIT_POLICY=passive
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
results=${results:-$work}
mkdir -p "$results"
failed=0

shared="$model --seq $seq --micro-batch 1 --data common/text.txt --steps $steps --no-verify"
for recipe in bf16-fp32 tensor; do
    {
        echo "2 $shared --recipe $recipe --grad-accum $((batch / 2)) --zero 3"
        echo "2 $shared --recipe $recipe --grad-accum $batch --tp 2 --sequence-parallel"
        echo "2 $shared --recipe $recipe --grad-accum $batch --cp 2 --zero 3"
        echo "2 $shared --recipe $recipe --grad-accum $batch --pp 2"
    } >"$work/layouts"
    echo "== $model, $batch sequences of $seq tokens on 2 ranks, --recipe $recipe"
    tests/bench/sweep.py "$work/layouts" "$results/$recipe.jsonl" --mpirun "$mpirun" \
        --program "$build/09_5d_parallel" --limit 300 --rounds "$rounds" --predict || failed=1
done

echo "== rank $rank of $large, rehearsed"
# shellcheck disable=SC2086
timeout 300 $mpirun -n 1 "$build/09_5d_parallel" --rehearse "$rank" $large --tp 8 \
    --sequence-parallel --cp 2 --zero 1 --micro-batch 1 --grad-accum 16 --recipe bf16-fp32 \
    --steps 3 --report full >"$work/log" 2>&1 || failed=1
sed -n "/^memory/,/^$/p" "$work/log" | grep . || grep -m1 error "$work/log" || tail -3 "$work/log"
exit $failed
