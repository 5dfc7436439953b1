#!/usr/bin/env python3
"""Which tests does a fault need? Breaks the chapters' code on purpose, one place at a time, builds
what contains the place, and runs the quick tests that can see it.

    tests/mutants.py list                          the mutants: the classroom's, and random ones
    tests/mutants.py run FILE [JOBS] [SECONDS]     tries them, JOBS at a time, until SECONDS are
                                                   over; appends a line of JSON for each to FILE
    tests/mutants.py table FILE...                 what was found, in Markdown

A mutant is a change of one place in a chapter's file: one of the wrong solutions that an exercise
describes, or one operator, constant or call of a random line. `run` works in copies of this tree
under build/mutants. It runs the unit and communication tests whose source was compiled again, and
the chapter tests whose source names the file's chapter, with that chapter's program. (09 contains
most chapters: its own tests would notice more.) Once three tests have failed, no other begins: the
fault needs none of them. A program that still runs after 150 s has noticed, too. A mutant takes one
to six minutes of two cores."""

import collections
import concurrent.futures
import hashlib
import json
import os
import pathlib
import queue
import random
import re
import shutil
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "classroom"))
import describe  # noqa: E402  (found through the line above)
import processes  # noqa: E402

RANDOM = 50
LIMIT = 150  # seconds, for a program
ENOUGH = 3  # failed tests
NO_MUTANT = "without a mutant"
SWAPS = [(" + ", " - "), (" - ", " + "), (" * ", " / "), (" / ", " * "), (" < ", " <= "),
         (" <= ", " < "), (" > ", " >= "), (" >= ", " > "), (" == ", " != "), (" != ", " == "),
         (" && ", " || "), (" || ", " && "), ("true", "false"), ("false", "true"), ("min(", "max("),
         ("max(", "min("), (" 0;", " 1;"), (" 1;", " 2;"), ("begin()", "end()")]
NOT_CODE = re.compile(r'^\s*(//|#|\*)|"|^\s*$|static_assert|check\(|user_error')
CALL = re.compile(r"^\s+[\w.>-]+\([^;]*\);$")
MAKE = ["make", "-s", "BACKEND=cpu",
        "OPTIMIZE=$(if $(IS_OPERATION),-O2,-O0) -g0 -march=native"]
TESTS = ["build/cpu/unit_test", "build/cpu/comm_test", "build/cpu/chapter_test"]


def tracked(*patterns):
    out = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", *patterns], cwd=ROOT,
                         text=True, check=True, capture_output=True).stdout
    return out.split()


def mutants():
    """[{name, file, text}]: text is the whole changed file. Random ones first, mixed chapters."""
    found = []
    for e in describe.all_exercises():
        if e.kind == "code":
            found += [{"name": f"{e.id} {m['name']}", "file": e.source, "text": e.mutated(m)}
                      for m in e.mutants]
    generator = random.Random(59)
    places = []
    for file in tracked("0[0-9]_*/*.h", "0[0-9]_*/*.cu"):
        if "hopper" in file or "/kernels/" in file and file.endswith(".cu"):  # only a GPU runs it
            continue
        lines = (ROOT / file).read_text(encoding="utf-8").splitlines(keepends=True)
        for n, line in enumerate(lines):
            if NOT_CODE.search(line):
                continue
            code, slashes, comment = line.partition("//")
            changed = [code.replace(a, b, 1) + slashes + comment for a, b in SWAPS if a in code]
            if CALL.match(line):
                changed.append("\n")
            places += [(file, n, text) for text in changed]
    for file, n, text in generator.sample(places, RANDOM):
        lines = (ROOT / file).read_text(encoding="utf-8").splitlines(keepends=True)
        name = f"{file}:{n + 1}: {lines[n].strip()} -> {text.strip() or 'nothing'}"
        lines[n] = text
        found.append({"name": name, "file": file, "text": "".join(lines)})
    return sorted(found, key=lambda m: ("/" not in m["name"],
                                        hashlib.sha256(m["name"].encode()).hexdigest()))


