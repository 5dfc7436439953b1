#!/usr/bin/env python3
"""Tests common/plots.py, where python3 has matplotlib: what it draws of files that are written
here, and of real runs where the programs are built (MPIRUN: what starts ranks)."""

import json
import os
import pathlib
import shlex
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "common"))
import plots  # noqa: E402

MIB = 2**20


def summary(ranks=2, tokens_per_second=1000.0, memory=None, communication=None, technique="bucket",
            machine=None, **options):
    configuration = {"chapter": "01_data_parallel", "ranks": ranks, "layout": {"dp": ranks},
                     "technique": technique, "model": "nano",
                     "options": {"--lr": 0.001, "--json": f"{ranks}.json"},
                     "global_batch": 8 * ranks, "seq": 128, "dtype": "fp32"}
    configuration["options"].update({"--" + key: value for key, value in options.items()})
    if machine:
        configuration["machine"] = machine
    speed = {"tokens_per_second": tokens_per_second,
             "tokens_per_second_per_device": tokens_per_second / ranks, "step_ms": 7.0}
    return {"summary": {"configuration": configuration, "memory": memory or {},
                        "communication": communication or {}, "speed": speed}}


class PlotsTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def file(self, name, *lines):
        path = self.folder / name
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return path

    def draw(self, what, *files):
        return plots.draw(what, files).axes

    def bars(self, axes):
        """The widths of the bars that are seen, from the top."""
        drawn = [bar for bar in axes.patches if bar.get_width()]
        return [bar.get_width()
                for bar in sorted(drawn, key=lambda bar: (bar.get_y(), bar.get_x()))]

    def names(self, axes):
        return [label.get_text().replace("\n", " ") for label in axes.get_yticklabels()]

    def legend(self, axes):
        return [text.get_text().replace("\n", " ") for text in axes.get_legend().get_texts()]

    def cannot_draw(self, message, what, *files):
        with self.assertRaisesRegex(ValueError, message):
            plots.draw(what, files)

    # ---- what is drawn ---------------------------------------------------------------------------
    def test_loss(self):
        one = self.file("one.json", {"step": 1, "loss": 5.5},
                        {"step": 2, "loss": 4.5, "val_loss": 4.75}, summary(lr=0.001))
        two = self.file("two.json", {"step": 1, "loss": 5.0}, summary(lr=0.003))
        axes, = self.draw("loss", one, two)
        self.assertEqual([list(map(tuple, line.get_xydata())) for line in axes.lines],
                         [[(1, 5.5), (2, 4.5)], [(2, 4.75)], [(1, 5.0)]])
        self.assertEqual(self.legend(axes), ["--lr 0.001", "validation", "--lr 0.003"])
        self.assertEqual(axes.figure._suptitle.get_text(), "01_data_parallel, bucket, nano, fp32, "
                         "2 ranks, 8 x 128 tokens a rank and step")

    def test_a_run_that_was_killed(self):
        killed = self.file("killed.json", {"step": 1, "loss": 5.5}, {"step": 2, "loss": 4.5})
        axes, = self.draw("loss", killed)
        self.assertEqual(list(axes.lines[0].get_ydata()), [5.5, 4.5])

    def test_throughput(self):
        axes, = self.draw("throughput", self.file("a.json", summary()),
                          self.file("b.json", summary(tokens_per_second=900.0, technique="ring")))
        self.assertEqual((self.names(axes), self.bars(axes)), (["bucket", "ring"], [500, 450]))
        self.assertEqual([text.get_text() for text in axes.texts], ["500", "450"])
        rows = [{"row": {"technique": "naive", "step_ms": 8.0,
                         "tokens_per_second_per_device": 128.0}},
                {"row": {"technique": "ring", "step_ms": 4.0,
                         "tokens_per_second_per_device": 256.0}}]
        axes, = self.draw("throughput", self.file("c.json", *rows))
        self.assertEqual((self.names(axes), self.bars(axes), axes.get_xlabel()),
                         (["naive", "ring"], [128, 256], "tokens/s a rank"))
        rows = [{"row": {"stage": stage, "offload": stage > 2, "parameter_bytes": 7,
                         "step_ms": stage + 1.0}} for stage in (2, 3)]
        axes, = self.draw("throughput", self.file("d.json", *rows))
        self.assertEqual((self.names(axes), self.bars(axes), axes.get_xlabel()),
                         (["stage 2", "stage 3, offload"], [3, 4], "ms a step"))

    def test_memory_of_runs(self):
        memory = {"parameters": {"predicted": 3 * MIB, "measured": 4 * MIB},
                  "workspace": {"measured": MIB}}
        axes, = self.draw("memory", self.file("a.json", summary(memory=memory)))
        self.assertEqual((self.names(axes), self.bars(axes)),
                         (["parameters", "workspace"], [3, 4, 1]))
        self.assertEqual(self.legend(axes), ["predicted", "measured"])
        axes, = self.draw("memory",
                          self.file("two.json", summary(memory=memory),
                                    summary(memory=memory, technique="ring")))
        self.assertEqual(self.names(axes),
                         ["bucket", "parameters", "workspace", "ring", "parameters", "workspace"])
        self.assertEqual(self.bars(axes), [3, 4, 1, 3, 4, 1])

    def test_memory_of_a_comparison(self):
        rows = [{"row": {"stage": 0, "parameter_bytes": 4 * MIB, "gathered_bytes": 0,
                         "sent_bytes": 9.0 * MIB, "step_ms": 1.0}},
                {"row": {"stage": 3, "parameter_bytes": MIB, "gathered_bytes": 2 * MIB,
                         "sent_bytes": 9.0 * MIB, "step_ms": 1.0}}]
        axes, = self.draw("memory", self.file("a.json", *rows, summary()))
        self.assertEqual((self.names(axes), self.bars(axes)), (["stage 0", "stage 3"], [4, 1, 2]))
        self.assertEqual(self.legend(axes), ["parameter", "gathered"])
        self.assertEqual([bar.get_x() for bar in axes.patches if bar.get_width()],
                         [0, 0, 1])  # end to end

    def test_exposed(self):
        run = summary(communication={"all-reduce": {"seconds": 0.02, "exposed_seconds": 0.005}})
        axes, = self.draw("exposed", self.file("a.json", run))
        self.assertEqual((self.names(axes), self.bars(axes)), (["all-reduce"], [20, 5]))
        row = {"technique": "ring", "communication_ms": 8.0, "exposed_ms": 3.0}
        axes, = self.draw("exposed", self.file("b.json", {"row": row}))
        self.assertEqual((self.names(axes), self.bars(axes)), (["ring"], [8, 3]))

    def test_scaling(self):
        files = [self.file(f"{ranks}.json", summary(ranks=ranks, tokens_per_second=speed))
                 for ranks, speed in ((4, 3000.0), (1, 1000.0), (2, 1800.0))]
        left, right = self.draw("scaling", *files)
        points = {line.get_label(): list(map(tuple, line.get_xydata())) for line in left.lines}
        self.assertEqual(points,
                         {"ideal": [(1, 1000), (2, 2000), (4, 4000)],
                          "measured": [(1, 1000), (2, 1800), (4, 3000)]})
        self.assertEqual([list(line.get_ydata()) for line in right.lines],
                         [[100, 100, 100], [100, 90, 75]])

    def test_scaling_of_techniques_on_machines(self):
        """Each is compared with its own machine's run on one rank."""
        file = self.file("all.json", {"origin": "here"},
                         summary(1, 1000.0, machine="A", technique="one"),
                         summary(1, 500.0, machine="B"),
                         summary(4, 2000.0, machine="A", technique="x"),
                         summary(4, 1000.0, machine="A", technique="y"),
                         summary(2, 750.0, machine="B", technique="x"))
        left, right = self.draw("scaling", file)
        self.assertEqual({line.get_label(): list(map(tuple, line.get_xydata()))
                          for line in right.lines},
                         {"ideal": [(1, 100), (2, 100), (4, 100)],
                          "x": [(1, 100), (2, 75), (4, 50)], "y": [(1, 100), (4, 25)]})
        self.cannot_draw("no run on 1", "scaling",
                         self.file("b.json", summary(1, machine="A"), summary(2, machine="B")))

    def test_the_measurements_that_are_kept(self):
        left, right = self.draw("scaling", ROOT / "01_data_parallel/pictures/scaling.json")
        drawn = {line.get_label().replace("\n", " "): [round(y, 1) for y in line.get_ydata()]
                 for line in right.lines}
        self.assertEqual(drawn["overlap: an all-reduce per parameter, during the backward"],
                         [100, 95.7, 97.7])
        self.assertEqual(drawn["naive: an all-reduce per parameter after the backward"],
                         [100, 92.1, 90.0])

    def test_runs_that_differ_in_nothing_are_called_by_their_files(self):
        axes, = self.draw("loss",
                          *[self.file(name, {"step": 1, "loss": 5.0}, summary())
                            for name in ("a.json", "b.json")])
        self.assertEqual(self.legend(axes),
                         [str(self.folder / name) for name in ("a.json", "b.json")])

    # ---- files -----------------------------------------------------------------------------------
    def test_what_cannot_be_drawn(self):
        run = self.file("run.json", {"step": 1, "loss": 5.0}, summary())
        for what in ("memory", "exposed", "scaling"):
            self.cannot_draw(f"run.json: nothing there to draw for {what}", what, run)
        (self.folder / "text").write_text("step 1 loss 5\n")
        self.cannot_draw("text: not what --json writes", "loss", self.folder / "text")
        self.cannot_draw("nothing there", "loss", self.file("empty.json"))
        self.assertEqual(self.command("loss", "none.json").returncode, 2)
        self.assertIn("none.json", self.command("loss", "none.json").stderr)
        self.assertEqual(len(self.command("memory", "run.json").stderr.splitlines()), 1)
        self.assertEqual(self.command("loss", "run.json", "-o", "x.none").returncode, 2)

    def command(self, *arguments, **environment):
        return subprocess.run([sys.executable, ROOT / "common/plots.py", *arguments],
                              cwd=self.folder, capture_output=True, text=True,
                              env={**os.environ, **environment})

    def test_the_files_it_writes(self):
        self.file("run.json", {"step": 1, "loss": 5.0}, summary())
        self.assertEqual(self.command("loss", "run.json", "-o", "loss.png").returncode, 0)
        self.assertEqual((self.folder / "loss.png").read_bytes()[:4], b"\x89PNG")
        self.assertEqual(self.command("loss", "run.json").returncode, 0)
        first = (self.folder / "loss.svg").read_text()
        self.assertIn("prefers-color-scheme:dark", first)
        for colour in plots.DARK:  # each is there in the way in which the dark theme looks for it
            self.assertTrue(f"fill: {colour}" in first or f"stroke: {colour}" in first, colour)
        self.assertIn(">01_data_parallel, bucket, nano, fp32", first)
        self.command("loss", "run.json")
        self.assertEqual((self.folder / "loss.svg").read_text(), first)  # the same bytes

    def test_without_matplotlib(self):
        (self.folder / "matplotlib.py").write_text("raise ImportError\n")
        done = self.command("loss", "run.json", PYTHONPATH=str(self.folder))
        self.assertEqual((done.returncode, done.stdout, len(done.stderr.splitlines())), (2, "", 1))
        self.assertIn("apt install python3-matplotlib", done.stderr)

    @unittest.skipUnless((ROOT / "build/cpu/02_zero").exists(), "not built")
    def test_real_runs(self):
        mpirun = shlex.split(os.environ.get("MPIRUN", "mpirun"))
        def run(name, ranks, *arguments):
            subprocess.run([*mpirun, "-n", str(ranks), ROOT / "build/cpu" / name, "--layers", "1",
                            "--steps", "2", "--json", self.folder / "run.json", *arguments],
                           check=True, stdout=subprocess.DEVNULL, cwd=ROOT)
            number = len(list(self.folder.iterdir()))
            return (self.folder / "run.json").rename(self.folder / f"{number}.json")
        plain, alone = run("02_zero", 2), run("02_zero", 1)
        compared = run("02_zero", 2, "--compare")
        lines = [json.loads(line) for line in plain.read_text().splitlines()]
        axes, = self.draw("loss", plain)
        self.assertEqual(list(axes.lines[0].get_ydata()), [line["loss"] for line in lines[:2]])
        axes, = self.draw("memory", plain)
        memory = lines[-1]["summary"]["memory"]
        self.assertEqual(self.names(axes), list(memory))
        self.assertEqual(self.bars(axes)[0] * MIB, memory["parameters"]["predicted"])
        axes, = self.draw("exposed", plain)
        self.assertEqual(self.names(axes), list(lines[-1]["summary"]["communication"]))
        left, right = self.draw("scaling", plain, alone)
        self.assertEqual(left.lines[1].get_ydata()[1],
                         lines[-1]["summary"]["speed"]["tokens_per_second"])
        for what in ("throughput", "memory", "exposed"):
            axes, = self.draw(what, compared)
            self.assertEqual(self.names(axes), [f"stage {stage}" for stage in range(4)])


if __name__ == "__main__":
    unittest.main()
