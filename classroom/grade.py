#!/usr/bin/env python3
"""The classroom's command line; the Makefile starts it (make exercise, make grade, make solutions).

    grade.py list                       all exercises
    grade.py exercise ID                writes exercises/ID: the file with a part missing, README.md
    grade.py grade [ID]                 grades it, or all that are in exercises/ and the clinic
                                        into grades.json; ID clinic.3: case 3 of the clinic
    grade.py submissions FOLDER         grades FOLDER/STUDENT/ID/FILE of all students: table and CSV
    ... --html PAGE                     either one writes a page for a browser, too (report.py)
    grade.py solutions [ID]             prints the solutions, of an exercise or a chapter
    grade.py prove [N/M]                proves the grader itself (proof.py)
"""

import hashlib
import json
import os
import pathlib
import re
import time

import build
import checks
import clinic_answers
import describe
import report
import submissions
import places
from places import ROOT, Wrong

EXERCISES = ROOT / "exercises"
MOST_BYTES = 2**20  # the largest file that a student may submit


# ---- grading one file ----------------------------------------------------------------------------
def graded(settings, exercise, text, name, isolated=False, until_wrong=False):
    """Grades `text` as the exercise's file -> a result, as grades.json has it.

    until_wrong: stops at the first check that fails."""
    begin, result = time.monotonic(), nothing_yet(exercise, text)
    try:
        taken, note = exercise.taken(text)
    except Wrong as error:
        return ended(result, begin, str(error))
    grader = checks.Grader(settings, exercise, taken, name, isolated, until_wrong)
    if not until_wrong:  # the proof, which stops early, has other things to do meanwhile
        grader.prepare()
    specs = exercise.checks + [{"number": n, "points": n["points"]} for n in exercise.numbers]
    for spec in specs:
        try:
            lines = grader.check(spec)
        except build.DoesNotCompile as error:
            result["said"].append(f"It does not compile:\n{error}")
            break
        all_right = bool(lines) and all(line.ok for line in lines)
        points = spec["points"] if all_right else 0
        result["points"] += points
        for i, line in enumerate(lines):
            row = vars(line).copy()
            if i + 1 == len(lines):
                row["points"], row["of"] = points, spec["points"]
            result["lines"].append(row)
        if not all_right and (until_wrong or spec.get("or_stop")):
            break
        if any("hangs" in line.said or "does not end" in line.said for line in lines):
            result["said"].append("The checks that follow were not run.")
            break
    return ended(result, begin, note)


def graded_file(settings, exercise, file, name, isolated=False):
    """The same for a student's file, whatever it is."""
    try:
        text = read_file(file)
    except (Wrong, OSError) as error:
        return ended(nothing_yet(exercise, ""), time.monotonic(), str(error))
    return graded(settings, exercise, text, name, isolated)


def nothing_yet(exercise, text):
    return {"exercise": exercise.id, "title": exercise.title, "kind": exercise.kind, "points": 0,
            "of": exercise.points(), "lines": [], "said": [],
            "sha256": hashlib.sha256(text.encode()).hexdigest()}


def ended(result, begin, said):
    result["said"] += [said] if said else []
    result["solved"] = result["points"] == result["of"]
    result["seconds"] = round(time.monotonic() - begin, 1)
    return result


def read_file(file):
    """A student's file. Raises Wrong, a sentence, if it is none that can be graded."""
    name = file.relative_to(ROOT) if file.is_relative_to(ROOT) else file
    if file.is_symlink() or file.exists() and not file.is_file():
        what = "link" if file.is_symlink() else "folder or a device"
        raise Wrong(f"{name} is a {what}, not a file")
    if file.stat().st_size > MOST_BYTES:
        raise Wrong(f"{name} has more than {MOST_BYTES} bytes")
    try:
        return file.read_bytes().decode("utf-8").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise Wrong(f"{name} is not text in UTF-8 (byte {error.start})") from None


