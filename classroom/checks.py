"""The checks of an exercise, each a list of lines: what, predicted, yours, reference, whether it is
right, and if not a sentence."""

import hashlib
import json
import os
import re
import shlex
import threading

import build
import describe
import limits
from lines import Line, at, counted, failure, number

MIB = 2**20
one_at_a_time = threading.Lock()  # proof.py grades several at a time; references are shared


class Grader:
    """Checks one version of an exercise's file: `text`, in a build of its own called `name`."""

    def __init__(self, settings, exercise, text, name, isolated=False, reference=True,
                 until_wrong=False):
        self.settings, self.exercise, self.text = settings, exercise, text
        self.until_wrong = until_wrong
        self.isolated, self.with_reference = isolated, reference
        replaced = {exercise.source: text} if exercise.source else {}
        self.tree = build.Tree(settings, name, replaced, exercise.data.get("compile", ()))
        self.name = name

    def reference(self):
        """A build of the real file."""
        return build.Tree(self.settings, "reference/" + self.exercise.chapter, {})

    def prepare(self):
        """Compiles what the checks will need."""
        files = [f for f in self.tree.replaced if f.startswith("common/") and f.endswith(".cpp")]
        for spec in self.exercise.checks:
            if "tests" in spec:
                files += [self.exercise.source if s == "yours" else s for s in spec["tests"]]
            elif self.exercise.source and self.exercise.kind == "code":
                files += build.sources_of(spec.get("program", self.exercise.chapter))
        self.tree.compile_all(f for f in dict.fromkeys(files) if not f.startswith("07_kernels/"))

    def check(self, spec):
        if "number" in spec:
            return self.numbers(spec)
        if "bug" in spec:
            return self.bug(spec)
        if "tests" in spec:
            return self.tests(spec)
        return self.program(spec)

    # ---- a chapter's program ---------------------------------------------------------------------
    def program(self, spec):
        chapter = spec.get("program", self.exercise.chapter)
        tree = self.tree if self.exercise.source else self.reference()
        program = tree.program(chapter)
        lines = []
        for ranks in spec.get("ranks", [1]):
            outcome, data = self.run(program, spec, ranks)
            if (wrong := outcome.sentence()) or not data["summary"]:
                wrong = wrong or outcome.own_words() or "It ends before its report."
                lines.append(Line(self.on("it runs to its end", ranks), False, said=wrong))
                break  # what does not end would not end on more ranks either
            wanted = self.with_reference or any("like_reference" in v
                                                for v in spec.get("value", []))
            known = self.of_reference(chapter, spec, ranks) if wanted else None
            lines += self.compared(spec, ranks, data, known, outcome)
            if self.until_wrong and not all(line.ok for line in lines):
                break
        return lines

    def run(self, program, spec, ranks):
        json_file = self.tree.folder / f"run_{os.getpid()}_{threading.get_ident()}.json"
        json_file.parent.mkdir(parents=True, exist_ok=True)
        json_file.unlink(missing_ok=True)
        mine = self.tree.folder / self.exercise.name
        words = shlex.split(spec.get("args", ""))
        if any("{file}" in w for w in words):
            mine.write_text(self.text, encoding="utf-8")
            words = [w.replace("{file}", str(mine)) for w in words]
        mpirun = [*self.settings.mpirun, "-n", str(ranks)] if ranks > 1 else []
        if spec.get("json", True):
            words += ["--json", str(json_file)]
        outcome = limits.run([*mpirun, str(program), *words], ranks,
                             spec.get("seconds", limits.SECONDS), self.isolated)
        data = limits.read_json(json_file)
        if "printed" in spec:
            found = re.search(spec["printed"], outcome.text)
            data["printed"] = float(found[1]) if found else None
        json_file.unlink(missing_ok=True)
        return outcome, data

    def of_reference(self, chapter, spec, ranks):
        """What the real program reports; kept until it is built anew."""
        with one_at_a_time:
            program = self.reference().program(chapter)
        words = (f"{program} {program.stat().st_mtime_ns} {spec.get('args', '')} {ranks} "
                 f"{spec.get('printed', '')}")
        kept = build.BUILT / "reference" / (
            hashlib.sha256((words + self.text * ("{file}" in words)).encode()).hexdigest()[:16]
            + ".json")
        with one_at_a_time:
            if kept.exists():
                return json.loads(kept.read_text())
            outcome, data = self.run(program, spec, ranks)
            if not data["summary"] and "printed" not in data:
                raise describe.Wrong(f"{self.exercise.id}: the chapter's own program fails: "
                                     f"{outcome.sentence() or outcome.text[-300:]}")
            kept.write_text(json.dumps(data))
        return data

    def on(self, what, ranks):
        return f"{what}, {ranks} ranks" if ranks > 1 else what

    def compared(self, spec, ranks, data, known, outcome):
        lines = []
        for what in spec.get("compare", []):
            lines += {"equal": self.equal, "sent": self.sent, "memory": self.memory}[what](
                ranks, data, known or {}, outcome)
        for value in spec.get("value", []):
            if ranks in value.get("ranks", [ranks]):
                lines.append(self.value(value, ranks, data, known))
        return lines

    def equal(self, ranks, data, known, outcome):
        """--verify: equal to one device."""
        verify, steps = data["summary"].get("verify", {}), data["steps"]
        said = ""
        nan = next((s["step"] for s in steps if s.get("loss") is None), None)
        ok = verify.get("result") == "ok" and nan is None
        if nan is not None:
            said = f"The loss is not a number (NaN) from step {nan} on."
        elif not ok:
            missed = [re.sub(r"\s+", " ", l).strip() for l in outcome.text.splitlines()
                      if "MISSED" in l or "cannot tell" in l]
            said = "Not equal to one device: " + (missed[0] if missed else "see --verify") + "."
        gradient = verify.get("gradient")
        return [Line(self.on("equal to one device: gradient's error", ranks), ok,
                     "<= " + number(verify.get("gradient_bound", 0)), number(gradient),
                     number(at(known, "summary.verify.gradient")) if known else "", said)]

    def sent(self, ranks, data, known, outcome):
        """What every rank sends and how often it calls, against the formula."""
        kinds = data["summary"].get("communication", {})
        wrong = [f"{name}: {k['calls']:g} calls, {k['predicted_calls']:g} predicted, and "
                 f"{k['sent_bytes'] / MIB:.4g} MiB sent, {k['predicted_sent_bytes'] / MIB:.4g} "
                 "predicted"
                 for name, k in kinds.items()
                 if abs(k["calls"] - k["predicted_calls"]) > 1e-9
                 or abs(k["sent_bytes"] - k["predicted_sent_bytes"]) > 0.5]
        told = outcome.text.partition("\ncommunication per step")[2]  # memory's part is above
        if not wrong and (rank := re.search(r"on rank (\d+): not as predicted", told)):
            wrong = [f"it differs on rank {rank[1]}"]

        def total(of, field):
            return sum(k[field] for k in of.values()) / MIB
        reference = known.get("summary", {}).get("communication")
        return [Line(self.on("MiB sent a step", ranks), not wrong,
                     number(total(kinds, "predicted_sent_bytes")),
                     number(total(kinds, "sent_bytes")),
                     number(total(reference, "sent_bytes")) if reference is not None else "",
                     "Not what the formula says: " + wrong[0] + "." if wrong else "")]

    def memory(self, ranks, data, known, outcome):
        """What every rank holds, by category: the same bytes, of peaks within 1 %."""
        wrong, most = "", 0
        every = data["summary"].get("memory_by_rank") or [data["summary"].get("memory", {})]
        for rank, held in enumerate(every):
            for name, m in held.items():
                if "predicted" not in m or name == "peak":
                    continue
                slack = 0.01 * m["predicted"] if "peak" in name else 0
                if abs(m["measured"] - m["predicted"]) > slack and not wrong:
                    wrong = (f"Rank {rank} holds {m['measured'] / MIB:.4g} MiB of \"{name}\"; the "
                             f"formula says {m['predicted'] / MIB:.4g}.")
        peak = data["summary"].get("memory", {}).get("peak", {})
        of_reference = number((at(known, "summary.memory.peak.measured") or 0) / MIB)
        return [Line(self.on("MiB held at the peak", ranks), not wrong,
                     number(peak.get("predicted", 0) / MIB), number(peak.get("measured", 0) / MIB),
                     of_reference if known else "", wrong)]

    def value(self, spec, ranks, data, known):
        """One number: is, at_most, at_least, or the reference's within `within`."""
        yours, of_reference = at(data, spec["path"]), at(known, spec["path"]) if known else None
        predicted = spec.get("is", spec.get("at_most", spec.get("at_least")))
        within = spec.get("within", 0)
        if "like_reference" in spec:
            predicted, within = of_reference, spec["like_reference"]
        sign = "<= " if "at_most" in spec else ">= " if "at_least" in spec else ""
        if isinstance(yours, str) or isinstance(predicted, str):
            ok = yours == predicted
        elif yours is None:
            ok = False
        elif "at_most" in spec:
            ok = yours <= predicted
        elif "at_least" in spec:
            ok = yours >= predicted
        else:
            ok = abs(yours - predicted) <= within * abs(predicted)
        scale = spec.get("scale", 1)
        shown = [number(v * scale if isinstance(v, (int, float)) else v)
                 for v in (predicted, yours, of_reference)]
        words = f"{spec['what']}: {shown[1]}"
        if shown[0]:
            words += f", should be {sign}{shown[0]}."
        else:  # a sentence where there should be none
            shown = ["none", "none" if ok else "some", "none"]
        return Line(self.on(spec["what"], ranks), ok, sign + shown[0], shown[1],
                    shown[2] if known else "", "" if ok else words)

    # ---- GoogleTest's tests ----------------------------------------------------------------------
    def run_tests(self, tree, spec, ranks):
        sources = [self.exercise.source if s == "yours" else s for s in spec["tests"]]
        program = tree.tests(sources, "ranks" in spec)
        mpirun = [*self.settings.mpirun, "-n", str(ranks)] if ranks > 1 else []
        mine = tree.folder / self.exercise.name
        if self.exercise.kind == "file":  # the test reads it
            mine.write_text(self.text, encoding="utf-8")
            mpirun = ["env", f"CLASSROOM_FILE={mine}"]
        return limits.run([*mpirun, str(program), "--gtest_filter=" + spec.get("filter", "*"),
                           "--gtest_color=no"], ranks, spec.get("seconds", limits.SECONDS),
                          self.isolated)

    def tests(self, spec):
        lines = []
        for ranks in spec.get("ranks", [1]):
            outcome = self.run_tests(self.tree, spec, ranks)
            passed = len(re.findall(r"^\[       OK \]", outcome.text, re.MULTILINE))
            failed = re.findall(r"^\[  FAILED  \] ([\w./]+) \(", outcome.text, re.MULTILINE)
            wrong = outcome.sentence()
            ok = outcome.code == 0 and passed > 0 and not failed and not wrong
            if not ok and not wrong:
                wrong = failure(outcome.text, failed)
            lines.append(Line(self.on(spec["name"], ranks), ok,
                              counted(passed + len(failed)), f"{passed} pass", "", wrong or ""))
            if not ok:
                break
        return lines

    # ---- the student's test of a bug -------------------------------------------------------------
    def bug(self, spec):
        """The student's test fails where the bug is in."""
        bug = spec["bug"]
        text = (describe.ROOT / bug["file"]).read_text(encoding="utf-8")
        if text.count(bug["replace"]) != 1:
            raise describe.Wrong(f"{self.exercise.id}: the bug's text is there "
                                 f"{text.count(bug['replace'])} times, not once")
        tree = build.Tree(self.settings, self.name + "_bug",
                          {self.exercise.source: self.text,
                           bug["file"]: text.replace(bug["replace"], bug["by"])})
        lines = []
        for ranks in spec.get("ranks", [1]):
            outcome = self.run_tests(tree, {"tests": ["yours"], **spec}, ranks)
            caught = outcome.code == 1 and re.search(r":\d+: Failure$", outcome.text, re.MULTILINE)
            said = ""
            if not caught:
                said = outcome.sentence() or "Your test passes although the bug is in the code."
            lines.append(Line(self.on(spec["name"], ranks), bool(caught), "fails",
                              "fails" if caught else "passes", "", said))
        return lines

    # ---- a number that was predicted -------------------------------------------------------------
    def numbers(self, spec):
        wanted = spec["number"]
        given = describe.read_answers(self.text, self.exercise.numbers)[wanted["name"]]
        chapter = wanted.get("program", self.exercise.chapter)
        path = wanted.get("measured", "printed")
        measured = at(self.of_reference(chapter, wanted, wanted.get("ranks", 1)), path)
        if measured is None:
            raise describe.Wrong(f"{self.exercise.id}: nothing is measured at {path}")
        measured *= wanted.get("scale", 1)
        if given is None:
            return [Line(wanted["name"], False, "", "", "",
                         f"{wanted['name']}: write down a number first; then it is measured.")]
        ok = abs(given - measured) <= wanted.get("within", 0) * abs(measured) + 1e-12
        return [Line(wanted["name"], ok, number(float(given)), number(float(measured)), "",
                     "" if ok else f"You predicted {given:g}; it is {number(float(measured))}.")]
