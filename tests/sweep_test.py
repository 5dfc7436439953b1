#!/usr/bin/env python3
"""What tests/bench/sweep.py promises: it survives what its runs do, ends them, and goes on where it
was. The runs are of a program made here, which does what its options say, under a launcher that
leaves behind whatever it has started."""

import contextlib
import io
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "bench"))
import sweep  # noqa: E402

# Like MPICH's launcher this gives each rank a session of its own; the last exit code counts.
LAUNCHER = """
import subprocess, sys
ranks = [subprocess.Popen(sys.argv[3:] + [str(rank)], start_new_session=True)
         for rank in range(int(sys.argv[2]))]
sys.exit(ranks[-1].wait() % 256)
"""
PROGRAM = """
import json, os, signal, sys, time
words = sys.argv[1:]
def write(path, *entries):
    with open(path, "w") as file:
        file.writelines(json.dumps(entry) + "\\n" for entry in entries)
def value(name):
    return words[words.index(name) + 1]
with open(os.environ["STARTED"], "a") as file:
    file.write(" ".join(words) + "\\n")
if "--calibrate" in words:
    write(value("--calibrate"), {"name": "this"})
elif "--explain-layout" in words:
    assert os.path.exists(value("--hardware"))
    write(value("--json"), {"row": {"seconds": float(value("--predicted")) / 1e3,
                                    "memory_bytes": 900, "process_bytes": 1100}})
else:
    does, rank = value("--do"), words[-1]
    if does == "hang" or does == "crash" and rank == "0":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(100)
    if does == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if does == "refused":
        print("\\n--tp 3 does not divide\\nmore", file=sys.stderr)
        sys.exit(2)
    block = bytearray(50_000_000) if does == "large" else b""
    time.sleep(1 if block else 0)
    if rank == "0":
        took = float(value("--takes")) if "--takes" in words else 10
        write(value("--json"),
              *({"step": i, "step_ms": 1000 if i < 2 else took, "tokens_per_second": 5}
                for i in range(5)),
              {"summary": {"memory": {"peak": {"measured": 1000}, **(
                  {"context": {"measured": 70}, "fragmentation": {"measured": 5}}
                  if "--gpu" in words else {})}}})
    sys.exit(1 if does == "missed" else 0)
"""


class SweepTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        (self.folder / "launcher.py").write_text(LAUNCHER)
        (self.folder / "program.py").write_text(PROGRAM)
        os.environ["STARTED"] = str(self.folder / "started")
        (self.folder / "started").touch()
        sweep.processes.PATIENCE = 0.2

    def command(self, *options):
        """sweep.py's words. The program is Python itself, whose first option is its program."""
        wrapper = self.folder / "mpirun"
        wrapper.write_text(
            f"#!/bin/sh\nn=$2 p=$3\nshift 3\nexec {sys.executable} {self.folder}/launcher.py "
            f'-n $n $p {self.folder}/program.py "$@"\n')
        wrapper.chmod(0o755)
        return [str(self.folder / "layouts"), str(self.folder / "results"),
                "--program", sys.executable, "--mpirun", str(wrapper), *options]

    def sweep(self, layouts, *options):
        """Returns the results, and what was printed."""
        (self.folder / "layouts").write_text(layouts)
        printed = io.StringIO()
        words, sys.argv = sys.argv, ["sweep.py", *self.command(*options)]
        self.addCleanup(signal.signal, signal.SIGINT, signal.getsignal(signal.SIGINT))
        try:
            with contextlib.redirect_stdout(printed):
                sweep.main()
        finally:
            sys.argv = words
        return self.results(), printed.getvalue()

    def results(self):
        return [json.loads(line) for line in (self.folder / "results").read_text().splitlines()]

    def started(self):
        return (self.folder / "started").read_text().splitlines()

    def left_behind(self):
        return subprocess.run(["pgrep", "-f", str(self.folder / "program.py")],
                              stdout=subprocess.PIPE, check=False).stdout.split()

    def test_every_end_gets_a_line_and_the_sweep_goes_on(self):
        results, _ = self.sweep("# a comment\n\n2 --do crash\n1 --do hang # too long\n"
                                "1 --do refused\n1 --do missed\n2  --do  ok\n", "--limit", "5")
        self.assertEqual([(r["layout"], r["status"]) for r in results],
                         [("2 --do crash", "crashed"), ("1 --do hang", "hung"),
                          ("1 --do refused", "refused"), ("1 --do missed", "missed"),
                          ("2 --do ok", "ok")])
        self.assertEqual(results[2]["error"], "--tp 3 does not divide")
        self.assertEqual(results[4]["step_ms"], 10)  # the first two do not count
        self.assertEqual(results[4]["tensor_bytes"], 1000)
        self.assertGreaterEqual(results[1]["seconds"], 5)  # rounded to 10 ms
        self.assertNotIn("step_ms", results[1])
        self.assertEqual(self.left_behind(), [])

    def test_an_interrupted_sweep_ends_its_run_and_goes_on_there(self):
        (self.folder / "layouts").write_text("1 --do ok\n2 --do hang\n1 --do missed\n")
        path = pathlib.Path(sweep.__file__)
        with subprocess.Popen([sys.executable, path, *self.command()], stdout=subprocess.DEVNULL,
                              stderr=subprocess.PIPE, text=True) as process:
            while len(self.started()) < 3:
                self.assertIsNone(process.poll())
                time.sleep(0.02)
            process.terminate()
            self.assertIn("goes on here", process.communicate()[1])
        self.assertEqual(self.left_behind(), [])
        self.assertEqual([r["layout"] for r in self.results()], ["1 --do ok"])
        # A machine that stops in the middle of a line leaves a part of the line.
        with open(self.folder / "results", "a", encoding="utf-8") as file:
            file.write('{"layout": "2 --do ha')
        results, _ = self.sweep("1 --do ok\n2 --do hang\n1 --do missed\n", "--limit", "5")
        self.assertEqual([r["status"] for r in results], ["ok", "hung", "missed"])
        self.assertEqual(sum("--do ok" in line for line in self.started()), 1)
        again = len(self.started())
        self.sweep("1 --do ok\n2 --do hang\n1 --do missed\n")
        self.assertEqual(len(self.started()), again)

    def test_the_memory_of_a_process_is_seen(self):
        (small, large, gpu), _ = self.sweep("1 --do ok\n2 --do large\n1 --do ok --gpu\n")
        self.assertEqual(gpu["process_bytes"], 1075)
        self.assertGreater(large["process_bytes"], 50_000_000)
        self.assertLess(small["process_bytes"], 50_000_000)

    def test_predictions_stand_beside_what_was_measured(self):
        results, printed = self.sweep(
            "2 --do ok --takes 10 --predicted 11 --steps 6 --no-verify --dtype bf16 "
            "--data f.txt\n"
            "2 --do ok --takes 8 --predicted 12 --node-size 1\n", "--predict", "--rounds", "2")
        self.assertEqual([(r["round"], r["predicted_ms"]) for r in results],
                         [(1, 11), (1, 12), (2, 11), (2, 12)])
        self.assertEqual(results[0]["predicted_process_bytes"], 1100)
        asked = [line for line in self.started() if "--explain-layout" in line]
        self.assertIn("--dtype bf16", asked[0])
        for run_option in ("--steps", "6", "--no-verify", "--data", "f.txt"):
            self.assertNotIn(run_option, asked[0].split())
        measured = [line for line in self.started() if "--calibrate" in line]
        self.assertEqual(len(measured), 2 * 2 * 2)  # rounds, kinds of machine, ranks
        self.assertIn("step_ms: off by 30.0 % on average, 50.0 % at worst", printed)
        self.assertIn("tensor_bytes: off by 10.0 % on average", printed)
        self.assertIn("takes 25.0 % longer", printed)


if __name__ == "__main__":
    unittest.main()
