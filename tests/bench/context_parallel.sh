#!/usr/bin/env bash
# Context parallelism on GPUs, compared with PyTorch's: attention alone with each variant, training
# on long sequences (a Llama-3-8B of 8 layers in bf16), and the longest sequence that fits for all
# of Llama-3-8B. Prints one line per run.
# Usage: [PYTHON=python3] tests/bench/context_parallel.sh BUILD "MPIRUN FLAGS" CP...
#        e.g. build/cuda "$(make -s mpirun)" 1 2 4 8
# PARTS: attention, training, variants (the training with each of them), longest; default: all
# SEQ, MODEL, STEPS are for the training; on a laptop: PARTS=training SEQ=256 MODEL="--model nano"
set -eu
cd "$(dirname "$0")/../.."
build=$1 mpirun=$2 python=${PYTHON:-python3}
shift 2
parts=${PARTS:-attention training variants longest} seq=${SEQ:-131072} steps=${STEPS:-6}
model=${MODEL---model llama-3-8b --layers 8 --dtype bf16 --fp32-grads --loss-chunk 8192}
# The text is longer than a sequence.
data=$build/long_text.txt
for _ in $(seq 40); do cat common/text.txt; done >"$data"

wants() { [[ " $parts " == *" $1 "* ]]; }
train() {  # cp tokens steps options...
    local cp=$1 tokens=$2 steps=$3
    shift 3
    $mpirun -n "$cp" "$build/04_context_parallel" --seq "$tokens" --micro-batch 1 --data "$data" \
        --steps "$steps" --no-verify --recompute full "$@" 2>&1 |
        awk -v name="cp $cp, $tokens tokens ${*:-}" -f tests/bench/training_line.awk
}
# The longest sequence for Llama-3-8B on this device, by formula. A fourth of the tokens is left out
# to make room for the operations' workspace, the CUDA context and fragmentation.
whole="--model llama-3-8b --dtype bf16 --loss-chunk 1024"
longest() {  # cp
    $mpirun -n "$1" "$build/04_context_parallel" $whole --recompute full --seq 4096 \
        --micro-batch 1 --estimate |
        awk -v cp="$1" '$1 == "--cp" && $2 == cp && $4 > 0 { print int($4 * 0.75 / 256) * 256 }'
}

for cp; do
    if wants attention; then
        echo "== cp $cp: attention alone"
        $mpirun -n "$cp" "$build/context_bench"
        [ "$cp" = 1 ] || COPY_ENGINES_OFF=1 $mpirun -n "$cp" "$build/context_bench" 16384 65536
        if "$python" -c 'import torch; assert torch.cuda.is_available()' 2>/dev/null; then
            OMP_NUM_THREADS=8 "$python" -m torch.distributed.run --nproc_per_node "$cp" \
                --master_port $((29500 + cp)) tests/peers/torch_context_parallel.py 2>&1 |
                grep -vE "Warning|warn" || true
        fi
    fi
    if wants training; then
        echo "== cp $cp: training on the same sequence"
        train "$cp" "$seq" "$steps" $model
    fi
    if wants variants && [ "$cp" != 1 ]; then
        for how in "--ring-backward restarted" "--bidirectional on" "--variant all-gather" \
            "--variant all-gather --copy-engines off" "--variant ulysses"; do
            train "$cp" "$seq" "$steps" $model $how
        done
    fi
    if wants longest; then
        echo "== cp $cp: the longest sequence of Llama-3-8B"
        train "$cp" "$(longest "$cp")" 2 $whole
    fi
done
