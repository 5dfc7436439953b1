#!/usr/bin/env bash
# `make pictures`: draws the READMEs' pictures; each chapter's program makes its own from a run.
# Usage: tests/pictures.sh BUILD "MPIRUN FLAGS"
set -euo pipefail
build=$1 mpirun=$2
log=$(mktemp)
trap 'rm -f "$log"' EXIT
export OMP_WAIT_POLICY=passive

# draw RANKS CHAPTER OPTIONS...
draw() {
    local ranks=$1 chapter=$2
    shift 2
    if ! $mpirun -n "$ranks" "$build/$chapter" --svg "$chapter/pictures" "$@" >"$log" 2>&1; then
        cat "$log"
        echo "$chapter $* failed"
        exit 1
    fi
    sed -n 's/^picture written to //p' "$log"
}

draw 1 00_single_gpu --steps 4
export OMP_NUM_THREADS=1  # several ranks share the cores
# One rank per node, and a slow network between nodes, so that there is something to hide.
draw 2 01_data_parallel --compare --bucket-mb 1 --node-size 1 --inter-gbps 1
draw 4 01_data_parallel --demo collectives
draw 8 01_data_parallel --demo bandwidth --largest-mib 1 --node-size 2 --inter-gbps 0.2
draw 4 02_zero --compare --steps 3
draw 4 03_tensor_parallel --tp 4 --sequence-parallel --steps 1
draw 1 04_context_parallel --demo balance
draw 4 05_pipeline --micro-batch 1 --grad-accum 8 --steps 4 --seq 32 --pretend F=40,B=40,W=40,hop=2
mv -v 05_pipeline/pictures/schedule.svg 05_pipeline/pictures/1f1b.svg
draw 2 06_expert_parallel --steps 100 --micro-batch 2 --aux-coef 0
draw 1 08_mixed_precision --demo formats
draw 1 08_mixed_precision --recipe fp32 --steps 1 --no-verify
draw 1 08_mixed_precision --compare --steps 300 --layers 2 --micro-batch 1 --lr 3e-3
draw 4 09_5d_parallel --compare --steps 6 --micro-batch 1 --grad-accum 2
draw 1 09_5d_parallel --playbook
draw 1 09_5d_parallel --rehearse 0/32 --model nano-moe --tp 2 --sequence-parallel --cp 2 --ep 2 \
    --pp 2 --dp 2 --zero 1 --micro-batch 1 --grad-accum 2 --steps 1
# This picture shows something that can only be seen without a GPU.
case $build in *cuda*) ;; *) draw 1 07_kernels --check --kernel product_warp_tiles ;; esac
