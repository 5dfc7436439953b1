#!/usr/bin/env bash
# Compares 03_tensor_parallel with PyTorch's tensor parallelism on GPUs: a Llama-3-8B of 16 layers
# in bf16, 4096 tokens per step; and the ways to hide communication with 8192 tokens, because a
# micro-batch of one sequence has no halves. Prints one line per run.
# Usage: [PYTHON=python3] tests/bench/tensor_parallel.sh BUILD "MPIRUN FLAGS" TP...
#        e.g. build/cuda "$(make -s mpirun)" 1 2 4 8
set -u
cd "$(dirname "$0")/../.."
build=$1 mpirun=$2 python=${PYTHON:-python3}
shift 2

sequences=1  # of a micro-batch
ours() {     # tp options...
    local tp=$1 name
    shift
    name="tp $tp ${*:-}"
    $mpirun -n "$tp" "$build/03_tensor_parallel" --tp "$tp" --model llama-3-8b --layers 16 \
        --seq 4096 --micro-batch $sequences --dtype bf16 --fp32-grads --data common/text.txt \
        --steps 12 --no-verify "$@" 2>&1 |
        awk -v name="$name" -f tests/bench/training_line.awk
}

theirs() {  # tp options...
    local tp=$1
    shift
    OMP_NUM_THREADS=8 "$python" -m torch.distributed.run --nproc_per_node "$tp" \
        --master_port $((29500 + tp)) tests/peers/torch_tensor_parallel.py --model llama-3-8b \
        --layers 16 "$@" 2>&1 |
        grep -E "^PyTorch|Error" | tail -1
}

for tp; do
    echo "== tp $tp"
    if [ "$tp" = 1 ]; then
        ours 1
    else
        for overlap in none async chunk; do ours "$tp" --overlap $overlap; done
        for overlap in none async chunk; do
            ours "$tp" --sequence-parallel --overlap $overlap
        done
        # This run uses only NCCL's kernels.
        ours "$tp" --sequence-parallel --overlap async --copy-engines off
    fi
    theirs "$tp"
    if [ "$tp" != 1 ]; then
        theirs "$tp" --sequence-parallel
        theirs "$tp" --sequence-parallel --async-tp
        echo "== tp $tp, a micro-batch of 2 sequences"
        sequences=2
        for stream in "" --sequence-parallel; do
            for overlap in none async chunk halves; do
                ours "$tp" $stream --overlap $overlap
            done
        done
        ours "$tp" --sequence-parallel --overlap halves --copy-engines off
        sequences=1
    fi
done
