#!/usr/bin/env bash
# What hides the rows on their way to experts, on GPUs: a model of 8 layers with 64 experts in bf16,
# 4 x 4096 tokens a micro-batch. A step of 12 micro-batches less one of 4, divided by 8, is a
# micro-batch's forward and backward without update and sums. Prints one line per run.
# Usage: tests/bench/experts_overlap.sh BUILD "MPIRUN FLAGS" RANKS...
#        e.g. build/cuda "$(make -s mpirun)" 1 2 4
set -eu
cd "$(dirname "$0")/../.."
build=$1 mpirun=$2
shift 2
model=$(mktemp -d)
trap 'rm -r "$model"' EXIT
cat >"$model/config.json" <<'END'
{"model_type": "mixtral", "hidden_size": 2048, "intermediate_size": 1408, "num_local_experts": 64,
 "num_experts_per_tok": 6, "num_hidden_layers": 8, "num_attention_heads": 16,
 "num_key_value_heads": 16, "vocab_size": 32000, "rms_norm_eps": 1e-5,
 "tie_word_embeddings": false}
END

step() {  # ranks micro-batches program options...
    $mpirun -n "$1" "$build/$3" --model "$model" --dtype bf16 --fp32-grads --seq 4096 \
        --micro-batch 4 --grad-accum "$2" --steps 6 --aux-coef 0 --force-balance \
        --data common/text.txt --no-verify "${@:4}" 2>&1 |
        grep -oE 'median step [0-9.]+|^error.*' | grep -oE '[0-9.]+$|^error.*'
}
row() {  # ranks program options...
    local few many
    few=$(step "$1" 4 "${@:2}") many=$(step "$1" 12 "${@:2}")
    awk -v name="${*:3}" -v few="$few" -v many="$many" 'BEGIN {
        printf "  %-55s %8.1f %8.1f ms; a micro-batch %.1f\n", name, few, many, (many - few) / 8
    }'
}

for ranks; do
    echo "== $ranks ranks"
    if [ "$ranks" = 1 ]; then
        row 1 06_expert_parallel
        continue
    fi
    for overlap in none gradients batches; do
        row "$ranks" 06_expert_parallel --dispatch rank --overlap $overlap
    done
    for overlap in none chunks batches; do
        row "$ranks" 06_expert_parallel --dispatch expert --overlap $overlap
    done
    # In a pipeline of two: without experts that travel, and as they travel.
    ep=$((ranks / 2))
    row "$ranks" 09_5d_parallel --pp 2 --ep $ep --dispatch rank
    [ $ep = 1 ] && continue
    for schedule in 1f1b-overlap dualpipe dualpipev; do
        row "$ranks" 09_5d_parallel --pp 2 --ep $ep --dispatch rank --ep-overlap batches \
            --schedule $schedule
    done
done
