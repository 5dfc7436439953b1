#!/usr/bin/env python3
"""The clinic: trainings that are sick in one way each. The Makefile starts it (make clinic).

    clinic.py list              the ten cases
    clinic.py run N             builds and runs case N, and writes its files into clinic/N/
    clinic.py solution [N]      for teachers: what is sick, and which figure shows it
    clinic.py prove [N]         proves the cases (clinic_proof.py)
    clinic.py open N            for those who change the code: prints clinic/N.case in plain text
    clinic.py seal N FILE       and packs such a text again

A case is public in clinic/cases.toml and sealed in clinic/N.case: a change of the program's source,
the answer, and the hints. The change is made in a copy of the tree (build.py), so no file, option
or variable of a run knows of it, and its reports are true: the program that is run is sick.
"""

import base64
import csv
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import textwrap
import time
import tomllib
import zlib

import build
import clinic_answers
import places
from places import ROOT, Wrong

CASES = ROOT / "classroom" / "clinic"
CLINIC = ROOT / "clinic"
MOST_SECONDS = 60
# What each case is run with: to record times, and again to take checksums, which slow it down. It
# is not verified, as no large training is.
TIMES = ("--no-verify --profile --report full --json @run.json --html @run.html "
         "--trace @run.trace.json")
CHECKSUMS = "--no-verify --checksums --json @checksums.json"

ABOUT_THE_FILES = """
    `.txt` is a report, `.json` its figures ([what they mean](../../OPTIONS.md)), `.html` a page for
    a browser, `.trace.json` a trace for https://ui.perfetto.dev, and `.memory.csv` the bytes that
    each rank holds after each step. A run with checksums is slower than one without, so read times
    in the other files.

    ## What is asked

    Which rank is sick, from which step on, why, and which figure shows it. Write it into
    `answer.toml`; then `make grade` says what is right, and gives a hint for what is not.
"""


# ---- a case --------------------------------------------------------------------------------------
class Case:
    def __init__(self, number, public):
        self.number, self.title, self.chapter = number, public["title"], public["chapter"]
        self.ranks, self.words = public["ranks"], public["words"]
        self.runs = [*public.get("before", []),
                     *(f"{public['args']} {more}" for more in (TIMES, CHECKSUMS))]
        self.minutes, self.healthy = public["minutes"], public["healthy"]
        self.id, self.folder = f"clinic {number}", CLINIC / str(number)
        self.public = public

    def sealed(self):
        return tomllib.loads(opened(self.number))

    def version(self):
        """A short text that is another one when the case's words, runs or program have changed."""
        text = json.dumps([self.public, self.sealed()["patch"]])
        return hashlib.sha256(text.encode()).hexdigest()[:8]

    def command(self, args, program=None, mpirun=("mpirun",)):
        program = program or f"build/cpu/{self.chapter}"
        return [*([*mpirun, "-n", str(self.ranks)] if self.ranks > 1 else []), str(program),
                *args.split()]

    def patched(self):
        """{file: its text with what makes it sick}"""
        texts = {}
        for patch in self.sealed()["patch"]:
            file = patch["file"]
            text = texts.get(file) or (ROOT / file).read_text(encoding="utf-8")
            if text.count(patch["replace"]) != 1:
                raise Wrong(f"{self.id}: a text that it replaces is not, once, in {file}; see "
                            "clinic.py open and seal")
            texts[file] = text.replace(patch["replace"], patch["by"])
        return texts


def all_cases():
    with open(CASES / "cases.toml", "rb") as file:
        return [Case(i + 1, public) for i, public in enumerate(tomllib.load(file)["case"])]


def case(number):
    cases = all_cases()
    if not (number.isdigit() and 1 <= int(number) <= len(cases)):
        raise Wrong(f"CASE={number}: one of 1 to {len(cases)}; make clinic lists them")
    return cases[int(number) - 1]


def causes():
    with open(CASES / "cases.toml", "rb") as file:
        return tomllib.load(file)["causes"]


def opened(number):
    packed = (CASES / f"{number}.case").read_text(encoding="ascii")
    return zlib.decompress(base64.b64decode(packed)).decode()


def seal(number, text):
    tomllib.loads(text)
    packed = base64.encodebytes(zlib.compress(text.encode(), 9)).decode()
    (CASES / f"{number}.case").write_text(packed, encoding="ascii")


