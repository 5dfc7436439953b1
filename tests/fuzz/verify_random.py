#!/usr/bin/env python3
"""Trains random small models in random ways and checks that --verify passes each of them: all of
these runs are correct.

    tests/fuzz/verify_random.py build/cpu --mpirun "$(make -s BACKEND=cpu mpirun)" --runs 300

Prints one table: how many runs passed, missed their bound or could not tell, and how close to its
bound each comparison came. Run I depends only on --seed and I: `--first I --runs 1 --keep DIR`
repeats it and keeps its model. Exit code 1 means that a run missed or failed.
"""

import argparse
import concurrent.futures
import json
import math
import os
import pathlib
import random
import shlex
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import processes  # noqa: E402

LINES = ["gradient", "loss_step_1", "loss_later", "weights"]


def log_uniform(rng, low, high):
    return float(f"{math.exp(rng.uniform(math.log(low), math.log(high))):.3g}")


def random_model(rng):
    """A config.json. One in eight is of the kind that amplifies rounding most: wide heads, large
    weights."""
    if rng.random() < 0.125:
        head_dim, heads = rng.choice([(128, 4), (128, 7), (256, 2), (256, 3)])
        return config(rng, heads * head_dim, heads, rng.choice([1, heads]), head_dim,
                      rng.choice([1, 2]), rng.choice([64, 256]), log_uniform(rng, 0.05, 0.1))
    head_dim = rng.choice([8, 8, 16, 16, 32, 32, 64, 64, 128, 256])
    heads = rng.randint(1, max(1, min(8, 512 // head_dim)))
    hidden = heads * head_dim if rng.random() < 0.7 else 8 * rng.randint(1, 24)
    kv_heads = rng.choice([k for k in range(1, heads + 1) if heads % k == 0])
    return config(rng, hidden, heads, kv_heads, head_dim, rng.randint(1, 4), 4 * rng.randint(1, 64),
                  log_uniform(rng, 0.01, 0.1))


def config(rng, hidden, heads, kv_heads, head_dim, layers, ffn, initializer_range):
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
        "hidden_size": hidden, "num_attention_heads": heads, "num_key_value_heads": kv_heads,
        "head_dim": head_dim, "num_hidden_layers": layers, "intermediate_size": ffn,
        "vocab_size": rng.choice([128, 256, 256, 300, 512]),
        "initializer_range": initializer_range, "tie_word_embeddings": rng.random() < 0.5,
        "max_position_embeddings": 256, "rms_norm_eps": rng.choice([1e-5, 1e-6]),
        "rope_theta": 10000.0,
    }


def divides(divisors, *numbers):
    return [d for d in divisors if all(n % d == 0 for n in numbers)]


def context_parallel(rng, model, ranks, seq, options):
    """Appends options of chapter 04 that fit the model. Returns a length that they can cut."""
    heads, kv_heads = model["num_attention_heads"], model["num_key_value_heads"]
    cp = rng.choice(divides(range(1, ranks + 1), ranks))
    exchange = [u for u in divides(range(1, cp + 1), cp, heads)
                if kv_heads % u == 0 or u % kv_heads == 0]
    variant = rng.choice(["plain", "ring", "ring", "all-gather", "usp"]
                         + (["ulysses"] if cp in exchange else []))
    layout = rng.choice({"all-gather": ["contiguous", "zigzag"], "ulysses": ["contiguous"],
                         "plain": ["contiguous"]}.get(
                             variant, ["contiguous", "zigzag", "zigzag", "striped"]))
    options.append(f"--cp {cp} --variant {variant} --layout {layout}")
    inside = 1
    if variant == "usp":
        inside = rng.choice(exchange)
        options.append(f"--ulysses {inside}")
    if variant in ("ring", "usp") and cp > 1:
        choices = ["", "--ring-backward restarted", "--ring-backward reversed"]
        options.append(rng.choice(choices + (["--bidirectional on"] if layout == "zigzag" else [])))
        options.append(rng.choice(["", "", "--merge bf16"]))
    if layout != "striped" and rng.random() < 0.2:
        options.append("--dropout 0.1")
    multiple = cp * (2 if layout == "zigzag" else 1) if variant != "ulysses" else cp
    return max(seq // multiple, 1) * multiple


def pipeline(rng, model, ranks, options):
    """Appends options of chapter 05, and gives the model layers for its stages."""
    pp = rng.choice(divides(range(1, ranks + 1), ranks))
    schedule = rng.choice(["naive", "afab", "1f1b", "interleaved", "breadth-first", "zb-h1",
                           "zb-h2", "zbv", "v-half", "dualpipe", "dualpipev"])
    micro_batches = rng.choice([1, 2, pp, pp + 1, 2 * pp, 2 * pp + 1, 3 * pp])
    if schedule == "interleaved":
        micro_batches = pp * rng.randint(1, 3)
    if schedule.startswith("dualpipe"):
        micro_batches = 2 * pp + 2 * rng.randint(0, 2)
    options.append(f"--pp {pp} --schedule {schedule} --grad-accum {micro_batches}")
    chunks = 1 if schedule in ("naive", "afab", "1f1b", "zb-h1", "zb-h2", "dualpipe") else 2
    if schedule in ("interleaved", "breadth-first"):
        chunks = rng.choice([2, 2, 3])
        options.append(f"--chunks {chunks}")
    model["num_hidden_layers"] = pp * chunks + rng.randint(0, 2)
    if pp > 1 and rng.random() < 0.2:
        options.append("--post-validation")


def expert_parallel(rng, model, ranks, options):
    """Gives the model experts, and appends options of chapter 06 that fit them."""
    experts = rng.choice([2, 3, 4, 6, 8])
    top_k = rng.randint(1, min(experts, 3))
    model.update(architectures=["MixtralForCausalLM"], model_type="mixtral",
                 num_local_experts=experts, num_experts_per_tok=top_k, router_aux_loss_coef=0.0)
    ep = rng.choice(divides(range(1, ranks + 1), ranks, experts))
    options.append(f"--ep {ep}")
    if rng.random() < 0.3:
        options.append("--router sigmoid")
    if rng.random() < 0.5:
        aux = rng.choice(["hf", "switch", "megatron", "sequence"])
        options.append(f"--aux-coef 0.05 --aux {aux}")
        if aux != "sequence" and rng.random() < 0.4:
            options.append("--aux-over global")
    options.append(rng.choice(["", "", "--shared 1", "--shared 1 --overlap shared",
                               "--overlap gradients"]))
    options.append(rng.choice(["", "", "--dispatch rank", "--capacity-factor 1",
                               "--capacity-factor 0.7 --drop score"]))
    options.append(rng.choice(["", "", "--balance bias --gamma 0.01", "--z-coef 0.01"]))


def random_run(rng):
    """(config, chapter, ranks, its options). The chapters refuse few of them."""
    model = random_model(rng)
    chapter = rng.choice(["00_single_gpu", "01_data_parallel", "02_zero", "03_tensor_parallel",
                          "04_context_parallel", "05_pipeline", "06_expert_parallel"])
    ranks = 1 if chapter.startswith("00") else rng.randint(1, 4)
    seq = rng.choice([1, 2, 3, 5, 8, 12, 16, 24, 32, 40, 48, 64])
    accumulated = rng.choice([1, 1, 2, 3])
    steps, micro_batch = rng.choice([1, 2, 3, 6, 6, 6, 6, 6]), rng.choice([1, 1, 2, 3, 4])
    options = [f"--steps {steps}",
               f"--micro-batch {micro_batch}", f"--seed {rng.randint(0, 999)}",
               f"--lr {log_uniform(rng, 1e-4, 1e-2)}"]

    def sometimes(probability, *choices):
        if rng.random() < probability:
            options.append(rng.choice(choices))

    sometimes(0.4, "--dtype bf16", "--dtype bf16", "--dtype bf16 --fp32-grads")
    sometimes(0.3, "--recompute selective", "--recompute full", "--recompute full:1")
    sometimes(0.3, "--clip 0", "--clip 0.1", "--clip 10")
    sometimes(0.2, "--weight-decay 0", "--weight-decay 1")
    sometimes(0.2, "--warmup 4", "--warmup 100", "--lr-schedule cosine")
    sometimes(0.3, "--shuffle")
    if accumulated > 1 and chapter != "05_pipeline":
        options.append(f"--grad-accum {accumulated}")

    if chapter == "00_single_gpu":
        sometimes(0.3, "--attention naive")
        sometimes(0.3, "--loss-chunk 1", "--loss-chunk 7", "--loss-chunk 32")
        if seq >= 16:
            sometimes(0.3, "--document-token 10", "--ignore-token 101")
    elif chapter == "01_data_parallel":
        sync = rng.choice(["naive", "overlap", "bucket", "ring", "tree", "hierarchical"])
        options.append(f"--sync {sync}")
        if sync in ("bucket", "hierarchical"):
            sometimes(0.7, "--bucket-mb 0.01", "--bucket-mb 0.1", "--bucket-mb 1")
        if sync == "ring":
            sometimes(0.5, "--ring-directions one", "--ring-directions both")
        if sync == "hierarchical" and ranks > 1:
            node_size = rng.choice(divides(range(1, ranks + 1), ranks))
            options.append(f"--node-size {node_size} --inter-gbps 100")
        if accumulated > 1:
            sometimes(0.3, "--no-sync off")
    elif chapter == "02_zero":
        stage = rng.randint(0, 3)
        options.append(f"--stage {stage}")
        plain = stage == 1 and rng.random() < 0.3
        if plain:
            options.append("--plain")
        elif stage in (1, 2):
            sometimes(0.4, "--gather-overlap optimizer", "--gather-overlap forward")
        if stage == 3:
            sometimes(0.5, "--prefetch 0", "--prefetch 2")
        if stage > 0 and not plain:
            sometimes(0.2, "--offload optimizer")
            if shares := [s for s in divides(range(2, ranks + 1), ranks)]:
                sometimes(0.3, f"--shard-size {rng.choice(shares)}",
                          *([f"--secondary-shard {rng.choice(shares)}"] if stage == 3 else []))
        if accumulated > 1 and stage < 2 and not plain:
            sometimes(0.3, "--no-sync off")
    elif chapter == "05_pipeline":
        pipeline(rng, model, ranks, options)
        sometimes(0.2, "--dropout 0.1")
        if seq >= 16:
            sometimes(0.3, "--document-token 10", "--ignore-token 101")
    elif chapter == "06_expert_parallel":
        expert_parallel(rng, model, ranks, options)
        sometimes(0.2, "--dropout 0.1")
    elif chapter == "04_context_parallel":
        seq = context_parallel(rng, model, ranks, seq, options)
        if seq >= 16:
            reverses = "--ring-backward reversed" in options  # with documents a ring is restarted
            sometimes(0.4, "--ignore-token 101", *([] if reverses else ["--document-token 10"]))
    else:
        heads, kv_heads = model["num_attention_heads"], model["num_key_value_heads"]
        fits = [t for t in divides(range(1, ranks + 1), ranks, heads, model["intermediate_size"])
                if kv_heads % t == 0 or t % kv_heads == 0]
        tp = rng.choice(fits)
        options.append(f"--tp {tp}")
        if tp > 1 and rng.random() < 0.5:
            seq = max(seq // tp, 1) * tp
            options.append("--sequence-parallel")
            sometimes(0.3, "--keep-gathered on")
        if tp > 1:
            halves = micro_batch % 2 == 0 and "--recompute full:1" not in options
            sometimes(0.5, "--overlap async", "--overlap chunk", "--overlap chunk --chunks 3",
                      *["--overlap halves"] * halves)
        sometimes(0.2, "--dropout 0.1")
    return model, chapter, ranks, f"--seq {seq} " + " ".join(options)


def run(index, arguments):
    """Trains once. Returns a dictionary that describes the run and its outcome."""
    model, chapter, ranks, options = random_run(random.Random(f"{arguments.seed}/{index}"))
    with tempfile.TemporaryDirectory(prefix="verify_") as scratch:
        where = os.path.join(arguments.keep or scratch, str(index))
        os.makedirs(where, exist_ok=True)
        with open(os.path.join(where, "config.json"), "w") as file:
            json.dump(model, file)
        summary_file = os.path.join(scratch, "out.json")
        launcher = shlex.split(arguments.mpirun) + ["-n", str(ranks)] if ranks > 1 else []
        command = launcher + [os.path.join(arguments.build, chapter), "--model", where, "--verify",
                              "--peak-tflops", "1"] + options.split()
        environment = dict(os.environ, OMP_NUM_THREADS=os.environ.get("OMP_NUM_THREADS", "1"))
        if arguments.gpus:  # each run starts at another GPU
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(
                str((index + i) % arguments.gpus) for i in range(arguments.gpus))
        result = {"index": index, "command": " ".join(command), "model": model, "verify": {},
                  "out": "", "dtype": "bf16" if "bf16" in options else "fp32"}
        done = processes.run(command + ["--json", summary_file], arguments.timeout, env=environment)
        if done.code is None:
            return dict(result, outcome="failed", out=f"still running after {arguments.timeout} s")
        result["out"] = done.out[-20000:] + done.err[-1000:]
        if done.code == 2:
            return dict(result, outcome="refused")
        try:
            with open(summary_file) as file:
                result["verify"] = json.loads(file.read().splitlines()[-1])["summary"]["verify"]
        except (OSError, KeyError, ValueError):
            return dict(result, outcome="failed")
        word = result["verify"]["result"]
        if word == "ok" and done.code != 0:
            word = "failed"  # another of the run's checks: memory, communication
        return dict(result, outcome={"missed": "MISSED"}.get(word, word))


def ratio(verify, line):
    error, bound = verify.get(line), verify.get(line + "_bound")
    if bound is None or error == 0:
        return 0
    return math.inf if error is None or error < 0 or not bound else error / bound


def table(results):
    print(f"\n{'':<24}{'fp32':>14}{'bf16':>14}")
    by_dtype = [[r for r in results if r["dtype"] == dtype] for dtype in ("fp32", "bf16")]

    def row(name, value):
        print(f"{name:<24}" + "".join(f"{value(group):>14}" for group in by_dtype))

    row("runs", lambda group: sum(r["outcome"] != "refused" for r in group))
    for outcome in ("ok", "MISSED", "cannot tell", "failed", "refused"):
        row(outcome, lambda group: sum(r["outcome"] == outcome for r in group))
    row("needed a measurement", lambda group: sum("drift_weights" in r["verify"] for r in group))
    print("largest error / bound, of the runs that passed; and largest error")
    for line in LINES:
        for kind in ("fixed", "measured", "limit"):
            def value(group):
                chosen = [r["verify"] for r in group
                          if r["outcome"] == "ok" and r["verify"].get(line + "_bound_is") == kind]
                if not chosen:
                    return "-"
                return (f"{max(ratio(v, line) for v in chosen):.2g} "
                        f"{max(v.get(line) or 0 for v in chosen):.1e}")
            if kind == "fixed" or line != "loss_step_1":
                row(f"  {line}, {kind}", value)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", help="folder of the programs, such as build/cpu")
    parser.add_argument("--mpirun", default=os.environ.get("MPIRUN", "mpirun"),
                        help="mpirun with its flags; default: $MPIRUN")
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=math.inf,
                        help="start no new run after this many seconds")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first run")
    parser.add_argument("--jobs", type=int, default=1, help="runs at the same time")
    parser.add_argument("--gpus", type=int, default=0,
                        help="distribute the runs over this many GPUs")
    parser.add_argument("--timeout", type=float, default=120, help="seconds for one run")
    parser.add_argument("--keep", help="keep the models and results.jsonl in this folder")
    arguments = parser.parse_args()
    arguments.build = os.path.abspath(arguments.build)
    if arguments.keep:
        arguments.keep = os.path.abspath(arguments.keep)
        os.makedirs(arguments.keep, exist_ok=True)

    end, results = time.monotonic() + arguments.seconds, []
    kept = open(os.path.join(arguments.keep, "results.jsonl"), "a") if arguments.keep else None

    def one(index):
        return run(index, arguments) if time.monotonic() < end else None

    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        for result in pool.map(one, range(arguments.first, arguments.first + arguments.runs)):
            if result is None:
                continue
            results.append(result)
            if kept:
                print(json.dumps(result), file=kept, flush=True)
            if result["outcome"] not in ("ok", "refused"):
                print(f"\n{result['outcome']}: run {result['index']}: {result['command']}\n"
                      f"  {json.dumps(result['model'])}")
                print("\n".join(line for line in result["out"].splitlines()
                                if "<=" in line or result["outcome"] == "failed"), flush=True)
            elif sys.stderr.isatty():
                print(f"\r{len(results)} runs", end="", file=sys.stderr)
    table(results)
    refused = {r["out"].splitlines()[-1] for r in results if r["outcome"] == "refused" and r["out"]}
    for line in sorted(refused)[:5]:
        print("refused, for example:", line)
    return int(any(r["outcome"] in ("MISSED", "failed") for r in results))


if __name__ == "__main__":
    sys.exit(main())
