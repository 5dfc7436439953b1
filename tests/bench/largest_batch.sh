#!/usr/bin/env bash
# The largest micro-batch that 03_tensor_parallel can train with: by formula, and in a real run (in
# which memory also holds the GPU's context, workspaces and space that the allocator cannot use).
# Prints one line per way.
# Usage: tests/bench/largest_batch.sh BUILD "MPIRUN FLAGS" TP...
# MODEL are the options of the training; on a laptop: MODEL="--model nano --device-memory 0.1
# --peak-tflops 1"
set -u
cd "$(dirname "$0")/../.."
build=$1 mpirun=$2
shift 2
model=${MODEL---model llama-3-8b --layers 16 --seq 4096 --dtype bf16 --fp32-grads}

train() {  # tp options...
    local tp=$1
    shift
    $mpirun -n "$tp" "$build/03_tensor_parallel" --tp "$tp" $model --data common/text.txt \
        --no-verify --report full "$@" 2>&1
}

for tp; do
    for way in "" --sequence-parallel "--sequence-parallel --recompute full"; do
        if [ "$tp" = 1 ] && [[ $way == --sequence-parallel* ]]; then continue; fi
        formula=$(train "$tp" --micro-batch 1 --steps 1 $way |
            sed -n 's/^  the largest micro-batch.*: //p')
        run=
        for ((batch = ${formula:-0}; batch > 0; --batch)); do
            if run=$(train "$tp" --micro-batch "$batch" --steps 4 $way); then break; fi
        done
        name="tp $tp ${way:+$way }micro-batch: formula ${formula:-?}, runs $batch"
        awk -v name="$name" -f tests/bench/training_line.awk <<<"$run"
    done
done
