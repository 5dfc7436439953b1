#!/usr/bin/env bash
# Context parallelism on GPUs, beside PyTorch's: attention alone with each variant, and training on
# long sequences (a Llama-3-8B of 8 layers in bf16). Prints one line a run.
# Usage: [PYTHON=python3] tests/bench/context_parallel.sh BUILD "MPIRUN FLAGS" CP...
#        e.g. build/cuda "$(make -s mpirun)" 1 2 4 8
# SEQ, MODEL: the training's length and options; on a laptop: SEQ=256 MODEL="--model nano"
set -eu
cd "$(dirname "$0")/../.."
build=$1 mpirun=$2 python=${PYTHON:-python3}
shift 2
seq=${SEQ:-131072}
model=${MODEL---model llama-3-8b --layers 8 --dtype bf16 --fp32-grads --loss-chunk 8192}
# A text that is longer than a sequence.
data=$build/long_text.txt
for _ in $(seq 40); do cat common/text.txt; done >"$data"

train() {  # cp tokens options...
    local cp=$1 tokens=$2
    shift 2
    $mpirun -n "$cp" "$build/04_context_parallel" $model --seq "$tokens" --micro-batch 1 \
        --data "$data" --steps 6 --no-verify "$@" 2>&1 |
        awk -v name="cp $cp, $tokens tokens ${*:-}" -f tests/bench/training_line.awk
}

for cp; do
    echo "== cp $cp: attention alone"
    $mpirun -n "$cp" "$build/context_bench"
    [ "$cp" = 1 ] || COPY_ENGINES_OFF=1 $mpirun -n "$cp" "$build/context_bench"
    if "$python" -c 'import torch; assert torch.cuda.is_available()' 2>/dev/null; then
        OMP_NUM_THREADS=8 "$python" -m torch.distributed.run --nproc_per_node "$cp" \
            --master_port $((29500 + cp)) tests/peers/torch_context_parallel.py 2>&1 |
            grep -vE "Warning|warn" || true
    fi
    echo "== cp $cp: training"
    # The same tokens a rank as one device, and the same sequence.
    train "$cp" $((seq * cp)) --recompute full
    if [ "$cp" = 1 ]; then continue; fi
    for how in "--layout zigzag" "--ring-backward again" "--tails on" "--variant all-gather" \
        "--variant all-gather --copy-engines off" "--variant ulysses"; do
        train "$cp" "$seq" --recompute full $how
    done
done
