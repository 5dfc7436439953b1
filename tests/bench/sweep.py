#!/usr/bin/env python3
"""Runs many layouts, one after the other, and survives what goes wrong.

    tests/bench/sweep.py LAYOUTS RESULTS [--program P] [--limit SECONDS] [--rounds N] [--predict]

LAYOUTS has a line for each run, "RANKS OPTIONS ..."; empty lines and what follows a # are skipped.
RESULTS gets a JSON object a line, as soon as a run has ended. A sweep that was interrupted goes on
where it was if it is started again: what stands in RESULTS is not run a second time. With --rounds
the whole list is run so many times, so that noise which comes and goes meets all layouts alike.

    layout, round   which run it was; rounds count from 1
    status          ok         it ended with 0
                    missed     1: verify, memory or communication are not as they should be
                    refused    2: it does not fit, or the options exclude each other
                    crashed    any other end, also by a signal
                    hung       it ran longer than the limit, and was ended
    seconds         of the whole run
    error           the first line on stderr, if the status is not ok
    step_ms, tokens_per_second    medians of the steps after the second
    tensor_bytes    the peak of rank 0's tensors
    process_bytes   the peak of what a rank's process holds: on a CPU its resident memory, of the
                    rank that holds most; on a GPU, of rank 0, tensors, CUDA's context and fragments
    elsewhere       the share of the machine's cores that other programs took meanwhile, 0 to 1

With --predict every round begins with --calibrate, on as many ranks as each run has, and a line has
besides: predicted_ms, predicted_tensor_bytes, predicted_process_bytes, by --explain-layout. At the
end all are compared, by the medians of each layout's quieter half of rounds: those in which other
programs took least of the cores, from the calibration or the run.
"""
import argparse
import collections
import json
import os
import pathlib
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time

from sweep_report import report

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import processes  # noqa: E402

STATUS = {0: "ok", 1: "missed", 2: "refused"}
# Options that only a run reads, and whether a value follows: --explain-layout refuses them. The
# second list has those that --calibrate reads, too.
OF_A_RUN = {"--steps": True, "--log-every": True, "--peak-tflops": True, "--data": True,
            "--seed": True, "--no-verify": False}
OF_THE_MACHINE = ("--node-size", "--inter-gbps", "--dtype", "--recipe")


def lines_of(path):
    with open(path, encoding="utf-8") as file:
        for line in file:
            line = line.split("#")[0].strip()
            if line:
                yield " ".join(line.split())


def done_before(path):
    """The runs that stand in the results. A last line that was cut off is dropped."""
    done = set()
    if not os.path.exists(path):
        return done
    whole = []
    with open(path, encoding="utf-8") as file:
        for line in file:
            try:
                record = json.loads(line)
                done.add((record["layout"], record["round"]))
            except (ValueError, KeyError, TypeError):
                break
            whole.append(line.rstrip("\n") + "\n")
    with open(path + ".new", "w", encoding="utf-8") as file:
        file.writelines(whole)
    os.replace(path + ".new", path)
    return done


class ResidentPeak:
    """The highest VmHWM, in bytes, of a run's processes that execute the program. As soon as all
    ranks are known, it looks at nothing else, so as not to take their time."""
    def __init__(self, run, program, ranks):
        self.run, self.program, self.ranks = run, program, ranks
        self.known, self.bytes = set(), 0

    def look(self):
        if len(self.known) < self.ranks:
            self.known = set(filter(self.executes, self.run.processes()))
        for process in self.known:
            try:
                with open(f"/proc/{process}/status", encoding="utf-8") as file:
                    for line in file:
                        if line.startswith("VmHWM:"):
                            self.bytes = max(self.bytes, 1024 * int(line.split()[1]))
            except OSError:  # it has ended
                pass

    def executes(self, process):
        try:
            return os.path.samefile(f"/proc/{process}/exe", self.program)
        except OSError:
            return False


def busy_seconds():
    """Of all cores together since the start of the machine: of all programs; and of the children
    that this one has seen end, with their children."""
    with open("/proc/stat", encoding="utf-8") as file:
        user, nice, system, _, _, *interrupts = map(int, file.readline().split()[1:9])
    own = resource.getrusage(resource.RUSAGE_CHILDREN)
    return ((user + nice + system + sum(interrupts)) / os.sysconf("SC_CLK_TCK"),
            own.ru_utime + own.ru_stime)


# code: the exit code, None if it hung; error: the first line on stderr; the others as in RESULTS.
Ended = collections.namedtuple("Ended", "code error seconds process_bytes elsewhere")