def names_in(source):
    """A GoogleTest filter for each test in a source."""
    pairs = re.findall(r"^(?:TYPED_)?TEST(?:_F|_P)?\((\w+), (\w+)\)",
                       source.read_text(encoding="utf-8"), re.MULTILINE)
    return [f"{s}.{t}:*/{s}.{t}/*:{s}/*.{t}" for s, t in pairs]


def programs_named(source):
    """The chapters that a chapter test's source, or a header beside it, names."""
    text = source.read_text(encoding="utf-8")
    for header in re.findall(r'^#include "(\w+\.h)"', text, re.MULTILINE):
        beside = source.parent / header
        if beside.exists() and header != "run_program.h":
            text += beside.read_text(encoding="utf-8")
    return set(re.findall(r"\b0\d_\w+", text))


class Copy:
    """A copy of this tree, or of another copy and what was built there, in which one file at a time
    is changed."""

    def __init__(self, number, of=None):
        self.root = ROOT / "build" / "mutants" / str(number)
        if of:  # a call that was stopped may have left a mutant here
            shutil.rmtree(self.root, ignore_errors=True)
            shutil.copytree(of.root, self.root, symlinks=True)
            return
        for file in tracked():
            to = self.root / file
            if not to.exists() or to.stat().st_mtime != (ROOT / file).stat().st_mtime:
                to.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / file, to)
        if (ROOT / ".deps").exists() and not (self.root / ".deps").exists():
            (self.root / ".deps").symlink_to(ROOT / ".deps")

    def make(self, jobs, program):
        return subprocess.run([*MAKE, f"-j{jobs}", program, *TESTS], cwd=self.root, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def newer(self, pattern, begin):
        return [p for p in self.root.glob(pattern) if p.is_file() and p.stat().st_mtime > begin]

    def try_mutant(self, mutant, clean, jobs):
        """The set of tests that fail; None: it does not compile."""
        path = self.root / mutant["file"]
        path.write_text(mutant["text"], encoding="utf-8")
        begin = path.stat().st_mtime - 0.01
        built = self.make(jobs, mutant["file"].split("/")[0])
        failed = None
        if built.returncode == 0:
            failed = self.failing(begin, jobs, ENOUGH)
        shutil.copy2(clean.root / mutant["file"], path)
        for changed in self.newer("build/**/*", begin):
            original = clean.root / changed.relative_to(self.root)
            if original.exists():
                shutil.copy2(original, changed)
            else:
                changed.unlink()
        return failed

    def failing(self, begin, jobs, enough):
        mpirun = subprocess.run([*MAKE, "mpirun"], cwd=self.root, text=True, check=True,
                                capture_output=True).stdout.split()
        commands = []

        def rebuilt(folder):
            return [name for o in self.newer(f"build/**/obj/tests/{folder}/*.o", begin)
                    for name in names_in(self.root / "tests" / folder / (o.stem + ".cpp"))]

        everywhere = bool(self.newer("build/cpu/libcommon.a", begin))
        unit = ["*"] if everywhere else rebuilt("unit")
        comm = ["*"] if everywhere else rebuilt("ranks")
        if unit:
            commands.append(["build/cpu/unit_test", "--gtest_filter=" + ":".join(unit)])
        if comm:
            commands.append([*mpirun, "-n", "3", "build/cpu/comm_test",
                             "--gtest_filter=" + ":".join(comm)])
        programs = {p.name for p in self.newer("build/cpu/[0-9]*", begin)}
        for source in sorted((self.root / "tests/chapters").glob("*_test.cpp")):
            named = programs_named(source)
            if source.name.startswith("long_") or not (programs if not named else programs & named):
                continue
            commands += [["build/cpu/chapter_test", "--gtest_filter=" + name]
                         for name in names_in(source) if not name.startswith("Long")]
        env = dict(os.environ, MPIRUN=" ".join(mpirun), GTEST_COLOR="no", OMP_NUM_THREADS="2",
                   OMP_WAIT_POLICY="passive")
        failed = set()

        def unless_enough(command):
            if len(failed) < enough:
                failed.update(self.run(command, env))

        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            list(pool.map(unless_enough, commands))
        return failed

    def run(self, command, env):
        code, out, _ = processes.run(command, LIMIT, cwd=self.root, env=env)
        failed = set(re.findall(r"^\[  FAILED  \] ([\w/]+\.[\w/]+)", out, re.MULTILINE))
        if code != 0 and not failed:
            begun = re.findall(r"^\[ RUN      \] ([\w/.]+)", out, re.MULTILINE)
            failed = {begun[-1] if begun else " ".join(command)}
        return failed


def read(file):
    with open(file, encoding="utf-8") as lines:
        return {m["name"]: m for m in map(json.loads, lines)}


def write(file, mutant):
    with open(file, "a", encoding="utf-8") as out:
        out.write(json.dumps(mutant) + "\n")


def run(file, jobs=2, seconds=1e9):
    end = time.time() + float(seconds)
    at_once = max(1, int(jobs))
    cores = max(1, len(os.sched_getaffinity(0)) // at_once)
    done = read(file) if os.path.exists(file) else {}
    clean = Copy(0)
    built = clean.make(len(os.sched_getaffinity(0)), "all")
    if built.returncode != 0:
        sys.exit(built.stdout[-3000:])
    print("built", flush=True)
    if NO_MUTANT not in done:
        done[NO_MUTANT] = {"name": NO_MUTANT, "file": "",
                           "failed": sorted(clean.failing(0, len(os.sched_getaffinity(0)), 1e9))}
        write(file, done[NO_MUTANT])
    always = set(done[NO_MUTANT]["failed"])
    copies = queue.Queue()

    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        list(pool.map(lambda number: copies.put(Copy(number, clean)), range(1, at_once + 1)))
    print(f"{at_once} copies built", flush=True)

    def one(mutant):
        if time.time() > end:
            return
        begin, copy = time.time(), copies.get()
        try:
            failed = copy.try_mutant(mutant, clean, cores)
        finally:
            copies.put(copy)
        if failed is not None:
            failed = sorted(failed - always)
        write(file, {"name": mutant["name"], "file": mutant["file"], "failed": failed})
        count = "does not compile" if failed is None else f"{len(failed)} tests fail"
        print(f"{round(time.time() - begin):4} s  {count:18} {mutant['name']}", flush=True)

    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        list(pool.map(one, [m for m in mutants() if m["name"] not in done]))


def table(*files):
    found = {name: m for file in files for name, m in read(file).items() if name != NO_MUTANT}
    tried = [m for m in found.values() if m["failed"] is not None]
    chapters = collections.defaultdict(list)
    for m in tried:
        chapters[m["file"].split("/")[0]].append(m)
    print("| chapter | mutants | noticed | by one test only |")
    print("|---|---|---|---|")
    for chapter, those in [*sorted(chapters.items()), ("all", tried)]:
        print(f"| {chapter} | {len(those)} | {sum(bool(m['failed']) for m in those)} | "
              f"{sum(len(m['failed']) == 1 for m in those)} |")
    alone = collections.Counter(m["failed"][0] for m in tried if len(m["failed"]) == 1)
    any_of = collections.Counter(t for m in tried for t in m["failed"])
    print("\nAlone:", ", ".join(f"{t} {n}" for t, n in alone.most_common()))
    print("\nMost:", ", ".join(f"{t} {n}" for t, n in any_of.most_common(20)))
    print("\nNot noticed:")
    for m in tried:
        if not m["failed"]:
            print("*", m["name"])


if __name__ == "__main__":
    COMMANDS = {"run": run, "table": table,
                "list": lambda: print("\n".join(m["name"] for m in mutants()))}
    if len(sys.argv) < 2 or sys.argv[1] not in COMMANDS:
        sys.exit(__doc__)
    COMMANDS[sys.argv[1]](*sys.argv[2:])
