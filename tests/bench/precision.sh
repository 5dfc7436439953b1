#!/usr/bin/env bash
# 08_mixed_precision on one GPU beside PyTorch: how fast each recipe trains a Llama-3-8B of 8 layers
# and SmolLM-1.7B, and whether fp8 learns as torchao's does from the same weights and batches. Each
# run's line is printed when it ends, all of them once more as one table at the end. A run that
# fails has its last line there, and the others go on; then the exit code is 1.
# Usage: [PYTHON=python3] tests/bench/precision.sh BUILD [PEERS]
#        e.g. build/cuda ~/peers
# PEERS, also as a variable: a folder with torch_fp8.py (torchao on the Llama; it prints a JSON line
# for each of bf16, tensorwise and rowwise). LLAMA, SMOLLM: our models' options; TORCH_FP8,
# TORCH_SMOLLM, CHAR, TORCH_CHAR: options of PyTorch's and of the curves' runs. An empty LLAMA or
# SMOLLM leaves out its runs. STEPS of a run, of which the median is printed; CURVE: steps of a
# curve (0: none); SEEDS of it. On a laptop:
#        LLAMA="--model nano" SMOLLM= STEPS=4 CURVE=10 SEEDS=1 CHAR="--micro-batch 1" \
#        TORCH_CHAR="--batch 1 --device cpu --dtype bf16"
set -u
cd "$(dirname "$0")/../.." || exit
build=$1 peers=${2:-${PEERS-}} python=${PYTHON:-python3}
llama=${LLAMA---model llama-3-8b --layers 8 --micro-batch 2 --seq 4096}
smollm=${SMOLLM---model smollm-1.7b --micro-batch 8 --seq 2048}
torch_fp8=${TORCH_FP8---layers 8 --mbs 2 --seq 4096}
torch_smollm=${TORCH_SMOLLM---model smollm-1.7b --batch 8 --seq 2048 --device cuda --compile}
char=${CHAR---micro-batch 16} torch_char=${TORCH_CHAR---batch 16}
steps=${STEPS:-12} curve=${CURVE:-1000} seeds=${SEEDS:-3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
table=$work/table log=$work/log json=$work/json
failed=0

row() { printf '  %-42s %12s %8s %10s\n' "$@" | tee -a "$table"; }
part() {  # title, names of the columns
    printf '%s\n' "$1" | tee -a "$table"
    row "" "${2-tokens/s}" "${3-of bf16}" "${4-peak}"
    bf16=0
}
ratio() { awk -v a="$1" -v b="$2" 'BEGIN { if (a > 0 && b > 0) printf "%.2f", a / b }'; }
fails() {  # name; prints what its log ends with
    failed=1
    printf '  %-42s failed: %s\n' "$1" "$(tail -1 "$log" | cut -c 1-45)" | tee -a "$table"
}
field() {  # name of a number in the last line of $json
    tail -1 "$json" | sed -nE "s/.*\"$1\":([0-9.e+-]+).*/\1/p"
}

# A run of ours: recipe and options. Its rate is compared with that of bf16 in the same part.
ours() {
    rm -f "$json"
    # shellcheck disable=SC2086
    if ! "$build/08_mixed_precision" $model --steps "$steps" --no-verify --data common/text.txt \
        --json "$json" --recipe "$@" >"$log" 2>&1; then
        fails "$*"
        return
    fi
    local rate peak
    rate=$(field tokens_per_second_per_device)
    peak=$(sed -nE 's/^ *all, at the peak .* ([0-9.]+ [KMG]iB) .*/\1/p' "$log")
    [ "$1" != bf16 ] || bf16=$rate
    row "$*" "$(printf %.0f "$rate")" "$(ratio "$rate" "$bf16")" "$peak"
}

has_torch() {
    "$python" -c 'import torch' 2>/dev/null && return
    echo "  (no PyTorch for $python: set PYTHON)" | tee -a "$table"
    return 1
}
torch_on_llama() {
    if [ -z "$peers" ]; then
        echo "  (no folder with torch_fp8.py was given)" | tee -a "$table"
        return
    fi
    has_torch || return
    local first="" kind rate peak
    # shellcheck disable=SC2086
    "$python" "$peers/torch_fp8.py" $torch_fp8 >"$work/torch" 2>"$log" || fails "torch_fp8.py"
    while read -r kind rate peak; do
        first=${first:-$rate}
        row "PyTorch, $kind" "$rate" "$(ratio "$rate" "$first")" "$peak GiB"
    done < <(tr -d '",:{}' <"$work/torch" |
        awk '{
            for (i = 1; i < NF; ++i) of[$i] = $(i + 1)
            print of["kind"], of["tok_s"], of["peak_gib"]
        }')
}
torch_on_smollm() {
    has_torch || return
    # shellcheck disable=SC2086
    "$python" tests/bench/torch_llama.py $torch_smollm >"$log" 2>&1 || { fails PyTorch; return; }
    row "PyTorch, bf16" "$(sed -nE 's/.* ([0-9]+) tokens\/s.*/\1/p' "$log")" "" \
        "$(sed -nE 's/.*peak memory ([0-9.]+) GiB.*/\1 GiB/p' "$log")"
}

# learns NAME COMMAND...: the mean loss of the last tenth of a curve, over all seeds, and how far it
# is from the first curve's with the same seeds: mean and standard deviation of one. Both programs
# begin with the same weights, and take the same batches.
learns() {
    local name=$1 seed
    shift
    : >"$work/losses"
    for ((seed = 1; seed <= seeds; ++seed)); do
        rm -f "$json"
        "$@" --seed "$seed" --json "$json" --steps "$curve" --lr 1e-3 --warmup 50 --shuffle \
            >"$log" 2>&1 || { fails "$name"; return; }
        grep -E '"step": ?[0-9]' "$json" | tail -$(((curve + 9) / 10)) |
            sed -E 's/.*"loss": ?([^,]+),.*/\1/' | awk '{ s += $1 } END { print s / NR }' \
            >>"$work/losses"
    done
    [ -e "$work/first" ] || cp "$work/losses" "$work/first"
    # shellcheck disable=SC2046
    row "$name" $(paste "$work/losses" "$work/first" | awk '
        { loss += $1; d = $1 - $2; sum += d; squares += d * d }
        END {
            variance = NR > 1 ? (squares - sum * sum / NR) / (NR - 1) : 0
            printf "%.4f %+.4f %.4f", loss / NR, sum / NR, sqrt(variance > 0 ? variance : 0)
        }')
}
our_curve() {
    # shellcheck disable=SC2086
    learns "$*" "$build/08_mixed_precision" --model char $char --lr-schedule cosine --no-verify \
        --log-every 1000000 --data common/text.txt --recipe "$@"
}
torch_curve() {  # name options...
    local name=$1
    shift
    # shellcheck disable=SC2086
    learns "PyTorch, $name" "$python" tests/bench/torch_char.py --train common/text.txt \
        $torch_char "$@"
}

if [ -n "$llama" ]; then
    model=$llama
    part "$llama"
    for run in bf16 bf16-fp32 tensor "tensor --unfused" "tensor --fast-accumulation none" \
        "tensor --fast-accumulation all" "tensor --head fp8" te row deepseek \
        "deepseek --unfused" "deepseek --keep-fp8" "deepseek --head fp8"; do
        # shellcheck disable=SC2086
        ours $run
    done
    torch_on_llama
fi
if [ -n "$smollm" ]; then
    model=$smollm
    part "$smollm"
    # shellcheck disable=SC2086
    for run in bf16 tensor "tensor --head fp8" deepseek "deepseek --head fp8"; do ours $run; done
    torch_on_smollm
fi
if [ "$curve" -gt 0 ]; then
    part "--model char, $curve steps, $seeds seeds" loss difference deviation
    # shellcheck disable=SC2086
    for run in bf16-fp32 tensor "tensor --head fp8" row deepseek; do our_curve $run; done
    if has_torch; then
        torch_curve bf16
        torch_curve tensorwise --fp8 tensorwise
        torch_curve rowwise --fp8 rowwise
    fi
fi
printf '\n== all\n'
cat "$table"
exit $failed
