"""The checks of an exercise, each a list of lines: what, predicted, yours, reference, whether it is
right, and if not a sentence."""

import hashlib
import json
import os
import re
import shlex
import shutil
import threading

import build
import describe
import limits
from lines import Line, at, counted, failure, number
from places import Wrong

MIB = 2**20
LOSS = 1e-4  # largest difference of a loss from the reference's: sums may have another order
one_at_a_time = threading.Lock()  # proof.py grades several at a time; references are shared


def neutral(name, text):
    """A folder from whose name a program cannot tell whether a bug is in it."""
    return f"{name}/{hashlib.sha256(text.encode()).hexdigest()[:12]}"


class Grader:
    """Checks one version of an exercise's file: `text`, in a build of its own called `name`."""

    def __init__(self, settings, exercise, text, name, isolated=False, until_wrong=False):
        self.settings, self.exercise, self.text = settings, exercise, text
        self.until_wrong = until_wrong
        self.isolated = isolated
        self.name = name
        if exercise.kind == "bug" and not (build.BUILT / neutral(name, text)).exists():
            shutil.rmtree(build.BUILT / name, ignore_errors=True)  # built from another text
        self.tree = build.Tree(settings, neutral(name, text) if exercise.kind == "bug" else name,
                               {exercise.source: text} if exercise.source else {},
                               exercise.data.get("compile", ()))

    def prepare(self):
        """Compiles what the checks will need."""
        files = [f for f in self.tree.replaced if build.is_in_library(f)]
        for spec in self.exercise.checks:
            if "tests" in spec:
                files += [self.exercise.source if s == "yours" else s for s in spec["tests"]]
            elif self.exercise.source and self.exercise.kind == "code":
                chapter = spec.get("program", self.exercise.chapter)
                build.real_program(self.settings, chapter)
                files += build.sources_of(chapter)
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
        program = (self.tree.program(chapter) if self.exercise.source
                   else build.real_program(self.settings, chapter))
        lines = []
        for ranks in spec.get("ranks", [1]):
            outcome, data = self.run(program, spec, ranks)
            if (wrong := outcome.sentence()) or not data["summary"]:
                wrong = wrong or outcome.own_words() or "It ends before its report."
                lines.append(Line(self.on("it runs to its end", ranks), False, said=wrong))
                break  # a run that does not end would not end on more ranks either
            known = self.reference_results(chapter, spec, ranks)
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
                             spec.get("seconds", limits.SECONDS), self.isolated,
                             watched=build.BUILT in program.parents)
        data = limits.read_json(json_file)
        if "printed" in spec:
            found = re.search(spec["printed"], outcome.text)
            data["printed"] = float(found[1]) if found else None
        json_file.unlink(missing_ok=True)
        return outcome, data

    def reference_results(self, chapter, spec, ranks):
        """What the real program reports; kept until it is built anew."""
        program = build.real_program(self.settings, chapter)
        words = (f"{program} {program.stat().st_mtime_ns} {spec.get('args', '')} {ranks} "
                 f"{spec.get('printed', '')}")
        kept = build.BUILT / "reference" / (
            hashlib.sha256((words + self.text * ("{file}" in words)).encode()).hexdigest()[:16]
            + ".json")
        kept.parent.mkdir(parents=True, exist_ok=True)
        with one_at_a_time:
            if kept.exists():
                return json.loads(kept.read_text())
            outcome, data = self.run(program, spec, ranks)
            if not data["summary"] and "printed" not in data:
                raise Wrong(f"{self.exercise.id}: the chapter's own program fails: "
                                     f"{outcome.sentence() or outcome.text[-300:]}")
            kept.write_text(json.dumps(data))
        return data

    def on(self, what, ranks):
        return f"{what}, {ranks} ranks" if ranks > 1 else what

    def compared(self, spec, ranks, data, known, outcome):
        lines = []
        for what in spec.get("compare", []):
            lines.append({"equal": self.equal, "sent": self.sent, "memory": self.memory}[what](
                ranks, data, known, outcome))
        for value in spec.get("value", []):
            if ranks in value.get("ranks", [ranks]):
                lines.append(self.value(value, ranks, data, known))
        return lines

    def equal(self, ranks, data, known, outcome):
        """--verify: equal to one device; and with the reference's losses."""
        verify, steps = data["summary"].get("verify", {}), data["steps"]
        losses, wanted = ([s.get("loss") for s in d["steps"]] for d in (data, known))
        near = max(LOSS, verify.get("gradient_bound", 0))
        said = ""
        if None in losses:
            first = steps[losses.index(None)]["step"]
            said = f"The loss is not a number (NaN) from step {first} on."
        elif verify.get("result") != "ok":
            missed = [re.sub(r"\s+", " ", l).strip() for l in outcome.text.splitlines()
                      if "MISSED" in l or "cannot tell" in l]
            said = "Not equal to one device: " + (missed[0] if missed else "see --verify") + "."
        elif len(losses) != len(wanted):
            said = f"It trains {counted(len(losses), 'step')}; the reference {len(wanted)}."
        elif far := [i for i, (a, b) in enumerate(zip(losses, wanted))
                     if abs(a - b) > near * abs(b)]:
            said = (f"The loss of step {steps[far[0]]['step']} is {number(losses[far[0]])}; the "
                    f"reference's is {number(wanted[far[0]])}.")
        gradient = verify.get("gradient")
        return Line(self.on("equal to one device: gradient's error", ranks), not said,
                    "<= " + number(verify.get("gradient_bound", 0)), number(gradient),
                    number(at(known, "summary.verify.gradient")), said)

    def sent(self, ranks, data, known, outcome):
        """What every rank sends and how often it calls, against the formula and the reference."""
        kinds, others = (d["summary"].get("communication", {}) for d in (data, known))
        wrong = [f"{name}: {k['calls']:g} calls, {k['predicted_calls']:g} predicted, and "
                 f"{k['sent_bytes'] / MIB:.4g} MiB sent, {k['predicted_sent_bytes'] / MIB:.4g} "
                 "predicted"
                 for name, k in kinds.items()
                 if abs(k["calls"] - k["predicted_calls"]) > 1e-9
                 or abs(k["sent_bytes"] - k["predicted_sent_bytes"]) > 0.5]
        told = outcome.text.partition("\ncommunication per step")[2]  # memory's part is above
        if not wrong and (rank := re.search(r"on rank (\d+): not as predicted", told)):
            wrong = [f"it differs on rank {rank[1]}"]
        said = "Not what the formula says: " + wrong[0] + "." if wrong else ""
        for name in sorted(kinds.keys() | others.keys()) if not said else []:
            have, want = ({f: of.get(name, {}).get(f, 0) for f in ("calls", "sent_bytes")}
                          for of in (kinds, others))
            if any(abs(have[f] - want[f]) > 0.5 for f in have):
                said = (f"{name}: {have['calls']:g} calls and {have['sent_bytes'] / MIB:.4g} MiB "
                        f"sent a step; the reference makes {want['calls']:g} and sends "
                        f"{want['sent_bytes'] / MIB:.4g} MiB.")

        def total(of, field):
            return number(sum(k[field] for k in of.values()) / MIB)
        return Line(self.on("MiB sent a step", ranks), not said,
                    total(kinds, "predicted_sent_bytes"), total(kinds, "sent_bytes"),
                    total(others, "sent_bytes"), said)

    def memory(self, ranks, data, known, outcome):
        """What every rank holds, by category: the formula's and the reference's bytes, of peaks
        within 1 %."""
        every, others = (d["summary"].get("memory_by_rank") or [d["summary"].get("memory", {})]
                         for d in (data, known))
        said = ""
        for rank, (held, other) in enumerate(zip(every, others)):
            for name, m in held.items():
                if "predicted" not in m or name == "peak":
                    continue
                for what, bytes in (("formula says", m["predicted"]),
                                    ("reference holds", at(other, name + ".measured"))):
                    slack = 0.01 * bytes if "peak" in name else 0
                    if abs(m["measured"] - bytes) > slack and not said:
                        said = (f"Rank {rank} holds {m['measured'] / MIB:.4g} MiB of \"{name}\"; "
                                f"the {what} {bytes / MIB:.4g}.")
        peak = data["summary"].get("memory", {}).get("peak", {})
        return Line(self.on("MiB held at the peak", ranks), not said,
                    number(peak.get("predicted", 0) / MIB), number(peak.get("measured", 0) / MIB),
                    number((at(known, "summary.memory.peak.measured") or 0) / MIB), said)

    def value(self, spec, ranks, data, known):
        """One number: is, at_most, at_least, or the reference's within `within`."""
        yours, reference_value = at(data, spec["path"]), at(known, spec["path"])
        predicted = spec.get("is", spec.get("at_most", spec.get("at_least")))
        within = spec.get("within", 0)
        if "like_reference" in spec:
            predicted, within = reference_value, spec["like_reference"]
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
                 for v in (predicted, yours, reference_value)]
        words = f"{spec['what']}: {shown[1]}"
        if shown[0]:
            words += f", should be {sign}{shown[0]}."
        else:  # a sentence where there should be none
            shown = ["none", "none" if ok else "some", "none"]
        return Line(self.on(spec["what"], ranks), ok, sign + shown[0], shown[1], shown[2],
                    "" if ok else words)

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
        """The student's test fails where the bug is in, and passes once more where it is not."""
        file, text = self.exercise.with_bug(spec["bug"])
        tree = build.Tree(self.settings, neutral(self.name, self.text + text),
                          {self.exercise.source: self.text, file: text})
        lines = []
        for ranks in spec.get("ranks", [1]):
            outcome = self.run_tests(tree, {"tests": ["yours"], **spec}, ranks)
            caught = (outcome.code == 1 and not outcome.sentence()
                      and re.search(r":\d+: Failure$", outcome.text, re.MULTILINE))
            said = ""
            if not caught:
                said = outcome.sentence() or "Your test passes although the bug is in the code."
            elif self.run_tests(self.tree, {"tests": ["yours"], **spec}, ranks).code != 0:
                caught, said = False, "Run once more, your test fails on the right code, too."
            lines.append(Line(self.on(spec["name"], ranks), bool(caught), "fails",
                              "fails" if caught else "passes", "", said))
        return lines

    # ---- a number that was predicted -------------------------------------------------------------
    def numbers(self, spec):
        wanted = spec["number"]
        given = describe.read_answers(self.text, self.exercise.numbers)[wanted["name"]]
        chapter = wanted.get("program", self.exercise.chapter)
        path = wanted.get("measured", "printed")
        measured = at(self.reference_results(chapter, wanted, wanted.get("ranks", 1)), path)
        if measured is None:
            raise Wrong(f"{self.exercise.id}: nothing is measured at {path}")
        measured *= wanted.get("scale", 1)
        if given is None:
            return [Line(wanted["name"], False, "", "", "",
                         f"{wanted['name']}: write down a number first; then it is measured.")]
        ok = abs(given - measured) <= wanted.get("within", 0) * abs(measured) + 1e-12
        return [Line(wanted["name"], ok, number(float(given)), number(float(measured)), "",
                     "" if ok else f"You predicted {given:g}; it is {number(float(measured))}.")]
