#!/usr/bin/env bash
# What each recipe of 08_mixed_precision costs in loss: trains with several seeds, which also
# shuffle the text, and prints the mean loss of the last 100 steps and how far it is from that of
# bf16-fp32 with the same seed: mean and standard deviation over the seeds. RECIPES: others than all
# of them, one a line; bf16-fp32 comes first.
# Usage: tests/bench/precision_curves.sh BUILD STEPS SEEDS [OPTIONS OF EVERY RUN...]
#        e.g. build/cpu 1000 5 --layers 2 --micro-batch 1 --lr 3e-3 --lr-schedule cosine
set -euo pipefail
cd "$(dirname "$0")/../.."
build=$1 steps=$2 seeds=$3
shift 3
json=$(mktemp)
log=$(mktemp)
trap 'rm -f "$json" "$log"' EXIT

# last SEED RECIPE...: the mean loss of the last 100 steps
last() {
    local seed=$1
    shift
    "$build/08_mixed_precision" --steps "$steps" --seed "$seed" --shuffle --no-verify \
        --log-every 1000000 --peak-tflops 1 --json "$json" --recipe "$@" >"$log" 2>&1 ||
        { cat "$log" >&2; exit 1; }
    grep '"step":' "$json" | tail -100 | sed -E 's/.*"loss":([^,]+),.*/\1/' |
        awk '{ sum += $1 } END { print sum / NR }'
}

recipes=${RECIPES:-bf16-fp32
fp32
fp16
fp16 --without accumulation
fp16 --without master
fp16 --without scaling
fp16 --without master,scaling,accumulation
bf16
bf16 --without master
bf16 --without master --stochastic-rounding
te
tensor
tensor --gradient-format e4m3
row
deepseek
fp8-lm
nanotron
mxfp8
mxfp8 --without up
nvfp4
nvfp4 --without hadamard
nvfp4 --without stochastic
nvfp4 --without square
nvfp4 --without last-layers
nvfp4 --without hadamard,stochastic,square,last-layers}

plain=()
printf '%-52s %8s %10s %9s\n' recipe loss difference deviation
while read -r recipe; do
    losses=""
    for ((seed = 1; seed <= seeds; ++seed)); do
        # shellcheck disable=SC2086
        loss=$(last "$seed" $recipe "$@")
        [ "$recipe" != bf16-fp32 ] || plain[seed]=$loss
        losses+="$loss ${plain[seed]}"$'\n'
    done
    printf %s "$losses" | awk -v name="$recipe" '
        { loss += $1; d = $1 - $2; sum += d; squares += d * d }
        END {
            mean = sum / NR
            variance = NR > 1 ? (squares - NR * mean * mean) / (NR - 1) : 0
            printf "%-52s %8.4f %+10.4f %9.4f\n", name, loss / NR, mean,
                sqrt(variance > 0 ? variance : 0)
        }'
done <<<"$recipes"
