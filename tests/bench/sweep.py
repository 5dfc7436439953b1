#!/usr/bin/env python3
"""Runs many layouts, one after the other, and survives what goes wrong.

    tests/bench/sweep.py LAYOUTS RESULTS [--program P] [--limit SECONDS] [--predict HARDWARE.json]

LAYOUTS has a line for each run, "RANKS OPTIONS ..."; empty lines and what follows a # are skipped.
RESULTS gets a JSON object a line, at once, so that a sweep that is interrupted goes on where it was
if it is started again: layouts that stand in it are not run a second time.

    status      ok         it ended with 0
                missed     1: verify, memory or communication are not as they should be
                refused    2: it does not fit, or the options exclude each other
                crashed    any other end, also by a signal
                hung       it ran longer than the limit, and was ended
    step_ms, tokens_per_second, peak_bytes (of rank 0), and with --predict: predicted_ms

Every run is a session of its own. Only its processes are ended, by its number.
"""
import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time


def lines_of(path):
    with open(path, encoding="utf-8") as file:
        for line in file:
            line = line.split("#")[0].strip()
            if line:
                yield " ".join(line.split())


def done_before(path):
    """The layouts that stand in the results. A last line that was cut off is dropped."""
    done = set()
    if not os.path.exists(path):
        return done
    whole = []
    with open(path, encoding="utf-8") as file:
        for line in file:
            try:
                done.add(json.loads(line)["layout"])
                whole.append(line)
            except (ValueError, KeyError):
                break
    with open(path + ".new", "w", encoding="utf-8") as file:
        file.writelines(whole)
    os.replace(path + ".new", path)
    return done


def end(process):
    """Ends a run that does not end by itself, and all that it has started."""
    for number, patience in ((signal.SIGTERM, 5), (signal.SIGKILL, 5)):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            pass
        try:
            process.wait(patience)
        except subprocess.TimeoutExpired:
            continue
        if number == signal.SIGKILL:
            return


def run(command, limit):
    """Returns the exit code (None: it hung), its last line on stderr, and the seconds."""
    with tempfile.TemporaryFile("w+") as errors:
        begin = time.monotonic()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors,
                                   stdin=subprocess.DEVNULL, start_new_session=True)
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            code = None
        seconds = time.monotonic() - begin
        end(process)  # also what a rank that crashed has left behind
        errors.seek(0)
        words = [line.strip() for line in errors if line.strip()]
        return code, words[0][:300] if words else "", seconds


def measured(path):
    """What a run's --json says."""
    steps, summary = [], {}
    with open(path, encoding="utf-8") as file:
        for line in file:
            entry = json.loads(line)
            if "step_ms" in entry:
                steps.append(entry)
            summary = entry.get("summary", summary)
    found = {}
    if len(steps) > 2:
        found["step_ms"] = statistics.median(step["step_ms"] for step in steps[2:])
        found["tokens_per_second"] = statistics.median(
            step["tokens_per_second"] for step in steps[2:])
    peak = summary.get("memory", {}).get("peak", {})
    if "measured" in peak:
        found["peak_bytes"], found["predicted_bytes"] = peak["measured"], peak.get("predicted")
    return found


STATUS = {0: "ok", 1: "missed", 2: "refused"}


def sweep(given):
    done = done_before(given.results)
    with open(given.results, "a", encoding="utf-8") as results:
        for layout in lines_of(given.layouts):
            if layout in done:
                continue
            ranks, *options = layout.split()
            with tempfile.TemporaryDirectory() as directory:
                file = os.path.join(directory, "run.json")
                code, error, seconds = run(
                    [*given.mpirun.split(), "-n", ranks, given.program, *options, "--json", file],
                    given.limit)
                status = "hung" if code is None else STATUS.get(code, "crashed")
                record = {"layout": layout, "status": status, "seconds": round(seconds, 2)}
                if error and status != "ok":
                    record["error"] = error
                if status in ("ok", "missed") and os.path.exists(file):
                    record.update(measured(file))
                if given.predict and status == "ok":
                    plan = os.path.join(directory, "plan.json")
                    hidden = {"--steps", "--log-every"}  # of a run only
                    kept, skip = [], False
                    for word in options:
                        if skip or word in hidden or word == "--no-verify":
                            skip = word in hidden
                            continue
                        kept.append(word)
                    code, _, _ = run([given.program, *kept, "--explain-layout", "--gpus", ranks,
                                      "--hardware", given.predict, "--json", plan], given.limit)
                    if code == 0:
                        with open(plan, encoding="utf-8") as lines:
                            rows = [json.loads(line).get("row") for line in lines]
                        row = next(row for row in rows if row)
                        record["predicted_ms"] = round(1e3 * row["seconds"], 3)
            results.write(json.dumps(record) + "\n")
            results.flush()
            os.fsync(results.fileno())
            print(f"{status:8} {record.get('step_ms', 0):9.2f} ms  {layout}", flush=True)


def report(path):
    """How far predictions were off, and what the choice of the fastest by prediction would cost."""
    rows = [json.loads(line) for line in open(path, encoding="utf-8")]
    both = [row for row in rows if "predicted_ms" in row and "step_ms" in row]
    if not both:
        return
    errors = [abs(row["predicted_ms"] / row["step_ms"] - 1) for row in both]
    best = min(row["step_ms"] for row in both)
    chosen = min(both, key=lambda row: row["predicted_ms"])
    regret = chosen["step_ms"] / best - 1
    print(f"{len(both)} layouts: step time off by {100 * statistics.mean(errors):.1f} % on "
          f"average, {100 * max(errors):.1f} % at worst; regret {100 * regret:.1f} %")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("layouts")
    parser.add_argument("results")
    parser.add_argument("--program", default="build/cpu/09_5d_parallel")
    parser.add_argument("--mpirun", default=os.environ.get("MPIRUN", "mpirun"))
    parser.add_argument("--limit", type=float, default=120, help="seconds of a run")
    parser.add_argument("--predict", default="", help="FILE.json of --calibrate")
    given = parser.parse_args()
    sweep(given)
    report(given.results)


if __name__ == "__main__":
    sys.exit(main())