# ---- running it ----------------------------------------------------------------------------------
def sick_program(settings, one):
    """Builds it. Its source is removed afterwards: only the program stays."""
    folder = build.BUILT / "clinic" / str(one.number)
    kept, mark = folder / "sick", folder / "built"
    made_of = hashlib.sha256((opened(one.number) + json.dumps(one.patched())).encode()).hexdigest()
    build.real_program(settings, one.chapter)
    newest = max(p.stat().st_mtime for p in [settings.library, ROOT / "build/cpu" / one.chapter])
    if not (kept.exists() and mark.exists() and mark.read_text() == made_of
            and kept.stat().st_mtime > newest):
        print("building it ...", flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        tree = build.Tree(settings, f"clinic/{one.number}", one.patched())
        program = tree.program(one.chapter)
        os.rename(program, kept)
        mark.write_text(made_of)
        for left in ("tree", "files", "obj"):
            shutil.rmtree(folder / left, ignore_errors=True)
    return kept


def run(settings, one):
    program = sick_program(settings, one)
    said, old = clinic_answers.kept(one)
    shutil.rmtree(one.folder, ignore_errors=True)
    one.folder.mkdir(parents=True)
    (one.folder / "answer.toml").write_text(said, encoding="utf-8")
    if old:
        (one.folder / "old-answer.toml").write_text(old, encoding="utf-8")
        print("the case has changed since you answered: what you wrote is in old-answer.toml")
    begin = time.monotonic()
    print(f"running it in {one.folder.relative_to(ROOT)}/ ...", flush=True)
    for args in one.runs:
        run_once(settings, one, args, program)
    for args in one.runs if one.healthy else ():
        run_once(settings, one, args, ROOT / "build/cpu" / one.chapter, "healthy-")
    for path in sorted(one.folder.glob("*run.json")):
        write_memory(path)
    (one.folder / "README.md").write_text(readme(one), encoding="utf-8")
    print(f"{time.monotonic() - begin:.0f} s. {one.folder.relative_to(ROOT)}/README.md tells what "
          "a colleague saw;\nanswer.toml beside it is for your answer, and make grade judges it.")


def run_once(settings, one, args, program, before=""):
    """A run's files are named in `args` as @run.json, ...; its report is a file named alike."""
    place = f"{one.folder.relative_to(ROOT)}/{before}"
    report = place + re.search(r"--json @([\w-]+)\.json", args)[1] + ".txt"
    command = one.command(args.replace("@", place), program, settings.mpirun)
    with open(ROOT / report, "w", encoding="utf-8") as file:
        done = subprocess.run(command, cwd=ROOT, stdout=file, stderr=subprocess.PIPE, text=True,
                              env={**os.environ, "OMP_WAIT_POLICY": "passive"},
                              timeout=4 * MOST_SECONDS)
    if done.returncode not in (0, 1):  # 1: its report says that something is not as predicted
        raise Wrong(f"{one.id} ended with {done.returncode}: {done.stderr[-500:]}")


def write_memory(path):
    """The bytes that each rank holds after each step, if the run has recorded them."""
    held = {}
    for line in lines_of(path, "by_rank"):
        held.setdefault(line["step"], {})[line["rank"]] = line["held_bytes"]
    if not held:
        return
    with open(path.with_suffix(".memory.csv"), "w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(["step", *(f"rank {rank}" for rank in sorted(held[min(held)]))])
        rows.writerows([step, *(held[step][rank] for rank in sorted(held[step]))]
                       for step in sorted(held))


def lines_of(path, kind):
    """The JSON lines of a kind: "step", or what their object is called."""
    with open(path, encoding="utf-8") as file:
        for line in map(json.loads, file):
            if kind == "step" and "step" in line:
                yield line
            elif kind != "step" and kind in line:
                yield line[kind]


def readme(one):
    names = sorted(p.name for p in one.folder.iterdir() if p.name != "README.md")
    runs = [" \\\n    ".join(textwrap.wrap(
        " ".join(one.command(args.replace("@", f"clinic/{one.number}/"))), 94,
        break_long_words=False, break_on_hyphens=False)) for args in one.runs]
    sick = [name for name in names if not name.startswith("healthy-")]
    text = [f"# Case {one.number}: {one.title}", "", one.words.strip(), "",
            f"Chapter: [{one.chapter}](../../{one.chapter}/README.md). What was run:", "",
            "```sh", *runs, "```", "",
            "## What you have", "",
            *(f"- [{name}]({name})" for name in sick)]
    if one.healthy:
        text += ["", "A healthy run of the same commands has the same files, with names that begin",
                 "with `healthy-`. This says where the two runs' checksums first differ:", "",
                 "```sh",
                 f"common/lab/report/checksums.py clinic/{one.number}/checksums.json \\",
                 f"    clinic/{one.number}/healthy-checksums.json", "```"]
    return "\n".join([*text, "", *textwrap.dedent(ABOUT_THE_FILES).strip().splitlines(), ""])


# ---- the command line ----------------------------------------------------------------------------
def print_list():
    for one in all_cases():
        print(f"{one.number:>3}  {one.title:<72} {one.chapter[:2]}  {one.minutes:>3} min")
        shown = " ".join(one.command(re.split(" --(?:json|no-verify|save)", one.runs[0])[0]))
        print(textwrap.fill(shown, 96, initial_indent="     ", subsequent_indent=" " * 9,
                            break_on_hyphens=False))
    print("\nmake clinic CASE=N runs case N; the answer goes into clinic/N/answer.toml, and make "
          "grade judges it")


def print_solutions(wanted):
    for one in [case(wanted)] if wanted else all_cases():
        sealed = one.sealed()
        print(f"\ncase {one.number}: {one.title}\n  rank {' or '.join(sealed['rank'])}, step "
              f"{sealed['step'][0]}, {sealed['cause']}: {causes()[sealed['cause']]}")
        for words in (f"The goal: {sealed['goal']}", sealed["solution"].replace("\n", " "),
                      *(f"Incident: {incident}" for incident in sealed["incidents"])):
            print(textwrap.fill(words.strip(), 98, initial_indent="  ", subsequent_indent="    ",
                                break_long_words=False, break_on_hyphens=False))


def main(words):
    command, wanted = words[0], words[1] if len(words) > 1 else ""
    if command == "list" or command == "run" and not wanted:
        print_list()
    elif command == "run":
        run(build.Settings(), case(wanted))
    elif command == "solution":
        print_solutions(wanted)
    elif command == "prove":
        import clinic_proof
        return clinic_proof.prove(build.Settings(), wanted)
    elif command == "open":
        print(opened(case(wanted).number), end="")
    elif command == "seal":
        seal(case(wanted).number, pathlib.Path(words[2]).read_text(encoding="utf-8"))
    else:
        raise Wrong(f"{command}: list, run, solution, prove, open or seal")
    return True


if __name__ == "__main__":
    places.run(main)
