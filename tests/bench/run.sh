#!/usr/bin/env bash
# `make bench`: collectives at 8 ranks, then a training step beside PyTorch. Usage: tests/bench/run.sh BUILD "MPIRUN FLAGS"
set -eu
cd "$(dirname "$0")/../.."
build=$1 mpirun=$2 threads=${OMP_NUM_THREADS:-$(nproc)}
python=${PYTHON:-python3}

echo "== collectives, 8 ranks"
$mpirun -n 8 "$build/comm_bench"

echo
echo "== preset small, 8 x 256 tokens, fp32, $threads threads: ours and PyTorch in turn"
for round in 1 2 3; do
    "$build/00_single_gpu" --model small --steps 12 --no-verify | grep "tokens/s .*MFU"
    if "$python" -c 'import torch' 2>/dev/null; then
        "$python" tests/bench/torch_llama.py --threads "$threads"
    else
        echo "  (no PyTorch for $python: set PYTHON)"
    fi
done
