#!/usr/bin/env bash
# One global batch by different layouts of 09_5d_parallel on GPUs: Llama-3-8B whole, 8 sequences of
# 4096 tokens, in bf16 and with the linears' products in fp8. Prints a line for each run, and goes
# on where one fails.
# Usage: tests/bench/five_d.sh BUILD "MPIRUN FLAGS" RANKS    (2, 4 or 8)
#        e.g. build/cuda "$(make -s mpirun)" 2
# MODEL: the model's options; SEQ, BATCH: tokens of a sequence, sequences of a step; STEPS: steps of
# a run, of which the median is printed. On a laptop:
#        MODEL="--model nano" SEQ=128 STEPS=4 tests/bench/five_d.sh build/cpu "$(make -s mpirun)" 2
set -u
cd "$(dirname "$0")/../.."
build=$1 mpirun=$2 ranks=$3
model=${MODEL---model llama-3-8b}
seq=${SEQ:-4096} batch=${BATCH:-8} steps=${STEPS:-8}
export OMP_WAIT_POLICY=passive

row() {  # micro-batches of a rank in a step, options...
    local accumulated=$1
    shift
    $mpirun -n "$ranks" "$build/09_5d_parallel" $model --seq "$seq" --micro-batch 1 \
        --grad-accum "$accumulated" --data common/text.txt --steps "$steps" --no-verify \
        --report full "$@" 2>&1 |
        awk -v name="$*" -f tests/bench/training_line.awk
}

for recipe in bf16-fp32 tensor; do
    echo "== $ranks ranks, --recipe $recipe"
    for layout in "--zero 3" "--zero 3 --keep-gathered on"; do
        row $((batch / ranks)) $layout --recipe $recipe
    done
    row "$batch" --tp "$ranks" --sequence-parallel --tp-overlap async --recipe $recipe
    row "$batch" --cp "$ranks" --zero 3 --recipe $recipe
    row "$batch" --pp "$ranks" --schedule 1f1b --recipe $recipe
    # Takes backward apart, which the recipes in fp8 do not know.
    [ $recipe = tensor ] || row "$batch" --pp "$ranks" --schedule zbv --recipe $recipe
    [ "$ranks" -lt 4 ] ||
        row $((batch * 2 / ranks)) --pp 2 --zero 1 --recipe $recipe
done
