#!/usr/bin/env bash
# A small model, which launches bound: SmolLM-135M with 1, 8 and 32 x 2048 tokens a step, without
# and with --cuda-graph in turn, then its most expensive operations, and PyTorch compiled, without
# and with CUDA graphs. LAUNCHES.md in 00_single_gpu predicts what this measures.
# Usage: tests/bench/small_model.sh BUILD [ROUNDS]
set -eu
cd "$(dirname "$0")/../.."
build=$1 rounds=${2:-3} python=${PYTHON:-python3}

train() { # SEQUENCES [OPTION...]
    "$build/00_single_gpu" --model smollm-135m --micro-batch "$1" --seq 2048 --dtype bf16 \
        --fp32-grads --data common/text.txt --steps 40 --log-every 40 --no-verify "${@:2}"
}
for sequences in 1 8 32; do
    echo "== $sequences x 2048 tokens"
    for _ in $(seq "$rounds"); do
        for option in "" --cuda-graph; do
            echo "${option:-as usual}"
            train $sequences $option | grep -E "tokens/s .*MFU|median step|CUDA graphs|at the peak"
        done
    done
    train $sequences --profile | sed -n '/most expensive/,$p'
    if "$python" -c 'import torch' 2>/dev/null; then
        for mode in default reduce-overhead; do
            "$python" tests/bench/torch_llama.py --device cuda --model smollm-135m \
                --batch $sequences --seq 2048 --steps 20 --compile $mode
        done
    fi
done
