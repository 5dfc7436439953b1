#!/usr/bin/env bash
# All schedules of 05_pipeline on GPUs, compared with PyTorch's: a Llama-3-8B of 16 layers in bf16,
# 8 micro-batches of 1 x 4096 tokens. Prints a line for each run: the step and both bubbles, as
# measured and as simulated from the measured F, B, W and hop; MFU; the peak memory of each rank.
# Usage: [PYTHON=python3] tests/bench/pipeline.sh BUILD "MPIRUN FLAGS" P...
#        e.g. build/cuda "$(make -s mpirun)" 2 4 8
# MODEL: our model's options; PEER: PyTorch's options; SEQ, MICRO: tokens of a sequence,
# micro-batches of a step; STEPS: steps of a run, of which the median is printed. On a laptop:
#        MODEL="--model nano" PEER="--model nano --device cpu --no-compile" SEQ=128 STEPS=4
# No run clips, as --post-validation would otherwise repeat an update.
set -eu
cd "$(dirname "$0")/../.."
build=$1 mpirun=$2 python=${PYTHON:-python3}
shift 2
model=${MODEL---model llama-3-8b --layers 16 --dtype bf16 --fp32-grads}
peer=${PEER---model llama-3-8b --layers 16}
seq=${SEQ:-4096} micro=${MICRO:-8} steps=${STEPS:-10}
report=$(mktemp)
trap 'rm -f "$report"' EXIT
export OMP_WAIT_POLICY=passive

ours() {  # ranks schedule options...
    local ranks=$1 name=${*:2}
    shift
    $mpirun -n "$ranks" "$build/05_pipeline" $model --seq "$seq" --micro-batch 1 \
        --grad-accum "$micro" --split auto --clip 0 --data common/text.txt --steps "$steps" \
        --no-verify --report full --schedule "$@" >"$report" 2>&1 || true
    awk -v name="$name" -f tests/bench/pipeline_line.awk "$report"
}

theirs() {  # ranks schedule options...
    local ranks=$1 schedule=$2
    shift 2
    OMP_NUM_THREADS=8 "$python" -m torch.distributed.run --nproc_per_node "$ranks" \
        --master_port $((29500 + ranks)) tests/peers/torch_pipeline_schedules.py $peer \
        --seq "$seq" --micro "$micro" --steps "$steps" --schedule "$schedule" "$@" 2>&1 |
        awk '/^PyTorch|Error/ && !printed++ { print "  " $0 }'
}

for ranks; do
    echo "== $ranks ranks"
    printf '  %-23s %19s %6s %17s %17s  %s\n' "" "step, ms" "" "its bubble, ms" "own bubble, ms" \
        "peak memory"
    printf '  %-23s %9s %9s %6s %8s %8s %8s %8s  %s\n' "" measured simulated "MFU %" measured \
        simul. measured simul. "of each rank"
    for schedule in naive afab 1f1b interleaved breadth-first zb-h1 zb-h2 zbv v-half dualpipe \
        dualpipev; do
        ours "$ranks" "$schedule"
        # The numbers of layers of 1F1B's stages ("9,7"), if they differ.
        [ "$schedule" != 1f1b ] ||
            split=$(sed -nE 's/^ *pipe .* of ([0-9]+(,[0-9]+)+) layers .*/\1/p' "$report")
    done
    for schedule in zb-h2 zbv; do ours "$ranks" "$schedule" --post-validation; done
    if ! "$python" -c 'import torch' 2>/dev/null; then
        echo "  (no PyTorch for $python: set PYTHON)"
        continue
    fi
    for schedule in GPipe 1F1B Interleaved1F1B; do theirs "$ranks" $schedule; done
    [ -z "$split" ] || theirs "$ranks" 1F1B --split "$split"
    # Schedules that split the backward fail with compiled layers.
    for schedule in 1F1B InterleavedZeroBubble ZBVZeroBubble DualPipeV; do
        theirs "$ranks" $schedule --no-compile
    done
done
