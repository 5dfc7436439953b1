#!/usr/bin/env python3
"""Clicks through the pages that the programs write with --html, and the grader with HTML=, in a
browser without a window, and looks for errors. MPIRUN: what starts ranks; PICTURES: a folder for
screenshots. Without chromium (apt install chromium) or the programs it says so and tests
nothing."""

import json
import os
import pathlib
import random
import re
import shlex
import subprocess
import sys
import tempfile
import unittest

import browser

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "classroom"))
import report  # noqa: E402
BUILT = ROOT / "build/cpu"
missing = ("there is no chromium (apt install chromium)" if not browser.PROGRAM else
           "the programs are not built (make)" if not (BUILT / "07_kernels").exists() else "")


@unittest.skipIf(missing, missing)
class PageTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        cls.browser = browser.Browser()
        cls.addClassCleanup(cls.browser.__exit__)

    def page(self, ranks, chapter, arguments):
        path = self.folder / f"{chapter}.html"
        launcher = shlex.split(os.environ.get("MPIRUN", "mpirun")) + ["-n", str(ranks)]
        subprocess.run([*launcher, BUILT / chapter, *arguments.split(), "--html", path],
                       check=True, stdout=subprocess.DEVNULL)
        self.assertNotIn("{{", path.read_text().split("<script type", 1)[0])
        self.browser.errors.clear()
        self.browser.open(path)
        return path

    def tearDown(self):
        self.assertEqual(self.browser.errors, [])

    def text(self, selector="body"):
        return self.browser.run(f"document.querySelector('{selector}').innerText")

    def headings(self):
        return self.browser.run("[...document.querySelectorAll('h2')].map(h => h.innerText)")

    def looks(self, path):
        """Light and dark, on a phone, printed: nothing is wider than the screen."""
        for name, width, dark in (("light", 1000, False), ("dark", 1000, True),
                                  ("phone", 360, False), ("phone-dark", 360, True)):
            self.browser.open(path, width, 800, dark)
            self.assertLessEqual(self.browser.run("document.documentElement.scrollWidth"), width)
            dark_paper = self.browser.run("getComputedStyle(document.body).backgroundColor")
            self.assertEqual(dark_paper, "rgb(13, 17, 23)" if dark else "rgb(255, 255, 255)")
            if "PICTURES" in os.environ:
                self.browser.screenshot(pathlib.Path(os.environ["PICTURES"],
                                                     f"{path.stem}-{name}.png"))
        pdf = pathlib.Path(os.environ.get("PICTURES", self.folder), path.stem + ".pdf")
        self.browser.print_pdf(pdf)
        self.assertEqual(pdf.read_bytes()[:5], b"%PDF-")

    def test_a_pipeline(self):
        path = self.page(2, "05_pipeline", "--layers 4 --micro-batch 1 --grad-accum 4 --steps 5")
        self.assertEqual(self.headings(), [
            "Compared with one device", "Memory of a rank", "Timeline of all ranks",
            "Communication of rank 0 in a step", "Loss", "Pictures", "More figures",
            "Configuration", "Memory by formula"])
        self.assertIn("trains as one plain device", self.text())
        self.assertNotIn("[object", self.text())
        # The timeline's rows and colours.
        ranks = self.browser.run("data.timeline.length")
        self.assertEqual(ranks, 2)
        roles = set(self.browser.run("[...new Set(readSpans(data.timeline).map(s => s.role))]"))
        self.assertLessEqual({"forward", "backward", "update", "communication"}, roles)
        self.assertEqual(self.browser.run("data.timeline.map(r => r.names.filter("
                                          "n => n.startsWith('step ')).length)"), [2, 2])
        whole = self.browser.run("document.querySelector('canvas').toDataURL()")
        seen = [whole]
        for button in ("#zoom-in", "#zoom-in", "#right", "#zoom-out"):
            self.browser.click(button)
            seen.append(self.browser.run("document.querySelector('canvas').toDataURL()"))
        self.assertEqual(len(set(seen)), len(seen))  # each shows a different part
        self.browser.click("#whole")
        self.assertTrue(self.browser.run("document.querySelector('canvas').toDataURL()") == whole)
        x = self.browser.run("""(() => { const all = readSpans(data.timeline);
            const last = Math.max(...all.map(s => s.end)), s = all.find(s => s.rank === 1 &&
                s.row === "compute" && s.role === "backward");
            return 44 + (document.querySelector("canvas").clientWidth - 44) *
                (s.begin + s.end) / 2 / last; })()""")
        self.browser.click("#timeline", x, 22 + 56 + 25)
        self.assertRegex(self.text("#told"), r"rank 1, compute: .* (ms|µs)")
        # Another rank's memory is chosen, a table is sorted, an element is opened.
        shown = self.text("section:has(#memory-rank)")
        self.browser.run("""(() => { const s = document.getElementById("memory-rank"); s.value = 1;
            s.dispatchEvent(new Event("change")); })()""")
        self.assertNotEqual(self.text("section:has(#memory-rank)"), shown)
        self.browser.run("document.querySelectorAll('summary').forEach(s => s.click())")
        self.assertIn("--grad-accum", self.text())
        self.assertEqual(self.browser.run("document.querySelectorAll('img').length"), 1)
        self.assertGreater(self.browser.run("document.querySelector('img').naturalWidth"), 500)
        self.looks(path)

    def test_a_comparison(self):
        self.page(2, "02_zero", "--compare --layers 1 --seq 32 --steps 3")
        self.assertEqual(self.headings()[:2], ["Tables", "Pictures"])
        cells = "[...document.querySelectorAll('tbody tr')].map(r => r.cells[0].innerText)"
        self.assertEqual(self.browser.run(cells), ["0", "1", "1", "2", "3"])  # plain, too
        self.browser.click("th button")
        self.assertEqual(self.browser.run(cells), ["3", "2", "1", "1", "0"])

    def test_experts(self):
        self.page(2, "06_expert_parallel", "--steps 3 --micro-batch 1 --no-verify")
        self.assertIn("Pictures", self.headings())
        self.assertIn("imbalance", self.text())

    def test_kernels(self):
        self.page(1, "07_kernels", "--kernel transpose_naive --kernel transpose_padded")
        self.assertIn("transpose_padded", self.text("tbody"))

    # ---- the formulas of memory ------------------------------------------------------------------
    def test_formulas_of_a_run_begin_with_its_settings(self):
        self.page(2, "05_pipeline", "--layers 4 --micro-batch 3 --grad-accum 4 --steps 2 "
                  "--no-verify --schedule afab --dtype bf16")
        begin = self.browser.run("""Object.fromEntries(data.formulas.settings.map(
            ([, name, value]) => [name, value]))""")
        expected = {"L": 4, "h": 128, "a": 8, "K": 4, "h_ff": 384, "v": 256, "s": 128, "b": 3,
                    "m": 4, "e": 2, "g": 2, "k": 12, "pp": 2, "dp": 1, "tp": 1, "schedule": 0}
        self.assertEqual({name: begin[name] for name in expected}, expected)
        # Beside the run's own prediction, of rank 0.
        own = {row["name"]: row["bytes"] for row in self.browser.run("""Object.entries(
            summary.memory_by_rank[0]).map(([name, of]) => ({name, bytes: of.predicted ?? 0}))""")}
        shown = self.browser.run(BARS + "bars(0)")
        self.assertEqual(own["parameters"], shown["parameters"])
        self.assertEqual(own["optimizer"], shown["states"])
        self.assertAlmostEqual(own["activations, peak"] / (shown["activations"] + shown["work"]), 1,
                               delta=0.1)

    def test_formulas_in_the_browser_and_in_cpp_are_the_same(self):
        path = self.page(1, "00_single_gpu", "--demo memory --model llama-3-8b --dtype bf16")
        table = self.browser.run("data.formulas")
        pick, layouts = random.Random(3), []
        while len(layouts) < 300:
            layout = {}
            for _, name, begin, choices, _ in table["settings"]:
                words = re.split("[|]" if "=" in choices else " ", choices)
                values = [float(word.split("=")[0]) for word in words if word] or [begin]
                stays = 0.8 if name in ("tp", "cp", "ep", "E", "h", "a", "K", "D") else 0.4
                layout[name] = begin if pick.random() < stays else pick.choice(values)
            layout["r"] = pick.choice([0, layout["pp"] - 1])
            layouts.append(layout)
        seen = self.browser.run(BARS + f"""{json.dumps(layouts)}.map((layout) => {{
            document.getElementById("memory-formulas").set(layout);
            return bars(layout.r); }})""")
        computed = self.computed(layouts)
        for layout, shown, row in zip(layouts, seen, computed, strict=True):
            with self.subTest(**layout):
                self.assertEqual(shown.pop("refused", None), row.get("refused"))
                for name, value in shown.items():
                    self.assertAlmostEqual(value, row[name], delta=1e-12 * abs(row[name]))
        self.assertGreater(sum("refused" not in row for row in computed), 100)
        self.assertGreater(sum("refused" in row for row in computed), 50)
        self.looks(path)

    def computed(self, layouts):
        """What C++ says of them."""
        rows = []
        for first in range(0, len(layouts), 100):
            texts = [",".join(f"{name}={value:.0f}" for name, value in layout.items())
                     for layout in layouts[first:first + 100]]
            path = self.folder / "memory.jsonl"
            launcher = shlex.split(os.environ.get("MPIRUN", "mpirun")) + ["-n", "1"]
            subprocess.run([*launcher, BUILT / "00_single_gpu", "--demo", "memory", "--settings",
                            ";".join(texts), "--json", path], check=True,
                           stdout=subprocess.DEVNULL)
            rows += [line["row"] for line in map(json.loads, path.read_text().splitlines())
                     if "row" in line]
        return rows

    def test_sliders(self):
        self.page(1, "00_single_gpu", "--demo memory --model llama-3-8b --dtype bf16 --settings "
                  "dp=8")
        before = self.browser.run(BARS + "bars(0)")
        self.assertEqual(self.text("h1"), "What a rank holds")
        move = """(() => { const c = document.querySelector("[name=%s]"); c.value = %s;
            c.dispatchEvent(new Event(c.type === "range" ? "input" : "change")); })()"""
        self.browser.run(move % ("zero", 1))
        after = self.browser.run(BARS + "bars(0)")
        self.assertEqual(after["states"], before["states"] / 8)
        self.assertIn("zero=1", self.text("#memory-formulas"))
        self.browser.run(move % ("pp", 2))  # of 1, 2, 4, ...
        self.assertEqual(self.browser.run("document.querySelectorAll('.bars .pair').length"), 8)
        self.assertIn("N = copied + with_experts", self.browser.run(
            "document.getElementById('memory-formulas').textContent"))
        self.browser.run(move % ("a", 0))  # one head, which the key-value heads do not divide
        self.assertEqual(self.browser.run(BARS + "bars(0)"), {
            "refused": "The key-value heads must divide the attention heads."})
        self.assertFalse(self.text("#memory-formulas").count("with the numbers filled in"))
        for model in ("Llama-3-8B", "Llama-3-70B", "Llama-3-405B", "DeepSeek-V3"):
            self.browser.run(f"[...document.querySelectorAll('button')].find("
                             f"b => b.innerText === '{model}').click()")
            self.assertGreater(self.browser.run(BARS + "bars(0).parameters"), 1e9)

    # ---- grades ----------------------------------------------------------------------------------
    def test_grades_of_a_student(self):
        path = self.folder / "grades.html"
        report.write(path, {"exercises": [grade("01.1", 10, 10), grade("02.1", 4, 10)],
                            "points": 14, "of": 20, "sources": "a" * 64})
        self.browser.errors.clear()
        self.browser.open(path)
        self.assertIn("14 of 20", self.text(".tiles"))
        self.assertIn("1 of 2", self.text(".tiles"))
        # Solved exercises are folded up. Others say once, in the grader's words, why they are not
        # solved.
        self.assertEqual(self.browser.run("[...document.querySelectorAll('details')].map("
                                          "d => d.open)"), [False, True])
        self.assertEqual(self.text("details[open]").count("A rank waits </script><b> for ever"), 1)
        self.assertEqual(self.browser.run("document.querySelectorAll('b b').length"), 0)
        self.browser.click("summary")
        self.assertIn("equals all_reduce", self.text("details"))
        self.looks(path)

    def test_grades_of_a_class(self):
        path = self.folder / "class.html"
        ids = [f"0{chapter}.{number}" for chapter in range(9) for number in (1, 2)]
        report.write(path, {"Ada": [grade(i, 10, 10) for i in ids],
                            "Grace <b>": [grade(i, int(i[1]), 10) for i in ids[3:]], "Linus": []})
        self.browser.errors.clear()
        self.browser.open(path)
        row = "[...document.querySelectorAll('#class tbody tr')[{}].cells].map(c => c.innerText)"
        self.assertEqual(self.browser.run(row.format(0)), ["Ada", *["10"] * 18, "180"])
        self.assertEqual(self.browser.run(row.format(1))[:6],
                         ["Grace <b>", "–", "–", "–", "1", "2"])
        self.assertEqual(self.browser.run(row.format(2))[-1], "0")
        self.assertIn("Nothing was handed in", self.text())
        exercises = "[...document.querySelectorAll('section:nth-of-type(2) tbody tr')][3].innerText"
        self.assertRegex(self.browser.run(exercises), r"01\.2.*\s2\s+1\s+5\.5\s+10")
        self.browser.click("#class tbody tr:nth-child(2) a")
        self.assertGreater(self.browser.run("scrollY"), 100)
        self.looks(path)


