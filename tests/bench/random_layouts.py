#!/usr/bin/env python3
"""Draws layouts of 09_5d_parallel at random, and runs each with a tiny model.

    tests/bench/random_layouts.py [--count 100] [--seed 1] [--first 0] [--at-once 2]
                                  [--build build/cpu] [--mpirun "mpirun FLAGS"]

A layout has 2 to 8 ranks and some of the chapter's options. The program must give one device's
results, hold and send what it predicted, and end with 0; or refuse the layout in one line and end
with 2. (Where numbers travel in 8 bits, or ranks scale parts of their own, it only checks memory
and communication.) Where all is as predicted, but correct runs of the tiny model drift as far apart
as this one (products in 8 bits), --verify cannot tell; these are counted, too. Anything else is
wrong: it is printed with its options and the end of its output. At the end come the counts and why
layouts were refused. Layout i depends on the seed and on i only, so --first 37 --count 1 repeats
one. Exits with 1 if a layout is wrong, or fewer than half of them are equal.
"""
import argparse
import collections
import concurrent.futures
import json
import os
import pathlib
import random
import re
import shlex
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import processes  # noqa: E402

TINY = {
    "model_type": "llama", "hidden_act": "silu", "num_hidden_layers": 8, "hidden_size": 48,
    "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 6, "intermediate_size": 80,
    "vocab_size": 257, "rms_norm_eps": 1e-5, "max_position_embeddings": 64}


def axes(draw, ranks, experts):
    """The sizes of the axes: each prime factor of the ranks goes to one of them."""
    size = dict.fromkeys(("tp", "cp", "pp", "dp", "ep"), 1)
    left, factor = ranks, 2
    while left > 1:
        if left % factor == 0:
            size[draw.choice(["tp", "cp", "pp", "dp", "ep" if experts else "dp"])] *= factor
            left //= factor
        else:
            factor += 1
    return size


def layout(draw, models):
    """The number of ranks, and the options."""
    ranks, experts = draw.choice([2, 4, 6, 8, 8]), draw.random() < 0.3
    size, some = axes(draw, ranks, experts), draw.choice
    words = []

    def add(text, share=1.0):
        if draw.random() < share:
            words.append(text)

    add("--model nano-moe --layers 4" if experts else f"--model {some(models)}")
    add(f"--seq 48 --steps 2 --lr 2e-3 --verify --micro-batch {some([1, 1, 2])}")
    for axis in ("tp", "cp", "pp", "ep"):
        if size[axis] > 1:
            add(f"--{axis} {size[axis]}")
    add(f"--grad-accum {size['pp'] * some([1, 2]) if size['pp'] > 1 else some([1, 2, 3])}")
    zero = some([0, 1, 2, 3, 3])
    add(f"--zero {zero}")
    if zero == 0:
        add("--bucket-mb 0.01", 0.5)
    else:
        add("--offload optimizer", 0.2)
    if zero in (1, 2):
        add("--gather-overlap optimizer", 0.2)
    if zero == 3:
        add(f"--prefetch {some([0, 2, 3])}", 0.5)
        add("--keep-gathered on", 0.3)
        add("--gather-dtype fp8", 0.15)
    if zero >= 2:
        add(f"--reduce-dtype {some(['bf16', 'fp8'])}", 0.15)
    add("--recipe " + some(["bf16", "bf16-fp32", "tensor", "row"]), 0.2)
    add("--recompute " + some(["full", "full", "selective"]), 0.4)
    add("--loss-chunk 40", 0.2)
    add("--order " + some(["pp,dp,ep,cp,tp", "cp,pp,tp,dp,ep", "dp,tp,pp,cp,ep"]), 0.25)
    if size["tp"] > 1:
        if draw.random() < (1 if experts else 0.5):
            add("--sequence-parallel")
            add("--tp-keep-gathered on", 0.3)
        elif "--recompute full" in words:
            add("--partition-checkpoints", 0.3)
        add("--tp-overlap " + some(["async", "chunk", "chunk --tp-chunks 4"]), 0.5)
    if size["cp"] > 1:
        add(some(["--variant all-gather", "--variant ulysses", "--variant usp --ulysses 2",
                  "--layout striped", "--layout contiguous", "--bidirectional on",
                  "--ring-backward restarted", "--ring-backward kept"]), 0.8)
        add("--merge bf16", 0.3)
        if not any("--ring-backward" in word for word in words):  # with documents it is restarted
            add(f"--document-token {some([10, 32])}", 0.3)
    if size["pp"] > 1:
        add("--schedule " + some([
            "naive", "afab", "1f1b", "interleaved", "interleaved --chunks 4", "breadth-first",
            "zb-h1", "zb-h2", "zbv", "v-half", "dualpipe", "dualpipev"]))
    if experts:
        add(some(["--dispatch rank", "--aux switch", "--aux sequence", "--aux hf",
                  "--balance bias", "--aux-over global", "--z-coef 0.001", "--aux-coef 0"]), 0.6)
        add(some(["--capacity-factor 1", "--capacity-factor 1 --drop score"]), 0.2)
        add(some(["--skew 0.3", "--force-balance", "--top-k 3 --router sigmoid"]), 0.3)
        add(some(["--ep-overlap chunks", "--ep-overlap gradients",
                  "--shared 1 --ep-overlap shared", "--shared 1"]), 0.4)
        add(f"--first-dense {some([1, 2, 3])}", 0.3)
    return ranks, " ".join(words)


