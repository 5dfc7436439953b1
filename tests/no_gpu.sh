#!/usr/bin/env bash
# On a machine without a GPU, a program built for one must say so in one line and end with exit code
# 2.
# Usage: tests/no_gpu.sh build/cuda/00_single_gpu
said=$("$1" --steps 1 2>&1) && code=0 || code=$?
echo "$said"
[ "$code" = 2 ] && [[ "$said" == "error: no GPU here"* ]] && [ "$(wc -l <<<"$said")" = 1 ]
