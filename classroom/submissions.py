"""A teacher grades a folder: FOLDER/STUDENT/ID/FILE, as a student's exercises/ holds it.

A student's code runs with limits of time and memory, in a process group of its own, and without a
network where the system lets us take it away. It does run as you: grade what strangers wrote in a
container or under an account of its own."""

import csv
import json
import os

import describe
import limits
import report
from places import ROOT, Wrong


def grade_all(settings, folder, graded_file, page):
    if not folder.is_absolute():
        folder = ROOT / folder
    students = sorted(p for p in folder.glob("*") if p.is_dir())
    if not students:
        raise Wrong(f"{folder}: there is no folder of a student in it")
    print("no network: " + ("yes, in a name space of its own" if limits.no_network() else
                            "NOT isolated: this system does not allow unshare --net"))
    exercises = [e for e in describe.all_exercises()
                 if any((s / e.id / e.name).exists() for s in students)]
    if not exercises:
        raise Wrong(f"{folder}: no student's folder has a file like {students[0].name}/01.1/...")
    width = max(7, *(len(s.name) for s in students))
    print(" ".join(["student".ljust(width), *(e.id.rjust(7) for e in exercises), "    all"]))
    rows, details = [], {}
    for student in students:
        points, of = [], 0
        details[student.name] = []
        for e in exercises:
            file, of = student / e.id / e.name, of + e.points()
            if not os.path.lexists(file):
                points.append(None)
                continue
            result = graded_file(settings, e, file, f"submissions/{e.id}", isolated=True)
            points.append(result["points"])
            details[student.name].append(result)
        total = sum(p or 0 for p in points)
        rows.append([student.name, *points, total])
        print(" ".join([student.name.ljust(width), *(("-" if p is None else str(p)).rjust(7)
                                                     for p in points), f"{total:>3}/{of}"]),
              flush=True)
    with open(folder / "grades.csv", "w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["student", *(e.id for e in exercises), "all"])
        table.writerows(rows)
    (folder / "grades.json").write_text(json.dumps(details, indent=1) + "\n", encoding="utf-8")
    print(f"{folder}/grades.csv, and why in grades.json beside it")
    if page:
        report.write(page, details)
