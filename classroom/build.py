"""Builds a program or a test with some files replaced by others.

A quoted #include is looked for in the folder of the file that includes it, so a replaced header
must lie beside the others. A tree of links provides that: each folder with a replaced file is
mirrored link by link, with the replacement in the file's place. The compiler takes a link's folder
for the file's own (it does not follow the link), and the tree comes before the repository on the
include path. Everything else is the library that all chapters share, built once.

    build/classroom/NAME/tree/02_zero/4_zero1.h -> exercises/02.1/4_zero1.h
                              3_zero.h, main.cpp, ...  -> 02_zero/...
"""

import concurrent.futures
import contextlib
import hashlib
import json
import os
import pathlib
import posixpath
import re
import shutil
import subprocess
import threading

from places import ROOT, Wrong

BUILT = ROOT / "build" / "classroom"


class DoesNotCompile(Exception):
    """The compiler's own words, the first error only."""


class Settings:
    """How the Makefile compiles; it passes this on in the environment."""

    def __init__(self):
        try:
            given = json.loads(os.environ["CLASSROOM"])
        except KeyError:
            raise Wrong("start this with make: make exercise, make grade") from None
        self.cxx = given["cxx"].split()
        self.flags = given["flags"].split()
        self.mpi = given["mpi"].split()
        self.simt = given["simt"].split()
        self.libraries = given["libraries"].split()
        self.mpirun = given["mpirun"].split()
        self.make = given["make"].split()
        self.library = ROOT / given["library"]
        self.kernel_objects = given["kernel_objects"].split()
        self.precompiled = given["precompiled"].split()
        self.kernel_precompiled = given["kernel_precompiled"].split()


def make(settings, target, said=[], one_at_a_time=threading.Lock()):
    """What all exercises share, with the Makefile's own rules; once in each run of this program."""
    with one_at_a_time:
        if str(target) not in said:
            run_make(settings, target)
            said.append(str(target))


def run_make(settings, target):
    wanted = [str(t.relative_to(ROOT)) if isinstance(t, pathlib.Path) else t
              for t in (target if isinstance(target, list) else [target])]
    quiet = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")}
    if subprocess.run([*settings.make, "-q", *wanted], cwd=ROOT, env=quiet,
                      capture_output=True).returncode != 0:
        print("building what all exercises share (the first time takes some minutes) ...",
              flush=True)
        done = subprocess.run([*settings.make, f"-j{os.cpu_count()}", "-s", *wanted], cwd=ROOT,
                              env=quiet, capture_output=True, text=True)
        if done.returncode != 0:
            raise Wrong("make " + " ".join(wanted[:1]) + " failed: " + done.stderr[-2000:])