def print_result(result):
    print(f"\n{result['exercise']}  {result['title']}")
    if result["lines"]:
        columns = {"predict": ("you said", "measured", ""), "clinic": ("", "you said", "")}.get(
            result["kind"], ("predicted", "yours", "reference"))
        first, second = (2, 20) if result["kind"] == "clinic" else (11, 11)
        print(f"  {'':<50} {columns[0]:>{first}} {columns[1]:>{second}} {columns[2]:>10} points")
    said = []
    for line in result["lines"]:
        points = f"{line['points']}/{line['of']}" if "of" in line else ""
        print(f"  {line['what']:<50} {line['predicted']:>{first}} {line['yours']:>{second}} "
              f"{line['reference']:>10} {points:>5}".rstrip() + ("" if line["ok"] else "  WRONG"))
        if line["said"] and line["said"] not in said:
            said.append(line["said"])
    for words in said + result["said"]:
        print("  " + "\n  ".join(wrapped(words)))
    print(f"  {result['points']} of {result['of']} points"
          + (f", {result['seconds']:.0f} s" if result["kind"] != "clinic" else "")
          + (": solved" if result["solved"] else ""))


def wrapped(words, width=96):
    lines = []
    for paragraph in words.splitlines():
        line = ""
        for word in re.split(r"(?<=\S) ", paragraph):
            if line and len(line) + len(word) >= width:
                lines.append(line)
                line = ""
            line += (" " if line else "") + word
        lines.append(line)
    return lines


# ---- a student's commands ------------------------------------------------------------------------
def list_exercises():
    chapter = None
    for e in describe.all_exercises():
        if e.chapter != chapter:
            chapter = e.chapter
            print(chapter)
        minutes = f"{e.minutes} min" if e.minutes < 120 else f"{e.minutes / 60:g} h"
        print(f"  {e.id:<7} {e.title:<58} {describe.KINDS[e.kind]:<14} {minutes:>7} "
              f"{e.points():>3}")
    print("\nmake exercise EX=ID writes an exercise into exercises/ID, make grade EX=ID grades it")


def write_exercise(settings, wanted):
    e = describe.exercise(wanted)
    folder = EXERCISES / e.id
    file = folder / e.name
    if file.exists():
        raise Wrong(f"{file.relative_to(ROOT)} is there already; to begin anew, remove it first")
    text = e.start()
    folder.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    print(f"{file.relative_to(ROOT)}: writing its README, with what fails now ...", flush=True)
    result = graded(settings, e, text, f"{e.id}/yours")
    (folder / "README.md").write_text(readme(e, result), encoding="utf-8")
    print(f"{folder.relative_to(ROOT)}/README.md has the question, and {e.name} the place for your "
          f"answer.\nmake grade EX={e.id} grades it.")


def readme(e, result):
    d = e.data
    lines = [f"# {e.id} {e.title}", "",
             f"{describe.KINDS[e.kind].capitalize()}, about {e.minutes} minutes, "
             f"{e.points()} points. Chapter: [{e.chapter}](../../{e.chapter}/README.md).", "",
             d["question"].strip(), ""]
    if "picture" in d:
        lines += ["```", d["picture"].strip("\n"), "```", ""]
    lines += [*wrapped("**After it you can** " + "; ".join(d["objectives"]) + "."), ""]
    lines += ["## What is given", ""]
    if e.kind == "code" or e.kind == "bug":
        lines += [*wrapped(
            f"`{e.name}` in this folder is `{e.source}` without a part, which you write between "
            f"the comments `// exercise {e.id} begin` (line {e.region.line()}) and `// exercise "
            f"{e.id} end`. Only what lies between them is graded. Everything else, also the files "
            "that this one includes, is the chapter's own."), ""]
    elif e.kind == "predict":
        lines += ["`answers.txt` in this folder asks for numbers. Write them down before you run",
                  "anything: `make grade` measures them.", ""]
    else:
        lines += [f"`{e.name}` in this folder; its comment says how it is written.", ""]
    if "given" in d:
        lines += [d["given"].strip(), ""]
    if hint := (e.region.hint if e.kind in ("code", "bug") else ""):
        lines += [f"The hint in the file: *{hint}*", ""]
    lines += ["## What is checked", ""]
    for spec in e.checks:
        ranks = spec.get("ranks", [1])
        on = f", on {', '.join(map(str, ranks))} ranks" if ranks != [1] else ""
        lines.append(f"- {spec['name']}{on} ({spec['points']} points)")
        how = [f"`{spec['args']}`"] if "{file}" not in spec.get("args", "{file}") else [
            f"`{t}`" for t in spec.get("tests", ()) if t != "yours"]
        lines += [f"  {'with' if 'args' in spec else 'in'} {how[0]}"] if how else []
    for n in e.numbers:
        near = f", within {100 * n['within']:g} %" if n.get("within") else ""
        lines.append(f"- `{n['name']}`{near} ({n['points']} points)")
    lines += ["", "## What fails now", "", "```"]
    said = [l["said"] for l in result["lines"] if not l["ok"]] + result["said"]
    lines += wrapped(said[0] if said else "nothing")
    lines += ["```", "", "```sh", f"make grade EX={e.id}", "```", ""]
    return "\n".join(lines)


