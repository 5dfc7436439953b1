#!/usr/bin/env python3
"""Tests tests/check_docs.py: documents that are right, and all that may be wrong with them."""

import pathlib
import tempfile
import unittest

from check_docs import Checker, anchor_of

MAKEFILE = """
#   BACKEND   cpu or cuda
NP ?= 1
all: $(PROGRAMS)
run: $(BUILD)/$(CHAPTER)
	$(MPIRUN) -n $(NP) $< $(ARGS)
$(BUILD)/unit_test: x
"""
HELP = """#!/bin/sh
echo '  -h,--help                   Print this
  --steps INT=40              Steps
  --dtype TEXT:{bf16,fp32}=fp32
                              Weights; see --steps'
"""
CHAPTER = "# 01\n`main.cpp` and `ring.h`\n"


class CheckDocsTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        self.write("Makefile", MAKEFILE)
        self.write("01_data/main.cpp", "one\ntwo\n")
        self.write("01_data/ring.h", "")
        self.write("01_data/README.md", CHAPTER)
        self.write("build/cpu/01_data", HELP).chmod(0o755)

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    def faults(self, readme=None, built=False):
        """Of the repository, whose README says that."""
        if readme is not None:
            self.write("README.md", readme)
        found = Checker(self.root, built).check()
        return [f"{file}:{line}: {message}" for file, line, message in found]

    def one_fault(self, readme, expected):
        self.assertEqual(self.faults(readme), ["README.md:" + expected])

    def command(self, command, expected):
        self.one_fault(f"```sh\n{command}\n```\n", "2: " + expected)

    # ---- documents without faults ----------------------------------------------------------------
    def test_right_documents_have_no_faults(self):
        self.write("picture.svg", "<svg/>")
        self.assertEqual(self.faults("""# Title
[chapter](01_data/README.md#01), [folder](01_data), [its anchor](01_data#01), [here](#what-is-)
and [again](#what-is--1), [web](https://example.org/none), [line](01_data/main.cpp#L2),
![picture](picture.svg "title"), <img src="picture.svg">,
`[no link](nowhere.md)` and [`code`](Makefile), [by name][name], <a id="mark"></a>[mark](#mark).

[name]: 01_data/main.cpp

## What is ...?
## What is ...?
```
[no link](nowhere.md)
# no heading
```
"""), [])

    def test_right_commands_have_no_faults(self):
        self.assertEqual(self.faults("""
```sh
make all && make -j4 BACKEND=cpu 01_data build/cpu/unit_test   # it's a comment
make run CHAPTER=01_data NP=4 ARGS="--steps 4 --dtype bf16"
make run CHAPTER=01_data ARGS="..."
mpirun -n 4 build/cpu/01_data --steps 3 \\
    --dtype=bf16 | tail -n 3 > file
$(make -s run) -n 4 build/cuda/01_data --help; build/cpu/unit_test --gtest_filter=A
for type in bf16 fp32; do
    X=1 mpirun -n 2 build/cpu/01_data --dtype $type
done
sh -c 'build/cpu/01_data
    --none'
```
```
build/cpu/01_data --no-command
```
"""), [])

    def test_anchors_are_those_of_github(self):
        for heading, anchor in [("Where is ...?", "where-is-"),
                                ("ZeRO-3: `zero3.h`, *fast*", "zero-3-zero3h-fast"),
                                ("2 × 2 ranks", "2--2-ranks"),
                                ("A [link](x.md)", "a-link"),
                                ("snake_case _here_", "snake_case-here"), ("Größe", "größe")]:
            self.assertEqual(anchor_of(heading), anchor)

    # ---- links -----------------------------------------------------------------------------------
    def test_links(self):
        self.one_fault("\n[x](none.md)", "2: none.md does not exist")
        self.one_fault("![x](none.svg)", "1: none.svg does not exist")
        self.one_fault('<source srcset="dark.svg">', "1: dark.svg does not exist")
        self.one_fault("[text over\ntwo lines](none.md)", "2: none.md does not exist")
        self.one_fault("[x]\n\n[x]: none.md", "3: none.md does not exist")
        self.one_fault("[x](../elsewhere)", "1: ../elsewhere leads out of the repository")
        self.one_fault("```\ncode\n```\n[x](none.md)", "4: none.md does not exist")
        self.write("common/README.md", "[x](/none.md)")
        self.assertEqual(self.faults(""), ["common/README.md:1: /none.md does not exist"])

    def test_anchors(self):
        self.one_fault("# A\n[x](#b)", "2: #b: no heading makes the anchor #b")
        self.one_fault("# A\n[x](#a-1)", "2: #a-1: no heading makes the anchor #a-1")
        self.one_fault("[x](01_data#02)", "1: 01_data#02: no heading makes the anchor #02")
        self.one_fault("[x](01_data/main.cpp#L3)",
                       "1: 01_data/main.cpp#L3: the file has fewer lines")
        self.one_fault("[x](01_data/main.cpp#two)",
                       "1: 01_data/main.cpp#two: an anchor into what has no headings")
        self.one_fault("```\n# A\n```\n[x](#a)", "4: #a: no heading makes the anchor #a")

    # ---- widths and lengths ----------------------------------------------------------------------
    def test_columns_of_code(self):
        self.assertEqual(self.faults("x" * 101 + "\n```\n" + "é" * 100 + "\n```\n"), [])
        self.one_fault("```\n\n" + "x" * 101 + "\n```",
                       "3: 101 columns in a code block, at most 100")
        self.write("MEASURED.md", "```\n" + "x" * 101 + "\n```")
        self.assertEqual(self.faults(""), [])

    def test_lengths(self):
        lines = {"README.md": 300, "common/README.md": 100, "01_data/README.md": 200}
        for name, limit in lines.items():
            self.write(name, CHAPTER + "\n" * (limit - 3))
        self.assertEqual(self.faults(), [])
        for name, limit in lines.items():
            self.write(name, CHAPTER + "\n" * (limit - 2))
        self.assertEqual(len([fault for fault in self.faults() if "should be under" in fault]), 3)
        self.assertIn("01_data/README.md:200: 200 lines, should be under 200", self.faults())
        for name in lines:
            self.write(name, CHAPTER)
        self.write("01_data/MEASURED.md", "\n" * 999)
        self.assertFalse([fault for fault in self.faults() if "should be under" in fault])

    # ---- files -----------------------------------------------------------------------------------
    def test_files_are_named(self):
        for name in ("g.h", "f.cu", "sub/f.cuh", "string.h"):  # ring.h is named, string.h is not
            self.write("01_data/" + name, "")
        self.assertEqual(self.faults(),
                         [f"01_data/README.md:1: does not name {name}"
                          for name in ("f.cu", "g.h", "string.h", "sub/f.cuh")])
        self.write("01_data/README.md", CHAPTER + "`g.h`, `f.cu`, sub/f.cuh, `string.h`")
        self.assertEqual(self.faults(), [])

    def test_a_folder_with_a_readme_of_its_own(self):
        self.write("01_data/sub/f.cuh", "")
        self.write("01_data/sub/README.md", "")
        self.assertEqual(self.faults(),
                         ["01_data/README.md:1: does not name sub",
                          "01_data/sub/README.md:1: does not name f.cuh"])
        self.write("01_data/README.md", CHAPTER + "[sub](sub)")
        self.write("01_data/sub/README.md", "`f.cuh`")
        self.assertEqual(self.faults(), [])

    def test_a_chapter_without_a_readme(self):
        self.write("02_zero/main.cpp", "")
        self.assertEqual(self.faults(""),
                         ["02_zero/main.cpp:1: there is no README.md that could name it"])

    # ---- commands --------------------------------------------------------------------------------
    def test_options(self):
        self.command("build/cpu/01_data --none", "01_data has no option --none")
        self.command("build/cpu/01_data --steps 3 -x", "01_data has no option -x")
        self.command("build/cuda/01_data --step 3", "01_data has no option --step")
        self.command("mpirun -n 2 build/cpu/01_data --none=3 | tail",
                     "01_data has no option --none")
        self.command("build/cpu/01_data --steps 3 \\\n  --none", "01_data has no option --none")
        self.command("for x in a; do build/cpu/01_data --none; done",
                     "01_data has no option --none")
        self.command("build/cpu/01_data --dtype fp8", "01_data --dtype fp8: one of bf16, fp32")
        self.one_fault("```\n$ build/cpu/01_data --none\n```", "2: 01_data has no option --none")

    def test_programs_and_scripts(self):
        self.command("build/cpu/01_date", "there is no program 01_date")
        self.command("mpirun -n 4 ./01_data", "mpirun starts none of our programs")
        self.command("tests/none.sh", "tests/none.sh does not exist")
        self.command("python3 none.py", "none.py does not exist")
        self.command('echo "open', "a command that does not end")

    def test_make(self):
        self.command("make none", "make has no target none")
        self.command("make build/cpu/none", "make has no target build/cpu/none")
        self.command("make NONE=1", "the Makefile knows no NONE")
        self.command("make run CHAPTER=02_zero", "there is no program 02_zero")
        self.command('make run CHAPTER=01_data ARGS="--none"', "01_data has no option --none")

    def test_programs_that_are_not_there(self):
        readme = "```sh\nbuild/cpu/01_data --none\n```"
        self.write("build/cpu/01_data", "#!/bin/sh\nexit 3\n")
        self.one_fault(readme, "2: 01_data --help ends with 3")
        (self.root / "build/cpu/01_data").unlink()
        self.assertEqual(self.faults(readme), [])
        self.assertEqual(self.faults(readme, built=True),
                         ["README.md:2: 01_data is not built, so nobody knows its options"])


if __name__ == "__main__":
    unittest.main()
