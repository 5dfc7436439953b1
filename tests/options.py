#!/usr/bin/env python3
"""Writes which chapter has which option, as the programs' --help says, into OPTIONS.md's table and
into the one behind "is an option of" (common/lab/options/other_chapters.inc).

    tests/options.py [--check] BUILD

With --check it writes nothing, names each file that is not as it would be, and ends with 1.
"""
import argparse
import pathlib
import re
import subprocess
import sys
import textwrap

ROOT = pathlib.Path(__file__).resolve().parent.parent
CHAPTERS = sorted(path.parent.name for path in ROOT.glob("[0-9][0-9]_*/main.cpp"))
TRAINING = [chapter for chapter in CHAPTERS if chapter != "07_kernels"]
BEGIN, END = "<!-- written by `make options` -->\n", "<!-- end of what it writes -->\n"


def options_of(program):
    told = subprocess.run([program, "--help"], check=True, capture_output=True, text=True).stdout
    return re.findall(r"^  (--[\w-]+)", told, re.MULTILINE)


def rows(build):
    """(the chapters, all options that just these have), the widest spread options first."""
    owners = {}
    for chapter in CHAPTERS:
        for option in options_of(build / chapter):
            owners.setdefault(option, []).append(chapter)
    found = {}
    for option in sorted(owners):
        found.setdefault(tuple(owners[option]), []).append(option)
    return sorted(found.items(), key=lambda row: [c not in row[0] for c in CHAPTERS])


def for_the_page(table):
    def line(first, columns):
        return f"| {first} | {' | '.join(columns)} |\n"
    return (line("option", [chapter[:2] for chapter in CHAPTERS]) +
            "|---" * (1 + len(CHAPTERS)) + "|\n" +
            "".join(line(", ".join(f"`{option}`" for option in options),
                         ["x" if chapter in owners else " " for chapter in CHAPTERS])
                    for owners, options in table))


def for_error_message(table):
    def literal(text):
        return '"' + textwrap.fill(text, 90, break_on_hyphens=False).replace("\n", ' "\n "') + '"'
    text = "// Written by `make options`: options, and the chapters that have them.\n"
    for owners, options in table:
        if list(owners) != CHAPTERS:  # options that all chapters have are expected everywhere
            who = "every chapter that trains" if list(owners) == TRAINING else " and ".join(owners)
            text += f'{{{literal(" ".join(options))},\n {literal(who)}}},\n'
    return text


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("build", type=pathlib.Path)
    given = parser.parse_args()
    table = rows(given.build.resolve())
    page = ROOT / "OPTIONS.md"
    before, _, after = re.split(f"{BEGIN}|{END}", page.read_text(encoding="utf-8"))
    wanted = {page: before + BEGIN + for_the_page(table) + END + after,
              ROOT / "common/lab/options/other_chapters.inc": for_error_message(table)}
    changed = [path for path, text in wanted.items()
               if not path.exists() or path.read_text(encoding="utf-8") != text]
    for path in changed:
        print(f"{path}: {'is not what `make options` writes' if given.check else 'written'}")
        if not given.check:
            path.write_text(wanted[path], encoding="utf-8")
    sys.exit(given.check and bool(changed))
