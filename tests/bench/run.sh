#!/usr/bin/env bash
# `make bench`: benchmarks of operations and collectives, then of training compared with PyTorch.
# Usage: tests/bench/run.sh cpu|cuda BUILD "MPIRUN FLAGS"
set -eu
cd "$(dirname "$0")/../.."
backend=$1 build=$2 mpirun=$3 threads=${OMP_NUM_THREADS:-$(nproc)}
python=${PYTHON:-python3}

torch() {
    if "$python" -c 'import torch' 2>/dev/null; then
        "$python" tests/bench/torch_llama.py "$@"
    else
        echo "  (no PyTorch for $python: set PYTHON)"
    fi
}

# train MODEL LAYERS SEQUENCES TOKENS: ours, then PyTorch compiled
train() {
    echo "== $1, ${2/#0/all} layers, $3 x $4 tokens, bf16 with fp32 master weights and gradients"
    "$build/00_single_gpu" --model "$1" $([ "$2" = 0 ] || echo --layers "$2") --micro-batch "$3" \
        --seq "$4" --dtype bf16 --fp32-grads --data common/text.txt --steps 16 --no-verify |
        grep -E "tokens/s .*MFU|at the peak|activations, peak"
    torch --device cuda --model "$1" --layers "$2" --batch "$3" --seq "$4" --steps 12 --compile
}

echo "== operations"
"$build/kernel_bench"
"$build/experts_bench"
"$build/precision_bench"
"$build/attention_bench"
if [ "$backend" = cuda ]; then
    if "$python" -c 'import torch' 2>/dev/null; then "$python" tests/peers/torch_attention.py; fi
    echo "== 07_kernels, and PyTorch on the same problems"
    "$build/07_kernels" --json "$build/kernels.jsonl"
    if "$python" -c 'import torch' 2>/dev/null; then
        "$python" tests/peers/torch_kernels.py "$build/kernels.jsonl"
    fi
    train smollm-1.7b 0 8 2048
    train llama-3.2-1b 0 4 2048
    train llama-3-8b 8 2 4096
    exit
fi

echo "== collectives, 8 ranks"
$mpirun -n 8 "$build/comm_bench"
echo "== preset small, 8 x 256 tokens, fp32, $threads threads: ours and PyTorch in turn"
for round in 1 2 3; do
    "$build/00_single_gpu" --model small --steps 12 --no-verify | grep "tokens/s .*MFU"
    torch --threads "$threads"
done
