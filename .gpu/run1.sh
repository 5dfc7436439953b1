set -u
B=build/cuda; export OMP_NUM_THREADS=8
M="mpirun --allow-run-as-root --oversubscribe --bind-to none"
t=$SECONDS
make -j16 BACKEND=cuda $B/unit_test $B/04_context_parallel $B/context_bench $B/attention_bench $B/kernel_bench > $OUT/build.log 2>&1 || { tail -20 $OUT/build.log; exit 1; }
echo "built in $((SECONDS-t)) s"; t=$SECONDS
timeout 100 $B/unit_test --gtest_filter='OpsAttention*:OpsGather*:Llama*' > $OUT/unit.log 2>&1; tail -15 $OUT/unit.log | cut -c1-200; grep -E "Failure|FAILED" $OUT/unit.log | head; echo "unit $((SECONDS-t)) s"; t=$SECONDS
timeout 60 $B/attention_bench; echo "== $((SECONDS-t)) s"; t=$SECONDS
timeout 80 $B/context_bench; echo "== $((SECONDS-t)) s"; t=$SECONDS
for v in "" "--variant all-gather" "--variant ulysses" "--tails on" "--layout striped --document-token 10" "--dtype bf16 --variant ring"; do
  timeout 60 $M -n 2 $B/04_context_parallel --steps 4 --peak-tflops 989 --micro-batch 2 $v > $OUT/l.log 2>&1; echo "rc $? $v"; grep -E "MISS|MISM|cannot|rror|[Dd]iffer" $OUT/l.log | head -4; done
echo "== $((SECONDS-t)) s"; t=$SECONDS
timeout 120 $B/04_context_parallel --model llama-3-8b --layers 8 --seq 131072 --micro-batch 1 --dtype bf16 --fp32-grads --recompute full --loss-chunk 8192 --data .deps/data.txt --no-verify --steps 4 2>&1 | tail -32
echo "== $((SECONDS-t)) s"
