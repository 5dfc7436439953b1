#!/usr/bin/env bash
# Runs 01_data_parallel and 02_zero on RANKS GPUs, with copy engines and with NCCL's kernels in
# turn. Prints one line per run.
# Usage: tests/bench/data_parallel.sh BUILD "MPIRUN FLAGS" RANKS...
#        e.g. build/cuda "$(make -s mpirun)" 1 2 4 8
# SMALL and LARGE are the options of the two trainings; on a laptop: SMALL="--model nano"
# LARGE="--model nano --grad-accum 2"
set -u
cd "$(dirname "$0")/../.."
build=$1 mpirun=$2
shift 2
small=${SMALL---model smollm-1.7b --micro-batch 8 --seq 2048 --dtype bf16 --fp32-grads}
large=${LARGE---model llama-3-8b --micro-batch 1 --seq 4096 --dtype bf16 --fp32-grads}

measure() {  # ranks program options...
    local ranks=$1 program=$2
    shift 2
    $mpirun -n "$ranks" "$build/$program" --steps 10 --no-verify --data common/text.txt "$@" 2>&1 |
        awk -v name="$ranks $program ${*}" -f tests/bench/training_line.awk
}

for ranks; do
    if [ "$ranks" = 1 ]; then
        measure 1 01_data_parallel $small
        continue
    fi
    for sync in naive overlap bucket "bucket --bucket-mb 200"; do
        for copies in on off; do
            measure "$ranks" 01_data_parallel $small --sync $sync --copy-engines $copies
        done
    done
    for copies in on off; do
        measure "$ranks" 02_zero $small --stage 3 --copy-engines $copies
        measure "$ranks" 02_zero $large --stage 3 --copy-engines $copies
    done
done
