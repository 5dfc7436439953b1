"""An exercise is data: exercises/ID.toml says what is asked, which part of which file is missing,
what is checked, and which wrong solutions the checks must notice. The solution itself is in the
chapter's source, between two comments, and nowhere else:

    // exercise 02.1 begin: what the student is told
    ... the solution ...
    // exercise 02.1 end
"""

import pathlib
import re
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
DESCRIPTIONS = ROOT / "classroom" / "exercises"
MARKER = re.compile(r"^(\s*)// exercise (\d\d\.\w+) (begin|end)(?:: (.*))?$")
KINDS = {"code": "write code", "predict": "predict first", "bug": "find the bug",
         "file": "write a file"}


class Wrong(Exception):
    """Something is wrong in a description, or in what a user asked for: one sentence."""


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
        return self.data.get("file")

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

    # ---- the solution, and what is left of the file without it ----------------------------------
    def solution(self):
        """The whole file, solved."""
        if self.kind == "predict":
            return self.answers({n["name"]: n["answer"] for n in self.numbers})
        if self.kind == "file":
            return self.data["solution_file"]
        return (ROOT / self.source).read_text(encoding="utf-8")

    def start(self):
        """The file that a student gets."""
        if self.kind == "predict":
            return self.answers({})
        if self.kind == "file":
            return self.data["start"]
        lines, _, _ = cut(self.solution(), self.id, self.blank(), self.source)
        return lines

    def part(self):
        """The lines of the solution between the markers."""
        return cut(self.solution(), self.id, "", self.source)[1]

    def hint(self):
        return cut(self.solution(), self.id, "", self.source)[2]

    def blank(self):
        """What stands in for the solution until the student writes one: it compiles."""
        return self.data.get("blank", f'user_error("exercise {self.id} is not solved yet");')

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
            return cut(self.solution(), self.id, mutant["part"], self.source)[0]
        part = self.part() if self.kind != "file" else self.solution()
        if part.count(mutant["replace"]) != 1:
            raise Wrong(f"{self.id}: mutant \"{mutant['name']}\": its text is there "
                        f"{part.count(mutant['replace'])} times, not once")
        changed = part.replace(mutant["replace"], mutant["by"])
        if self.kind == "file":
            return changed
        return cut(self.solution(), self.id, changed, self.source, keep_indent=True)[0]


def cut(text, wanted, blank, where, keep_indent=False):
    """Takes the part between an exercise's markers out, and the markers of all others.

    Returns the text with `blank` in the part's place, the part, and the hint."""
    lines, part, hint, inside = [], [], None, False
    for line in text.splitlines():
        mark = MARKER.match(line)
        if mark and mark[2] != wanted:
            continue
        if not mark:
            (part if inside else lines).append(line)
            continue
        indent = mark[1]
        if mark[3] == "begin":
            if hint is not None:
                raise Wrong(f"{where}: exercise {wanted} begins twice")
            hint, inside = mark[4] or "", True
            lines.append(f"{indent}// exercise {wanted}: {hint}")
            at = len(lines)
        elif not inside:
            raise Wrong(f"{where}: exercise {wanted} ends before it begins")
        else:
            inside = False
            for i, row in enumerate(blank.rstrip("\n").splitlines()):
                lines.insert(at + i, row if keep_indent or not row else indent + row)
    if hint is None or inside:
        raise Wrong(f"{where}: the markers of exercise {wanted} are not both there")
    return "\n".join(lines) + "\n", "\n".join(part) + "\n", hint


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
        except ValueError:
            raise Wrong(f"answers.txt: {name.strip()} = {value}: that is not a number") from None
    return {n["name"]: given.get(n["name"]) for n in numbers}


def all_exercises():
    return [Exercise(path) for path in sorted(DESCRIPTIONS.glob("*.toml"))]


def exercise(wanted):
    path = DESCRIPTIONS / f"{wanted}.toml"
    if not path.exists():
        raise Wrong(f"there is no exercise {wanted}; make exercise without EX lists them")
    return Exercise(path)
