#!/usr/bin/env python3
"""The clinic's cases without running them: what makes each sick still fits the source, its hints
tell no cause, and an answer is judged by the figure that it names. Then the comparison of two runs'
checksums. (Cases that run: make prove ONLY=clinic.)"""

import contextlib
import io
import json
import pathlib
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "classroom"), str(ROOT / "common/lab/report")]
import checksums  # noqa: E402
import clinic  # noqa: E402
import clinic_answers  # noqa: E402
from places import Wrong  # noqa: E402


class Cases(unittest.TestCase):
    def test_there_are_ten_and_each_is_whole(self):
        cases, causes = clinic.all_cases(), clinic.causes()
        self.assertEqual(len(cases), 10)
        self.assertEqual(len(causes), 20)
        self.assertEqual(len({one.sealed()["cause"] for one in cases}), 10)
        for one in cases:
            with self.subTest(case=one.number):
                sealed = one.sealed()
                self.assertIn(sealed["cause"], causes)
                self.assertEqual(set(sealed["hints"]), set(clinic_answers.POINTS))
                self.assertTrue(sealed["solution"].strip())
                for file, text in one.patched().items():  # raises if a text is not there, once
                    self.assertNotEqual(text, (ROOT / file).read_text(encoding="utf-8"))

    def test_nothing_in_plain_text_tells_a_cause(self):
        for one in clinic.all_cases():
            sealed = one.sealed()
            said = [*sealed["hints"].values(), one.title, one.words, *one.runs]
            for words in said:
                with self.subTest(case=one.number, words=words):
                    self.assertNotIn(sealed["cause"], words)
                    self.assertNotIn(clinic.causes()[sealed["cause"]], words)
                    self.assertNotRegex(words, rf"rank {sealed['rank'][0]}\b")
            packed = (clinic.CASES / f"{one.number}.case").read_text()
            self.assertNotIn(sealed["cause"], packed)

    def test_a_case_that_there_is_not(self):
        for wanted in "0", "11", "x", "-1":
            with self.assertRaisesRegex(Wrong, "one of 1 to 10"):
                clinic.case(wanted)


class Judging(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.one = clinic.case("2")
        self.one.folder = pathlib.Path(self.folder.name)
        lines = [{"step": 1, "loss": 5.5}, {"step": 2, "loss": 4.5},
                 {"by_rank": {"step": 1, "rank": 1, "ms": {"read data": 7}}},
                 {"summary": {"times_by_rank": [{"forward": {"ms": 2.5}}]}}]
        lines += [{"row": {"table": "in_flight", "rank": rank, "micro_batches": 4.0 - rank}}
                  for rank in (0, 1)] + [{"row": {"table": "other", "rank": 1}}]
        (self.one.folder / "run.json").write_text("\n".join(map(json.dumps, lines)))

    def tearDown(self):
        self.folder.cleanup()

    def test_a_figure_is_found(self):
        for figure, value in [
                (["run.json", "step", "step=2", "loss"], 4.5),
                (["run.json", "by_rank", "step=1", "rank=1", "ms", "read data"], 7),
                (["run.json", "summary", "times_by_rank", "0", "forward", "ms"], 2.5),
                (["run.json", "row", "table=in_flight", "rank=1", "micro_batches"], 3)]:
            self.assertEqual(clinic_answers.found_at(self.one, figure), value)

    def test_a_figure_that_is_not_there(self):
        for figure, why in [(["run.json", "step", "loss"], "2 lines of run.json are meant"),
                            (["run.json", "step", "step=2", "lr"], "there is no lr"),
                            (["run.json", "summary", "times_by_rank", "1", "ms"], "there is no 1"),
                            (["../2/run.json", "step", "step=2", "loss"], "not a JSON file"),
                            (["other.json", "step", "step=2", "loss"], "not a JSON file"),
                            (["run.json"], "a list of texts")]:
            with self.assertRaisesRegex(Wrong, why):
                clinic_answers.found_at(self.one, figure)

    def test_a_value_that_does_not_stand_there(self):
        said = {"figure": ["run.json", "step", "step=2", "loss"], "value": 5.5}
        right, why = clinic_answers.is_right(self.one, "figure", said, self.one.sealed())
        self.assertFalse(right)
        self.assertIn("4.5", why)

    def test_answers_that_are_none(self):
        for text in "rank = ", "", "rank = 3\nstep = 'x'\ncause = 5\nfigure = 7\nvalue = []\n":
            (self.one.folder / "answer.toml").write_text(text)
            result = clinic_answers.graded(self.one)
            self.assertEqual(result["points"], 0, text)
            self.assertTrue(all(line["said"] for line in result["lines"]))

    def test_answers_are_kept_until_the_case_changes(self):
        blank = clinic_answers.form(self.one)
        path = self.one.folder / "answer.toml"
        self.assertEqual(clinic_answers.kept(self.one), (blank, ""))
        path.write_text(blank.replace('rank = ""', 'rank = "3"'))
        self.assertEqual(clinic_answers.kept(self.one), (path.read_text(), ""))
        self.one.public = self.one.public | {"words": "Something else is said."}
        self.assertEqual(clinic_answers.kept(self.one),
                         (clinic_answers.form(self.one), path.read_text()))

    def test_a_form_that_nobody_has_filled_in(self):
        (self.one.folder / "answer.toml").write_text(clinic_answers.form(self.one))
        self.assertFalse(clinic_answers.is_answered(self.one))
        (self.one.folder / "answer.toml").write_text('rank = "3"\n')
        self.assertTrue(clinic_answers.is_answered(self.one))


class TwoRuns(unittest.TestCase):
    def compared(self, change):
        """What checksums.py says of two runs of two steps, the second of which `change`s."""
        paths = []
        with tempfile.TemporaryDirectory() as folder:
            for name in "one", "other":
                lines = []
                for step in 1, 2:
                    for rank in 0, 1:
                        tensor = {"hash": f"{step}{rank}", "norm": 1.5}
                        line = {"step": step, "rank": rank,
                                "data": {"0": {"rows": [step], "tokens": "a"}},
                                "own_gradients": {"w": tensor}, "weights": {"w": dict(tensor)}}
                        if name == "other":
                            change(line)
                        lines.append(json.dumps({"checksums": line}))
                paths.append(f"{folder}/{name}.json")
                pathlib.Path(paths[-1]).write_text("\n".join(lines))
            with contextlib.redirect_stdout(io.StringIO()) as said:
                code = checksums.main(paths)
        return code, said.getvalue()

    def test_equal_runs(self):
        self.assertEqual(self.compared(lambda line: None), (0, "equal: 4 ranks' steps\n"))

    def test_the_earliest_difference_is_named(self):
        def change(line):
            if line["step"] == 2:
                line["weights"]["w"]["hash"] = "x"
            if line["step"] == 2 and line["rank"] == 1:
                line["own_gradients"]["w"] = {"hash": "x", "norm": 3.0}
        code, said = self.compared(change)
        self.assertEqual(code, 1)
        self.assertEqual(said, "first difference: step 2, own_gradients\n"
                               "  rank 1  w: norm 1.5, and norm 3.0\n")

    def test_other_data(self):
        def change(line):
            line["data"]["0"]["tokens"] = "b"
        self.assertEqual(self.compared(change)[1].splitlines()[:2],
                         ["first difference: step 1, data",
                          "  rank 0  micro-batch 0: other tokens"])


if __name__ == "__main__":
    unittest.main()
