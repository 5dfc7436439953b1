#!/usr/bin/env bash
# `make demo`: runs each chapter's techniques on real text and prints one row per run.
# Usage: tests/demo.sh BUILD "MPIRUN FLAGS"
# The figures come from the summaries that --json writes. A run whose result differs from one
# device's stops the demo.
set -euo pipefail
build=$1 mpirun=$2
json=$(mktemp)
log=$(mktemp)
trap 'rm -f "$json" "$log"' EXIT
export OMP_WAIT_POLICY=passive

mib() { awk "BEGIN { printf \"%.1f\", $1 / 1048576 }"; }

# row RANKS CHAPTER TECHNIQUE OPTIONS...
row() {
    local ranks=$1 chapter=$2 technique=$3 summary equal predicted measured bytes rate
    shift 3
    if ! $mpirun -n "$ranks" "$build/$chapter" --steps 4 --lr 3e-3 --json "$json" "$@" \
        >"$log" 2>&1; then
        cat "$log"
        echo "$chapter $* failed"
        exit 1
    fi
    summary=$(tail -1 "$json")
    equal=$(sed -nE 's/.*"result":"([a-z]+)".*/\1/p' <<<"$summary")
    # The totals come before the values of each rank and each group, which have the same names.
    local memory=${summary%%\"memory_by_rank\"*}
    local communication=${summary%%\"communication_by_group\"*}
    predicted=$(sed -nE 's/.*"peak":\{"predicted":([0-9]+),.*/\1/p' <<<"$memory")
    measured=$(sed -nE 's/.*"peak":\{"predicted":[0-9]+,"measured":([0-9]+)\}.*/\1/p' <<<"$memory")
    bytes=$({ grep -oE '"sent_bytes":[0-9.e+]+' <<<"$communication" || true; } |
        awk -F: '{ sum += $2 } END { printf "%d", sum }')
    rate=$(sed -nE 's/.*"speed":\{"tokens_per_second":([0-9]+).*/\1/p' <<<"$summary")
    printf '%-19s %-27s %5d  %-8s %8s / %-7s %8s %8d\n' "$chapter" "$technique" "$ranks" "$equal" \
        "$(mib "$predicted")" "$(mib "$measured")" "$(mib "$bytes")" "$rate"
}

# The columns take at most 100 characters.
format='%-19s %-27s %5s  %-8s %18s %8s %8s\n'
printf "$format" chapter technique ranks "equal to" "MiB per rank" "MiB sent" tokens/s
printf "$format" "" "" "" "1 device" "predicted/measured" "per step" "in all"
row 1 00_single_gpu "one device"
row 1 00_single_gpu "  recomputation" --recompute full
row 4 01_data_parallel "all-reduce after backward" --sync naive --micro-batch 2
row 4 01_data_parallel "  during backward" --sync overlap --micro-batch 2
row 4 01_data_parallel "  in buckets of 1 MiB" --sync bucket --bucket-mb 1 --micro-batch 2
row 4 01_data_parallel "  our own ring" --sync ring --micro-batch 2
row 4 01_data_parallel "  our own double tree" --sync tree --micro-batch 2
row 4 02_zero "stage 0: nothing sharded" --stage 0 --micro-batch 2
row 4 02_zero "stage 1: optimizer states" --stage 1 --micro-batch 2
row 4 02_zero "stage 2: gradients too" --stage 2 --micro-batch 2
row 4 02_zero "stage 3: parameters too" --stage 3 --micro-batch 2
row 4 02_zero "  shards on 2 ranks each" --stage 3 --shard-size 2 --micro-batch 2
row 4 03_tensor_parallel "a layer on 4 ranks"
row 4 03_tensor_parallel "  norms on 1/4 of tokens" --sequence-parallel
row 4 03_tensor_parallel "  GEMMs in 2 chunks" --sequence-parallel --overlap chunk
row 4 03_tensor_parallel "  2 x 2 ranks" --tp 2 --sequence-parallel --overlap async --micro-batch 4
row 4 04_context_parallel "a ring, zig-zag"
row 4 04_context_parallel "  tails the other way" --bidirectional on
row 4 04_context_parallel "all keys gathered" --variant all-gather
row 4 04_context_parallel "heads for tokens (Ulysses)" --variant ulysses
row 4 05_pipeline "1F1B" --micro-batch 1 --grad-accum 8
row 4 05_pipeline "  2 stages a rank" --schedule interleaved --micro-batch 1 --grad-accum 8
row 4 05_pipeline "zero bubble, a V" --schedule zbv --micro-batch 1 --grad-accum 8
row 4 05_pipeline "  H2, without a barrier" --schedule zb-h2 --post-validation --micro-batch 1 \
    --grad-accum 8
row 4 05_pipeline "DualPipe" --schedule dualpipe --micro-batch 1 --grad-accum 8
row 4 06_expert_parallel "8 experts on 4 ranks" --micro-batch 2
row 4 06_expert_parallel "  one copy a rank" --micro-batch 2 --dispatch rank
row 1 08_mixed_precision "fp16, a loss scale" --recipe fp16 --micro-batch 4
row 2 08_mixed_precision "fp8, delayed scales" --recipe te --micro-batch 2
row 2 08_mixed_precision "  DeepSeek's tiles" --recipe deepseek --keep-fp8 --micro-batch 2
row 2 08_mixed_precision "  10 bytes a parameter" --recipe nanotron --micro-batch 2
row 8 09_5d_parallel "dp 2 x cp 2 x tp 2, ZeRO-3" --tp 2 --sequence-parallel --cp 2 --zero 3 \
    --micro-batch 1
row 8 09_5d_parallel "pp 2 x cp 2 x tp 2, a V" --tp 2 --cp 2 --pp 2 --schedule zbv \
    --micro-batch 1 --grad-accum 4
row 8 09_5d_parallel "pp 2 x ep 2 x tp 2, experts" --model nano-moe --tp 2 --sequence-parallel \
    --ep 2 --pp 2 --zero 1 --micro-batch 1 --grad-accum 4

# family NUMBER TITLE: a chapter without a training step
family() {
    if ! "$build/07_kernels" --check --family "$1" >"$log" 2>&1; then
        cat "$log"
        echo "07_kernels --family $1 failed"
        exit 1
    fi
    printf '%-19s %-27s %5d  %-8s %s\n' 07_kernels "$2" 1 ok \
        "$(grep -oE '[0-9]+ comparisons with float64' "$log")"
}
family 1 "vector add, ELU, SwiGLU"
family 2 "transpose, sum, branches"
family 3 "matrix product"
family 4 "softmax, RMSNorm, loss"
family 5 "attention"