# The bars of a rank, ours and the book's, by name; or why there are none.
BARS = """function bars(rank) {
    const bad = document.querySelector(".bars .bad");
    if (bad) return {refused: bad.textContent};
    const pairs = [...document.querySelectorAll(".bars .pair")];
    const at = pairs.findIndex((pair) => pair.textContent.startsWith(`rank ${rank}:`));
    return Object.fromEntries(pairs.slice(at, at + 2).flatMap((pair) =>
        [...pair.querySelectorAll("span")].map((s) => [s.dataset.name, Number(s.dataset.bytes)])));
}
"""


def grade(exercise, points, of):
    """As grade.py writes it."""
    line = {"what": "equals all_reduce, 2 ranks", "ok": True, "predicted": "3 tests",
            "yours": "3 pass", "reference": "", "said": ""}
    wrong = {**line, "ok": False, "said": "A rank waits </script><b> for ever", "of": of}
    return {"exercise": exercise, "title": "The ring's all-gather", "kind": "code",
            "points": points, "of": of, "said": [], "solved": points == of, "seconds": 7.25,
            "lines": [line, {**line, "points": points, "of": of}] if points == of
            else [{**wrong, "points": points}, {**wrong, "points": 0}], "sha256": "5" * 64}


if __name__ == "__main__":
    if missing:
        print(f"page_test.py: nothing tested: {missing}")
        sys.exit(0)
    unittest.main()