def run(command, program, ranks, limit):
    with tempfile.TemporaryFile("w+") as errors:
        begin, code, (busy, own) = time.monotonic(), None, busy_seconds()
        # Also ends processes that a crashed rank has left behind, even if this sweep is
        # interrupted.
        with processes.Run(command, stdout=subprocess.DEVNULL, stderr=errors,
                           start_new_session=True) as started:
            peak = ResidentPeak(started, program, ranks)
            while code is None and time.monotonic() - begin < limit:
                peak.look()
                code = started.wait(0.1)
            seconds = time.monotonic() - begin
        errors.seek(0)
        words = [line.strip() for line in errors if line.strip()]
        busy_, own_ = busy_seconds()
        elsewhere = (busy_ - busy - own_ + own) / (os.cpu_count() * (time.monotonic() - begin))
        return Ended(code, words[0][:300] if words else "", seconds, peak.bytes,
                     min(max(elsewhere, 0), 1))


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
        for name in ("step_ms", "tokens_per_second"):
            found[name] = statistics.median(step[name] for step in steps[2:])
    memory = summary.get("memory", {})
    peak = memory.get("peak", {})
    if "measured" in peak:
        found["tensor_bytes"] = peak["measured"]
    overhead = [memory[name]["measured"] for name in ("context", "fragmentation") if name in memory]
    if overhead:
        found["process_bytes"] = peak["measured"] + sum(overhead)
    return found


class Predictions:
    """Of a round: it measures the hardware once for each number of ranks and kind of machine."""
    def __init__(self, given, directory):
        self.given, self.directory, self.files = given, directory, {}

    def hardware(self, ranks, options):
        words = []
        for name in OF_THE_MACHINE:
            if name in options:
                words += [name, options[options.index(name) + 1]]
        key = (ranks, *words)
        if key not in self.files:
            file = os.path.join(self.directory, f"hardware{len(self.files)}.json")
            ended = run([*self.given.mpirun.split(), "-n", ranks, self.given.program,
                         "--calibrate", file, *words], self.given.program, int(ranks), 600)
            if ended.code != 0:
                sys.exit(f"--calibrate on {ranks} ranks: {ended.error}")
            self.files[key] = file, ended.elsewhere
        return self.files[key]

    def of(self, ranks, options):
        kept, words = [], iter(options)
        for word in words:
            if word not in OF_A_RUN:
                kept.append(word)
            elif OF_A_RUN[word]:
                next(words)
        hardware, elsewhere = self.hardware(ranks, options)
        file = os.path.join(self.directory, "plan.json")
        ended = run([*self.given.mpirun.split(), "-n", "1", self.given.program, *kept,
                     "--explain-layout", "--gpus", ranks, "--hardware", hardware, "--json", file],
                    self.given.program, 1, 60)
        if ended.code != 0:
            return {"not_predicted": ended.error}
        with open(file, encoding="utf-8") as lines:
            row = next(entry["row"] for entry in map(json.loads, lines) if "row" in entry)
        return {"predicted_ms": round(1e3 * row["seconds"], 3),
                "predicted_tensor_bytes": row["memory_bytes"],
                "predicted_process_bytes": row["process_bytes"],
                "calibrated_elsewhere": round(elsewhere, 3)}


def one(given, layout, number, predictions):
    """Runs a layout; returns its record."""
    ranks, *options = layout.split()
    with tempfile.TemporaryDirectory() as directory:
        file = os.path.join(directory, "run.json")
        predicted = predictions.of(ranks, options) if predictions else {}
        ended = run([*given.mpirun.split(), "-n", ranks, given.program, *options, "--json", file],
                    given.program, int(ranks), given.limit)
        status = "hung" if ended.code is None else STATUS.get(ended.code, "crashed")
        record = {"layout": layout, "round": number, "status": status,
                  "seconds": round(ended.seconds, 2), "elsewhere": round(ended.elsewhere, 3)}
        if ended.error and status != "ok":
            record["error"] = ended.error
        if status in ("ok", "missed") and os.path.exists(file):
            record.update({"process_bytes": ended.process_bytes} | measured(file))
        return record | predicted


def sweep(given):
    done = done_before(given.results)
    with open(given.results, "a", encoding="utf-8") as results:
        for number in range(1, given.rounds + 1):
            with tempfile.TemporaryDirectory() as directory:
                predictions = Predictions(given, directory) if given.predict else None
                for layout in lines_of(given.layouts):
                    if (layout, number) in done:
                        continue
                    record = one(given, layout, number, predictions)
                    results.write(json.dumps(record) + "\n")
                    results.flush()
                    os.fsync(results.fileno())
                    print(f"{record['status']:8} {record.get('step_ms', 0):9.2f} ms  {layout}",
                          flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("layouts")
    parser.add_argument("results")
    parser.add_argument("--program", default="build/cpu/09_5d_parallel")
    parser.add_argument("--mpirun", default=os.environ.get("MPIRUN", "mpirun"))
    parser.add_argument("--limit", type=float, default=120, help="seconds of a run")
    parser.add_argument("--rounds", type=int, default=1, help="how often the list is run")
    parser.add_argument("--predict", action="store_true",
                        help="calibrate, and compare with the planner's predictions")
    given = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit("interrupted; the same command goes on here"))
    sweep(given)
    report(given.results)


if __name__ == "__main__":
    sys.exit(main())
