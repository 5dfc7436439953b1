#!/usr/bin/env python3
"""What tests/deps.sh promises: it looks for headers and tools, where the build looks, and not for
packages. And what the Makefile takes from a conda environment, and says on macOS. Programs that a
test must not run, such as apt-get, are scripts here."""

import os
import pathlib
import re
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).parent.parent


class DepsTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.called = self.folder / "called"
        self.program("apt-get", f'echo "$@" >>{self.called}')
        self.program("id", "echo 0")  # so apt is called as root would
        self.header("here/fmt/format.h")

    def program(self, name, text):
        path = self.folder / "bin" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    def header(self, name):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()

    def run_here(self, *words, **variables):
        """Returns the exit code, and what was printed."""
        others = ("CONDA", "MAKE", "MFLAGS", "MPI")
        clean = {name: value for name, value in os.environ.items()
                 if not name.startswith(others) and name not in variables}
        path = f"{self.folder}/bin:{os.environ['PATH']}"
        done = subprocess.run(words, cwd=ROOT, env={**clean, "PATH": path, **variables}, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        return done.returncode, done.stdout

    def deps(self, *packages, **variables):
        """The compiler sees no headers but those in the folder `here`."""
        return self.run_here("tests/deps.sh", *packages, FLAGS=f"-nostdinc -I{self.folder}/here",
                             **variables)

    def test_finds_a_header_with_its_library(self):
        self.assertEqual(self.deps("libfmt-dev", "python3"), (0, ""))
        self.assertFalse(self.called.exists())

    def test_installs_only_what_is_missing(self):
        self.assertEqual(self.deps("libfmt-dev", "libcli11-dev", "python3"),
                         (0, "installing: libcli11-dev\n"))
        self.assertRegex(self.called.read_text(),
                         r"^update.*\ninstall.* --no-install-recommends libcli11-dev\n$")

    def test_a_header_without_its_library_is_missing(self):
        self.program("compiler", 'case "$*" in *-lfmt*) exit 1; esac; exec g++ "$@"')
        self.assertEqual(self.deps("libfmt-dev", "python3", CXX="compiler"),
                         (0, "installing: libfmt-dev\n"))

    def test_apt_installs_mpich_beside_another_mpi_and_conda_does_not(self):
        self.header("here/mpi.h")
        self.assertEqual(self.deps("libmpich-dev"), (0, "installing: libmpich-dev\n"))
        self.assertEqual(self.deps("libmpich-dev", CONDA="/env"), (0, ""))

    def test_without_a_network_another_mpi_will_do(self):
        self.program("apt-get", "exit 100")
        self.header("here/mpi.h")
        self.assertEqual(self.deps("libmpich-dev"), (0, "installing: libmpich-dev\nthey cannot be "
                                   "installed, but others that are here will do\n"))
        self.assertEqual(self.deps("libmpich-dev", "libcli11-dev"), (1,
            "installing: libmpich-dev libcli11-dev\nlibcli11-dev cannot be installed\n"))

    def test_in_a_conda_environment_it_says_what_to_install(self):
        code, said = self.deps("mpich", "libmpich-dev", "libopenblas-openmp-dev", "libfmt-dev",
                               CONDA="/env")
        self.assertEqual((code, said.splitlines()), (1, [
            "not found: mpich libmpich-dev libopenblas-openmp-dev. Conda has it:",
            "conda install -c conda-forge mpich 'openblas=*=openmp*'"]))
        self.assertFalse(self.called.exists())

    def test_knows_what_ci_asks_for(self):
        calls = re.findall(r"tests/deps\.sh ([^#\n]*)", (ROOT / ".ci/run").read_text())
        self.assertGreaterEqual(len(calls), 2)
        for packages in calls:
            code, said = self.deps(*packages.split())
            self.assertEqual(code, 0, said)

    def test_make_finds_everything_here(self):
        self.assertEqual(self.run_here("make", "-s", "deps"), (0, ""))
        self.assertFalse(self.called.exists())

    def test_only_an_environment_with_our_packages_counts(self):
        def compiler():
            code, said = self.run_here(
                "make", "-n", "-W", "common/core/tensor.cpp", "build/obj/common/core/tensor.o",
                CONDA_PREFIX=str(self.folder), CXXFLAGS="-ftree-vectorize")
            self.assertEqual(code, 0)
            return said.splitlines()[-1]
        self.assertNotIn(f"{self.folder}/include", compiler())
        self.assertIn("-ftree-vectorize", compiler())
        self.header("include/CLI/CLI.hpp")
        self.assertIn(f"-isystem {self.folder}/include", compiler())
        self.assertNotIn("-ftree-vectorize", compiler())

    def test_on_macos_the_first_line_says_container(self):
        self.program("uname", "echo Darwin")
        code, said = self.run_here("make", "-n")
        self.assertEqual((code, len(said.splitlines())), (2, 1))
        self.assertIn("On macOS use the container", said)


if __name__ == "__main__":
    unittest.main()