def grade(settings, wanted, page):
    of_clinic = wanted.startswith("clinic.")
    folders = [] if of_clinic else [EXERCISES / wanted] if wanted else sorted(
        p for p in EXERCISES.glob("*") if (describe.DESCRIPTIONS / f"{p.name}.toml").exists())
    results = clinic_answers.all_graded(wanted.removeprefix("clinic.")) \
        if of_clinic or not wanted else []
    for result in results:
        print_result(result)
    if not folders and not results:
        raise Wrong("there is nothing in exercises/; begin with make exercise EX=01.1")
    for folder in folders:
        e = describe.exercise(folder.name)
        file = folder / e.name
        if not os.path.lexists(file):
            raise Wrong(f"{file.relative_to(ROOT)} is not there; make exercise EX={e.id} writes it")
        results.append(graded_file(settings, e, file, f"{e.id}/yours"))
        print_result(results[-1])
    sums = {"points": sum(r["points"] for r in results), "of": sum(r["of"] for r in results)}
    grades = {"exercises": results, **sums, "sources": sources_hash()}
    if not wanted:
        (ROOT / "grades.json").write_text(json.dumps(grades, indent=1) + "\n")
        print(f"\n{sums['points']} of {sums['of']} points in {len(results)} exercises: grades.json")
    if page:
        report.write(page, grades)


def sources_hash():
    """Of everything that grades: the chapters, what they share, the tests and the classroom."""
    total = hashlib.sha256()
    for folder in ["classroom", "common", "tests", *sorted(p.name for p in ROOT.glob("0*_*"))]:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".h", ".cpp", ".cu", ".cuh", ".py", ".toml", ".case"):
                total.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    return total.hexdigest()


def solutions(wanted):
    """Of an exercise; or of a chapter, or all, with the answers to the READMEs' questions."""
    every = describe.all_exercises()
    if "." in wanted:
        every = [describe.exercise(wanted)]
    elif wanted:
        every = [e for e in every if e.id.startswith(wanted[:2])]
    for page in [] if "." in wanted else sorted((ROOT / "classroom/answers").glob("*.md")):
        if page.stem.startswith(wanted[:2]):
            print(page.read_text(encoding="utf-8"))
    for e in every:
        print(f"\n{e.id}  {e.title}")
        if e.kind in ("code", "bug"):
            print(f"--- {e.source}\n{e.region.part.rstrip()}\n---")
        elif e.kind == "file":
            print(e.solution().rstrip())
        for n in e.numbers:
            print(f"  {n['name']} = {n['answer']:g}")
        if "solution" in e.data:
            print("\n".join(wrapped(e.data["solution"].strip())))


def main(words):
    words, page = (words[:-2], words[-1]) if words[-2:-1] == ["--html"] else (words, "")
    command, wanted = words[0], words[1] if len(words) > 1 else ""
    if command == "list" or command == "exercise" and not wanted:
        list_exercises()
    elif command == "solutions":
        solutions(wanted)
    elif command == "exercise":
        write_exercise(build.Settings(), wanted)
    elif command == "grade":
        grade(build.Settings(), wanted, page)
    elif command == "submissions":
        submissions.grade_all(build.Settings(), pathlib.Path(wanted), graded_file, page)
    elif command == "prove":
        import proof
        return proof.prove(build.Settings(), words[1:], graded)
    else:
        raise Wrong(f"{command}: list, exercise, grade, submissions, solutions or prove")
    return True


if __name__ == "__main__":
    places.run(main)