def run(arguments, number, models):
    """(number, "equal", "refused", "untold" or "wrong", ranks and options, why)"""
    ranks, options = layout(random.Random(f"{arguments.seed} {number}"), models)
    command = [*shlex.split(arguments.mpirun), "-n", str(ranks),
               os.path.join(arguments.build, "09_5d_parallel"), *options.split()]
    name = f"{ranks} {re.sub('--model [^ ]*/', '--model ', options)}"
    done = processes.run(command, 300)
    if done.code is None:
        return number, "wrong", name, "it hung"
    if done.code == 0:
        return number, "equal", name, ""
    lines = done.err.splitlines()
    if done.code == 2 and len(lines) == 1 and lines[0].startswith("error: "):
        return number, "refused", name, lines[0][len("error: "):]
    if "CANNOT TELL" in done.out and not re.search("MISSED|MISMATCH", done.out):
        return number, "untold", name, ""
    marked = [line for line in done.out.splitlines()
              if re.search("MISMATCH|MISS|cannot tell|failed", line, re.I)]
    return number, "wrong", name, "\n".join(
        [f"it ended with {done.code}", *marked[:12], *lines[-3:]])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--at-once", type=int, default=2)
    parser.add_argument("--build", default="build/cpu")
    parser.add_argument("--mpirun", default=os.environ.get("MPIRUN", "mpirun"))
    arguments = parser.parse_args()
    os.environ["OMP_WAIT_POLICY"] = "passive"
    counts, reasons = collections.Counter(), collections.Counter()
    with tempfile.TemporaryDirectory() as folder:
        models = [os.path.join(folder, name) for name in ("untied", "tied")]
        for path in models:
            os.mkdir(path)
            with open(os.path.join(path, "config.json"), "w", encoding="utf-8") as file:
                json.dump({**TINY, "tie_word_embeddings": path.endswith("/tied")}, file)
        with concurrent.futures.ThreadPoolExecutor(arguments.at_once) as pool:
            numbers = range(arguments.first, arguments.first + arguments.count)
            for number, how, name, why in pool.map(lambda n: run(arguments, n, models), numbers):
                counts[how] += 1
                if how == "refused":
                    reasons[re.sub(r"\d+", "N", why)] += 1
                if how == "wrong":
                    print(f"WRONG, layout {number}: {name}\n{why}\n", flush=True)
    for why, times in reasons.most_common():
        print(f"{times:5} {why if len(why) < 92 else why[:89] + '...'}")
    print(f"{arguments.count} layouts, seed {arguments.seed}: " +
          ", ".join(f"{counts[how]} {how}" for how in ("equal", "refused", "untold", "wrong")))
    return counts["wrong"] > 0 or 2 * counts["equal"] < arguments.count > 1


if __name__ == "__main__":
    sys.exit(main())
