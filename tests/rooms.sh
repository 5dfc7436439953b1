#!/usr/bin/env bash
# Checks who may use whom (common/README.md) and that lines have at most 100 columns: reports every
# #include that is not allowed and every longer line, and exits with 1 if there is one.
set -euo pipefail
cd "$(dirname "$0")/.."

# An included file's folder, or a folder above it, must be named here, unless the folder has an
# entry of its own.
declare -A may_use=(
    [core]="core"
    [model]="core model"
    [comm]="core comm"
    [comm/nccl]="core comm comm/nccl cuda"
    [files]="core model comm files"
    [lab]="core model comm files lab"
    [lab/verify]="core model comm files lab train"
    [lab/measure]="core model comm files lab train"
    [train]="core model comm files train lab lab/verify lab/measure"
    [cpu]="core comm cpu"
    [cuda]="core comm cuda"
    [emulator]="core cuda emulator"
)
wrong=0
complain() { echo "$1 includes $2"; wrong=1; }
# room FOLDER: prints it, or the folder above it that is a key of may_use.
room() {
    local folder=$1
    until [[ -v may_use[$folder] || $folder != */* ]]; do folder=${folder%/*}; done
    echo "$folder"
}

while IFS=: read -r file included; do
    [[ $included = */* ]] || continue  # a file of its own folder
    file_room=$(room "$(dirname "${file#common/}")")
    [[ " ${may_use[$file_room]} " = *" $(room "$(dirname "$included")") "* ]] ||
        complain "$file" "$included"
done < <(grep -roE '^#include "[^"]+"' common --include=*.{h,cpp,cu,cuh} --exclude-dir=include |
    sed -E 's/:#include "([^"]+)"/:\1/')

# A chapter uses common/ but no other chapter (09 combines the others), and neither CUDA nor NCCL
# nor MPI (07 is about kernels). A chapter's operations, in its kernels/, use the same folders as
# those of common/.
while IFS=: read -r file included; do
    case $file in
        07_*) continue ;;
        */kernels/*)
            case $included in
                \"core/* | \"cpu/* | \"cuda/* | \"model/router_settings.h\" | \<*) ;;
                \"../*/* | \"[a-z]*/*) complain "$file" "$included" ;;
            esac
            continue
            ;;
    esac
    case $included in
        \"0[0-9]_*) [[ $file = 09_* ]] || complain "$file" "$included" ;;
        \"cuda/* | \"cpu/* | \"comm/mpi/* | \"comm/nccl/* | \<*cuda* | \<*nccl* | *mpi.h*)
            complain "$file" "$included"
            ;;
    esac
done < <(grep -roE '^#include ["<][^">]+[">]' 0*/ --include=*.{h,cpp,cu,cuh} |
    sed -E 's/:#include /:/')

# What a chapter has outside of its lab/ is the book: of the laboratory, its own or another
# chapter's, only main.cpp makes use. 09's planner/ trains nothing, either.
book="00_single_gpu 01_data_parallel 02_zero 03_tensor_parallel 04_context_parallel 05_pipeline
      06_expert_parallel 08_mixed_precision 09_5d_parallel"
for chapter in $book; do
    while IFS=: read -r file included; do complain "$file" "$included"; done < <(
        grep -roE '^#include "(([a-z0-9_.]+/)*lab/[^"]+|train/run\.h)"' "$chapter" --include=*.h \
            --exclude-dir={lab,kernels,planner} | sed -E 's/:#include "([^"]+)"/:\1/')
done

# UTF-8 makes grep count characters.
while IFS=: read -r file number _; do
    echo "$file:$number: more than 100 columns"
    wrong=1
done < <(git ls-files -z -- '*.cpp' '*.h' '*.cu' '*.cuh' '*.sh' '*.py' '*Makefile' .ci |
    LC_ALL=C.UTF-8 xargs -0 grep -anHE '^.{101}')
exit $wrong
