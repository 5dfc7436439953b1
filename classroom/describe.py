"""An exercise is data: exercises/ID.toml says what is asked, what is checked, and which wrong
solutions the checks must notice. The solution itself is in the chapter's source, between two
markers (regions.py), and nowhere else."""

import functools
import math
import pathlib
import re
import tomllib

import regions
from places import ROOT, Wrong

DESCRIPTIONS = ROOT / "classroom" / "exercises"
KINDS = {"code": "write code", "predict": "predict first", "bug": "find the bug",
         "file": "write a file"}


class Exercise:
    def __init__(self, path):
        with open(path, "rb") as file:
            self.data = tomllib.load(file)
        self.id = path.name.removesuffix(".toml")
        self.chapter = next(p.name for p in ROOT.glob(f"{self.id[:2]}_*"))
        self.kind = self.data.get("kind", "code")
        self.title, self.minutes = self.data["title"], self.data["minutes"]
        self.checks = self.data.get("check", [])
        self.numbers = self.data.get("number", [])
        self.mutants = self.data.get("mutant", [])
        self.also_right = self.data.get("also_right", [])
        if self.kind not in KINDS:
            raise Wrong(f"{self.id}: kind {self.kind}: one of {', '.join(KINDS)}")

    @property
    def source(self):
        """The file in the repository that has the markers; none where numbers are asked for."""
        if self.kind not in ("code", "bug"):
            return None
        if self.id not in regions.marked_files():
            raise Wrong(f"{self.id}: no source has its markers")
        return regions.marked_files()[self.id]

    @property
    def name(self):
        """The student's file, within exercises/ID."""
        if self.kind == "predict":
            return "answers.txt"
        if self.kind == "file":
            return self.data["name"]
        return pathlib.Path(self.source).name

    def points(self):
        return sum(part["points"] for part in [*self.checks, *self.numbers])

    # ---- the solution, and the file without it --------------------------------------------------
    @functools.cached_property
    def region(self):
        return regions.Region((ROOT / self.source).read_text(encoding="utf-8"), self.id,
                              self.source)

    def solution(self):
        """The whole file, solved."""
        if self.kind == "predict":
            return self.answers({n["name"]: n["answer"] for n in self.numbers})
        if self.kind == "file":
            return self.data["solution_file"]
        return self.region.with_part(self.region.part)

    def start(self):
        """The file that a student gets."""
        if self.kind == "predict":
            return self.answers({})
        if self.kind == "file":
            return self.data["start"]
        return self.region.with_part(self.region.indented(self.blank()))

    def blank(self):
        """What stands in for the solution until the student writes one: it compiles."""
        return self.data.get("blank", f'user_error("exercise {self.id} is not solved yet");')

    def taken(self, text):
        """What of a student's file is graded: (the file with it, what the student should know).

        Only the marked part is taken, and put into the chapter's own file."""
        if self.kind == "predict":
            read_answers(text, self.numbers)  # must be numbers
        if self.kind not in ("code", "bug"):
            return text, ""
        theirs = regions.Region(text, self.id, self.name)
        if why := regions.refusal(theirs.part, theirs.line() + 1):
            raise Wrong(f"{self.name}: {why}")
        said = ""
        for begin, have, want in ((1, theirs.before, self.region.before),
                                  (theirs.line() + theirs.part.count("\n") + 2, theirs.after,
                                   self.region.after)):
            if [l.split() for l in have] != [l.split() for l in want]:
                i = next((i for i, (a, b) in enumerate(zip(have, want)) if a.split() != b.split()),
                         min(len(have), len(want)))
                said = (f"Note: line {begin + i} of {self.name} was changed. It lies outside of "
                        "the marked part, so the chapter's own line is used.")
                break
        return self.region.with_part(theirs.part), said

    def answers(self, given):
        lines = [f"# {self.id}: write each number after its equals sign, then: make grade "
                 f"EX={self.id}"]
        for number in self.numbers:
            lines += ["", *("# " + line for line in number["question"].strip().splitlines()),
                      f"{number['name']} = {given.get(number['name'], '')}"]
        return "\n".join(lines) + "\n"

    # ---- wrong solutions -------------------------------------------------------------------------
    def mutated(self, mutant):
        """The solution with one thing wrong."""
        if self.kind == "predict":
            right = {n["name"]: n["answer"] for n in self.numbers}
            return self.answers({**right, **mutant["answers"]})
        if "part" in mutant:
            return self.region.with_part(mutant["part"].strip("\n"))
        part = self.region.part if self.kind != "file" else self.solution()
        changed = regions.replaced(part, mutant["replace"], mutant["by"],
                                   f"{self.id}: mutant \"{mutant['name']}\"")
        return changed if self.kind == "file" else self.region.with_part(changed)

    def with_bug(self, bug):
        """(file, its text): other people's bug in ours."""
        return regions.replaced_somewhere([self.chapter, "common"], bug["replace"], bug["by"],
                                          f"{self.id}: the bug")


def read_answers(text, numbers):
    """The numbers of an answers.txt: name -> float, or None where nothing is written."""
    given = {}
    for line in text.splitlines():
        name, equals, value = line.partition("=")
        if line.lstrip().startswith("#") or not equals:
            continue
        value = value.split("#")[0].strip()
        try:
            given[name.strip()] = float(value) if value else None
            if value and not math.isfinite(float(value)):
                raise ValueError
        except ValueError:
            raise Wrong(f"answers.txt: {name.strip()} = {value}: that is not a number") from None
    return {n["name"]: given.get(n["name"]) for n in numbers}


def all_exercises():
    return [Exercise(path) for path in sorted(DESCRIPTIONS.glob("*.toml"))]


def exercise(wanted):
    path = DESCRIPTIONS / f"{wanted}.toml"
    if not re.fullmatch(r"\w+\.\w+", wanted) or not path.exists():
        raise Wrong(f"there is no exercise {wanted}; make exercise without EX lists them")
    return Exercise(path)