class Tree:
    """A build of its own: `replaced` maps files of the repository to the text they have here."""

    def __init__(self, settings, name, replaced, also=()):
        """also: sources that include a replaced header, if they are not compiled anyway."""
        self.settings, self.folder, self.also = settings, BUILT / name, also
        self.links = self.folder / "tree"
        self.replaced, self.errors = replaced, {}
        BUILT.mkdir(parents=True, exist_ok=True)
        if not (BUILT / "common").is_symlink():  # programs look for ../../common/text.txt
            (BUILT / "common").symlink_to(ROOT / "common")
        folders = {str(pathlib.Path(file).parent) for file in replaced}
        shutil.rmtree(self.links, ignore_errors=True)
        for folder in sorted(folders):
            # A chapter's folders include each other, such as "../kernel.h" in 07, "lab/options.h"
            # or "../2_schedules/zbv.h" in 05, so all of them are mirrored.
            here = pathlib.Path(folder)
            top = here if here.parts[:1] == ("common",) else pathlib.Path(*here.parts[:1])
            below = [p.relative_to(ROOT) for p in (ROOT / top).rglob("*") if p.is_dir()]
            for each in [*reversed(here.parents), here, *below]:
                if str(each) not in (".", "common"):
                    self.mirror(str(each))
        for file, text in replaced.items():
            place = self.links / file
            place.unlink(missing_ok=True)
            kept = self.folder / "files" / file
            if not kept.exists() or kept.read_text(encoding="utf-8") != text:
                kept.parent.mkdir(parents=True, exist_ok=True)
                kept.write_text(text, encoding="utf-8")
            place.symlink_to(kept)

    def mirror(self, folder):
        (self.links / folder).mkdir(parents=True, exist_ok=True)
        for path in (ROOT / folder).iterdir():
            link = self.links / folder / path.name
            if path.suffix in (".h", ".cpp", ".cu", ".cuh") and not link.is_symlink():
                link.symlink_to(path)

    def source(self, file):
        mirrored = self.links / file
        return mirrored if mirrored.exists() else ROOT / file

    # ---- compiling -------------------------------------------------------------------------------
    def compile(self, file):
        """file, of the repository -> its object. Raises DoesNotCompile."""
        s, source = self.settings, self.source(file)
        thing = self.folder / "obj" / (file.replace("/", "__") + ".o")
        thing.parent.mkdir(parents=True, exist_ok=True)
        paths = [f"-I{self.links}/common", f"-I{self.links}", "-Icommon", "-I."]
        command = [*s.cxx, "-Ibuild/precompiled", *paths, *s.mpi, *s.flags]
        if file.endswith(".cu"):
            make(s, s.kernel_precompiled)
            command += ["-include", "core/precompiled.h", *s.simt, "-x", "c++"]
        else:
            make(s, s.precompiled)
            command += ["-Itests", "-include", "gtest_precompiled.h"]
            if file.startswith("07_kernels/"):
                command += [flag for flag in s.simt if flag[:2] in ("-D", "-I")]
        command += ["-MMD", "-MF", str(thing) + ".d", "-c", str(source), "-o", str(thing)]
        if file in self.errors:
            raise DoesNotCompile(self.errors[file])
        if not self.is_new(thing, command):
            if "yours" in self.folder.parts:
                print(f"compiling {file} with your part ...", flush=True)
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
            if done.returncode != 0:
                thing.unlink(missing_ok=True)
                self.errors[file] = self.first_error(done.stderr)
                raise DoesNotCompile(self.errors[file])
            thing.with_suffix(".how").write_text(" ".join(command))
        return thing

    def compile_all(self, files):
        """Several at a time. What does not compile is told when a program needs it."""
        def one(file):
            with contextlib.suppress(DoesNotCompile):
                self.built(file)
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(one, files))

    @staticmethod
    def is_new(thing, command):
        how, needs = thing.with_suffix(".how"), pathlib.Path(str(thing) + ".d")
        if not (thing.exists() and needs.exists() and how.exists()
                and how.read_text() == " ".join(command)):
            return False
        built = thing.stat().st_mtime
        for path in needs.read_text().replace("\\\n", " ").split()[1:]:
            path = pathlib.Path(path) if path.startswith("/") else ROOT / path
            if not path.exists() or path.stat().st_mtime > built:
                return False
        return True

    def first_error(self, words):
        """The first error: the line of the student's file that leads to it, and the compiler's
        words, which may be about a line of another file."""
        lines = [re.sub(r"(?<!\S)\S*/(?=[\w.]+:\d)", "", line) for line in words.splitlines()]
        errors = [i for i, line in enumerate(lines) if re.search(r"(?<!\w)(fatal )?error: ", line)]
        if not errors:
            return words
        begin, end = errors[0], (errors + [len(lines)])[1]
        until = next((i for i in range(begin + 1, end)
                      if re.search(r": note: |^In |: In |^ +from ", lines[i])), end)
        shown = [line for line in lines[begin:until] if line.strip()]
        for file, text in self.replaced.items():
            name = pathlib.Path(file).name
            if shown[0].startswith(name + ":"):
                return "\n".join(shown)
            for line in lines[:end]:
                if found := re.match(rf"\s*{re.escape(name)}:(\d+)", line):
                    code = text.splitlines()[int(found[1]) - 1].strip()
                    return "\n".join([f"{name}:{found[1]}: {code}", *shown])
        return "\n".join(shown)

    def link(self, name, objects, libraries=()):
        s, program = self.settings, self.folder / name
        self.folder.mkdir(parents=True, exist_ok=True)
        objects = [str(o) for o in objects]
        newest = max(os.stat(o if o.startswith("/") else ROOT / o).st_mtime for o in objects)
        if (program.exists() and program.stat().st_mtime > newest
                and program.stat().st_mtime > s.library.stat().st_mtime):
            return program
        done = subprocess.run([*s.cxx, "-fopenmp", "-rdynamic", "-Wl,--wrap=main",
                               *objects, str(s.library), *s.libraries, *libraries, "-o",
                               str(program)], cwd=ROOT, capture_output=True, text=True)
        if done.returncode != 0:
            missing = re.search(r"undefined reference to `([^']+)'", done.stderr)
            raise DoesNotCompile(f"no definition of {missing[1]}" if missing
                                 else done.stderr)
        return program

    # ---- programs for exercises ------------------------------------------------------------------
    def where(self):
        return shared_object(self.settings, "classroom/where.cpp")

    def program(self, chapter):
        """A chapter's program. What does not include a replaced file is taken from make's own."""
        real_program(self.settings, chapter)
        own = [f for f in self.replaced if is_in_library(f)]
        if chapter != "07_kernels":
            sources = [*sources_of(chapter), *own]
            return self.link(chapter, [self.where(), *map(self.built, sources)])
        own = [f for f in [*self.replaced, *self.also] if f.endswith(".cu")]
        others = [thing for thing in self.settings.kernel_objects
                  if re.sub(r"^build/cpu/obj/", "", thing).removesuffix(".o") + ".cu" not in own]
        # They come first: if two objects have the same inline function, the linker takes the first
        # one.
        return self.link(chapter, [self.where(), *map(self.compile, own), *others],
                         ["-lboost_context"])

    def built(self, file):
        """file, of the repository -> its object: make's, if it includes no replaced file."""
        thing = (ROOT / "build/obj" / file).with_suffix(".o")
        needs = thing.with_suffix(".d")
        if not (thing.exists() and needs.exists()) or file in self.replaced:
            return self.compile(file)
        included = {posixpath.normpath(f) for f in needs.read_text().split()}
        return self.compile(file) if included & self.replaced.keys() else thing

    def tests(self, sources, on_ranks):
        """A test program of these sources (of tests/ or the replaced ones)."""
        make(self.settings, self.settings.library)
        own = [f for f in self.replaced if is_in_library(f)]
        objects = [self.compile(f) for f in [*sources, *own]]
        if on_ranks:
            objects.append(shared_object(self.settings, "classroom/ranks_main.cpp"))
        name = "tests_" + hashlib.sha256(" ".join(sources).encode()).hexdigest()[:8]
        return self.link(name, [self.where(), *objects],
                         ["-lgtest"] if on_ranks else ["-lgtest", "-lgtest_main"])


def is_in_library(file):
    """Whether it is compiled into the library that all chapters share."""
    return file.endswith(".cpp") and (file.startswith("common/") or "/kernels/" in file)


def real_program(settings, chapter):
    """The chapter's own program, as make builds it."""
    program = ROOT / "build/cpu" / chapter
    make(settings, program)
    return program


def sources_of(chapter):
    folder = ROOT / chapter
    return sorted(str(p.relative_to(ROOT)) for p in [*folder.glob("*.cpp"), *folder.glob("*/*.cpp")]
                  if p.parent.name != "kernels")


def shared_object(settings, file, made={}):
    if file not in made:
        made[file] = Tree(settings, "shared", {}).compile(file)
    return made[file]
