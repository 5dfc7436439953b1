"""Proves the grader: every solution gets all points, and so does what is right in another way
("also_right"); every file as a student gets it, and every wrong solution kept in the descriptions,
does not.

    make prove                  everything
    make prove ONLY=02.1,05     these exercises, or chapters
    make prove SHARE=3/4        the third quarter, by hash
    make prove SHARE=today/30   which part, the date says: in 30 days everything
    make prove SHARE=quick      one exercise: seconds

A wrong solution may say which words the grader must find for it ("says"): so it is proved that a
hang, a crash, a NaN and an endless loop are told apart.

Two run at a time. Prints GoogleTest's lines, which tests/run_all.sh counts, and what was said where
a grading surprises."""

import concurrent.futures
import datetime
import hashlib
import os
import shutil
import time

import build
import describe
from places import Wrong

QUICK = "09.1"


def cases(only, share):
    """(exercise, what, text, should be solved, words that the grader must say)."""
    found = []
    for e in describe.all_exercises():  # all are read: markers and texts must be there
        gradings = [("the solution", e.solution(), True, ""),
                    ("as it is given", e.start(), False, "")]
        gradings += [(f"also right: {o['name']}", e.mutated(o), True, "") for o in e.also_right]
        gradings += [(m["name"], e.mutated(m), False, m.get("says", "")) for m in e.mutants]
        if only and not any(e.id == o or e.id.startswith(o + ".") for o in only):
            continue
        if share:
            part, of = share
            gradings = [g for g in gradings if int(hashlib.sha256(
                (e.id + g[0]).encode()).hexdigest(), 16) % of == part - 1]
        found += [(e, *g) for g in gradings]
    return found


def prove(settings, words, graded):
    only, share = [], None
    for word in words:
        name, _, value = word.partition("=")
        if name == "ONLY" and value:
            only = value.split(",")
        elif name == "SHARE" and value == "quick":
            only = [QUICK]
        elif name == "SHARE" and value:
            part, _, of = value.partition("/")
            if part == "today":
                part = datetime.date.today().toordinal() % int(of) + 1
            share = int(part), int(of)
    todo = cases(only, share)
    if not todo:
        raise Wrong(f"there is no exercise {', '.join(only)}")
    for chapter in sorted({e.chapter for e, *_ in todo}):
        build.real_program(settings, chapter)
    build.shared_object(settings, "classroom/where.cpp")
    build.shared_object(settings, "classroom/ranks_main.cpp")
    begin = time.monotonic()

    def one(case):
        e, what, text, right, says = case
        number = hashlib.sha256((e.id + what).encode()).hexdigest()[:8]
        name = f"proof/{number}"
        start = time.monotonic()
        try:
            result = graded(settings, e, text, name, until_wrong=True)
        except Exception as error:  # an error in one must not end the others
            return case, False, f"{type(error).__name__}: {error}", time.monotonic() - start
        finally:
            shutil.rmtree(build.BUILT / name, ignore_errors=True)
        said = "; ".join([l["said"] for l in result["lines"] if l["said"]] + result["said"])
        compiles = not any("not compile" in s for s in result["said"])
        return (case, result["solved"] == right and compiles and says in said, said,
                time.monotonic() - start)

    failed = 0
    with concurrent.futures.ThreadPoolExecutor(max(2, (os.cpu_count() or 2) // 2)) as pool:
        for (e, what, _, right, says), ok, said, seconds in pool.map(one, todo):
            failed += not ok
            label = f"Grader.{e.id} {what}"
            print(f"[{'       OK' if ok else '  FAILED '} ] {label} ({seconds * 1000:.0f} ms)",
                  flush=True)
            if not ok or os.environ.get("VERBOSE"):
                print(f"    {'should get all points' if right else 'should not get all points'}"
                      f"{', and be told that it ' + says if says else ''}: "
                      f"{said or 'nothing was found wrong'}", flush=True)
    print(f"{len(todo)} gradings, {failed} surprises, {time.monotonic() - begin:.0f} s")
    return failed == 0
