#!/usr/bin/env python3
"""What the chapters compute, as hashes that are committed (bits.json): so a change that only moves
or renames code shows that it leaves every bit as it was.

    tests/bits.py compare BUILD COMPILER MPIRUN...    the runs below, against bits.json
    tests/bits.py record BUILD COMPILER MPIRUN...     writes what they compute now into bits.json

make bits and make bits RECORD=yes call it. Memory, calls and bytes sent are the same on every
machine. Losses and norms have the same bits only with the same compiler, its -march and OpenBLAS's
kernels: there are hashes of each such machine that recorded some; on any other machine, losses and
norms are not compared. Each rank has one thread, as sums are divided among threads."""

import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "classroom"))
import limits  # noqa: E402  (found through the line above)

KNOWN = pathlib.Path(__file__).with_name("bits.json")
COMMON = "--layers 3 --seq 32 --steps 3 --no-verify --peak-tflops 1"
RUNS = [  # ranks, chapter, arguments
    (1, "00_single_gpu", "--micro-batch 2 --grad-accum 2"),
    (1, "00_single_gpu", "--micro-batch 2 --dtype bf16 --recompute full --attention naive"),
    (1, "00_single_gpu", "--micro-batch 2 --dropout 0.1 --loss-chunk 16 --recompute selective"),
    (3, "01_data_parallel", "--sync bucket --micro-batch 2 --bucket-mb 0.5"),
    (4, "01_data_parallel", "--sync ring --micro-batch 1 --dtype bf16"),
    (2, "02_zero", "--stage 1 --micro-batch 2 --grad-accum 2"),
    (3, "02_zero", "--stage 2 --micro-batch 2 --dtype bf16"),
    (4, "02_zero", "--stage 3 --micro-batch 1 --recompute full"),
    (2, "03_tensor_parallel", "--micro-batch 2"),
    (4, "03_tensor_parallel", "--sequence-parallel --overlap chunk --micro-batch 2"),
    (4, "04_context_parallel", "--variant ring --micro-batch 1"),
    (2, "04_context_parallel", "--variant ulysses --micro-batch 1 --dtype bf16"),
    (3, "05_pipeline", "--schedule 1f1b --micro-batch 1 --grad-accum 6"),
    (2, "05_pipeline", "--schedule zb-h1 --layers 4 --micro-batch 1 --grad-accum 4"),
    (2, "05_pipeline", "--schedule zbv --layers 4 --micro-batch 1 --grad-accum 4"),
    (2, "06_expert_parallel", "--micro-batch 2"),
    (4, "06_expert_parallel", "--micro-batch 1 --overlap chunks --capacity-factor 1.25"),
    (2, "08_mixed_precision", "--recipe tensor --micro-batch 1"),
    (1, "08_mixed_precision", "--recipe bf16 --micro-batch 2"),
    (4, "09_5d_parallel", "--dp 2 --tp 2 --zero 3 --micro-batch 1"),
    (4, "09_5d_parallel", "--pp 2 --cp 2 --schedule 1f1b --micro-batch 1 --grad-accum 4"),
    (4, "09_5d_parallel", "--ep 2 --dp 2 --model nano-moe --zero 1 --micro-batch 1"),
]


def digest(value):
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def run(build, mpirun, ranks, chapter, arguments, environment):
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "run.json"
        words = [*mpirun, "-n", str(ranks), f"{build}/{chapter}", *COMMON.split(),
                 *arguments.split(), "--json", str(file)]
        done = subprocess.run(words, env=environment, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"{chapter} {arguments} failed:\n{done.stdout}{done.stderr}")
        said = limits.read_json(file)
    summary = said["summary"]
    core = re.search(r"^Core: (.*)", done.stderr + done.stdout, re.MULTILINE)
    memory = [{name: bytes["measured"] for name, bytes in rank_memory.items()}
              for rank_memory in summary.get("memory_by_rank", [summary["memory"]])]
    calls = {name: [c["calls"], c["tensor_bytes"], c["sent_bytes"]]
             for name, c in summary.get("communication", {}).items()}
    return {"losses": digest([step["loss"] for step in said["steps"]]),
            "norms": digest([step["grad_norm"] for step in said["steps"]]),
            "memory": digest(memory), "calls": digest(calls)}, core[1] if core else "another BLAS"


def main(command, build, compiler, *mpirun):
    environment = dict(os.environ, OMP_NUM_THREADS="1", OPENBLAS_VERBOSE="2",
                       OMP_WAIT_POLICY="passive")
    known = json.loads(KNOWN.read_text(encoding="utf-8")) if KNOWN.exists() else {
        "everywhere": {}, "machines": {}}
    found, machine = {}, None
    for ranks, chapter, arguments in RUNS:
        bits, core = run(build, mpirun, ranks, chapter, arguments, environment)
        machine = machine or f"{compiler}, OpenBLAS for {core}"
        found[f"{chapter} {arguments}, {ranks} rank{'s' * (ranks > 1)}"] = bits
    everywhere = {name: {k: bits[k] for k in ("memory", "calls")} for name, bits in found.items()}
    here = {name: {k: bits[k] for k in ("losses", "norms")} for name, bits in found.items()}
    if command == "record":
        known["machines"] = {machine: here, **({} if known["everywhere"] != everywhere else {
            m: of for m, of in known["machines"].items() if m != machine})}
        known["everywhere"] = everywhere
        text = re.sub(r"\{\s+([^{}]*?)\s+\}", lambda m: "{" + re.sub(r"\n\s*", " ", m[1]) + "}",
                      json.dumps(known, indent=1))  # a run is a line
        KNOWN.write_text(text + "\n", encoding="utf-8")
        print(f"{KNOWN.name}: {len(found)} runs on {machine}")
        return 0
    other = 0
    for name in found:
        wanted = {**known["everywhere"].get(name, {}), **known["machines"].get(machine, {}).get(
            name, {})}
        differs = [what for what, bits in wanted.items() if found[name][what] != bits]
        differs += ["not recorded"] * (not wanted)
        other += bool(differs)
        if differs:
            print(f"{name}: {', '.join(differs)}")
    print(f"{len(found)} runs, {other} differ; losses and norms " + (
        "compared" if machine in known["machines"] else f"not compared: nothing of {machine}"))
    return 1 if other else 0


if __name__ == "__main__":
    if len(sys.argv) < 5 or sys.argv[1] not in ("compare", "record"):
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
