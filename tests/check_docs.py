#!/usr/bin/env python3
"""Looks for what a reader of the documents would stumble over: links and pictures that lead
nowhere, lines too wide for a projector, READMEs too long, files that no README names, commands with
options that the programs do not have.

    tests/check_docs.py [--built] [ROOT]

Prints one line a fault, "file:line: what is wrong", and ends with 1 if there is any. Programs are
asked for their options if they are built; with --built one that is not is a fault, too.
"""

import argparse
import pathlib
import re
import shlex
import subprocess
import sys
import urllib.parse

COLUMNS = 100
SOURCES = {".h", ".cpp", ".cu", ".cuh"}
CHAPTER = re.compile(r"\d\d_\w+")
PROGRAM = re.compile(r"(?:\./)?build/(?:cpu|cuda|simt)[\w-]*/(\w+)")


class Document:
    """A Markdown file: its lines, and which of them are prose and which are code."""

    def __init__(self, path):
        self.path = path
        self.lines = path.read_text(encoding="utf-8").splitlines()
        self.prose = []  # (number, text) without the words in backticks, which contain no links
        self.blocks = []  # (language, [(number, text), ...])
        fence = None
        for number, text in enumerate(self.lines, 1):
            mark = re.match(r"[\s>]*(`{3,}|~{3,})\s*(\w*)", text)
            if fence is None and mark:
                fence = mark[1]
                self.blocks.append((mark[2], []))
            elif fence is None:
                self.prose.append((number, text))
            elif mark and mark[1].startswith(fence) and not mark[2]:
                fence = None
            else:
                self.blocks[-1][1].append((number, text))

    def anchors(self):
        """What a link's part behind # may say: GitHub makes it of the headings."""
        found, times = set(), {}
        for _, text in self.prose:
            found.update(re.findall(r'<\w+ [^>]*?\b(?:id|name)="([^"]+)"', text))
            if heading := re.match(r" {0,3}#{1,6}\s+(.*?)\s*#*\s*$", text):
                slug = anchor_of(heading[1])
                repeated = times.get(slug, 0)
                times[slug] = repeated + 1
                found.add(f"{slug}-{repeated}" if repeated else slug)
        return found

    def links(self):
        for number, text in self.prose:
            text = re.sub(r"(`+)(?!`).*?(?<!`)\1(?!`)", "", text)
            for pattern in (r'\]\(\s*<?([^)\s>]+)>?(?:\s+"[^"]*")?\s*\)',
                            r"^ {0,3}\[[^\]]+\]:\s*<?([^\s>]+)",
                            r'<[^>]*?\b(?:src|srcset|href)="([^"\s]+)'):
                for target in re.findall(pattern, text):
                    yield number, target


def anchor_of(heading):
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    text = re.sub(r"<[^>]+>", "", text)
    text = re.sub(r"(?<!\w)_(.+?)_(?!\w)", r"\1", text)
    return re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")


class Checker:
    def __init__(self, root, built=False):
        self.root = root.resolve()
        self.built = built
        self.faults = []  # (file, line, message)
        self.not_built = set()
        self.known_options = {}  # by chapter: (options, values of some), or None if it is not built
        makefile = self.root / "Makefile"
        self.makefile = makefile.read_text() if makefile.exists() else ""
        self.chapters = sorted(path.name for path in self.root.iterdir()
                               if path.is_dir() and CHAPTER.fullmatch(path.name))
        self.documents = {}
        for path in sorted(self.root.rglob("*.md")):
            inside = path.relative_to(self.root).parts
            if inside[0] != "build" and not any(part.startswith(".") for part in inside):
                self.documents[path] = Document(path)

    def check(self):
        for document in self.documents.values():
            for number, target in document.links():
                self.check_link(document, number, target)
            if document.path.name == "README.md":
                self.check_width(document)
                self.check_length(document)
                self.check_commands(document)
        for chapter in self.chapters:
            self.check_files_are_named(self.root / chapter)
        return sorted(set(self.faults))

    def fault(self, path, line, message):
        self.faults.append((str(path.relative_to(self.root)), line, message))

    # ---- links, widths, lengths, files -----------------------------------------------------------
    def check_link(self, document, number, target):
        if re.match(r"[a-zA-Z][\w+.-]*:|//", target):
            return
        where, _, anchor = urllib.parse.unquote(target).partition("#")
        base = self.root if where.startswith("/") else document.path.parent
        path = (base / where.lstrip("/")).resolve() if where else document.path
        if path != self.root and self.root not in path.parents:
            return self.fault(document.path, number, f"{target} leads out of the repository")
        if not path.exists():
            return self.fault(document.path, number, f"{target} does not exist")
        if not anchor:
            return
        pointed = self.documents.get(path / "README.md" if path.is_dir() else path)
        if pointed:
            if anchor not in pointed.anchors():
                self.fault(document.path, number,
                           f"{target}: no heading makes the anchor #{anchor}")
        elif (lines := re.fullmatch(r"L(\d+)(?:-L(\d+))?", anchor)) and path.is_file():
            last = int(lines[2] or lines[1])
            if last > len(path.read_text(encoding="utf-8").splitlines()):
                self.fault(document.path, number, f"{target}: the file has fewer lines")
        else:
            self.fault(document.path, number, f"{target}: an anchor into what has no headings")

    def check_width(self, document):
        for _, lines in document.blocks:
            for number, text in lines:
                if len(text) > COLUMNS:
                    self.fault(document.path, number,
                               f"{len(text)} columns in a code block, at most {COLUMNS}")

    def check_length(self, document):
        inside = document.path.relative_to(self.root).parts
        limit = (300 if len(inside) == 1 else 100 if inside[0] == "common"
                 else 200 if CHAPTER.fullmatch(inside[0]) else None)
        if limit and len(document.lines) >= limit:
            self.fault(document.path, len(document.lines),
                       f"{len(document.lines)} lines, should be under {limit}")

    def check_files_are_named(self, chapter):
        """Each source is named by the README of its folder, or of the nearest above it."""
        for path in sorted(chapter.rglob("*")):
            folder_with_readme = path.is_dir() and path / "README.md" in self.documents
            if path.suffix not in SOURCES and not folder_with_readme:
                continue
            folder = path.parent
            while folder != self.root and folder / "README.md" not in self.documents:
                folder = folder.parent
            if folder == self.root:
                self.fault(path, 1, "there is no README.md that could name it")
                continue
            readme = self.documents[folder / "README.md"]
            if not re.search(rf"(?<![\w.-]){re.escape(path.name)}(?!\w)", "\n".join(readme.lines)):
                self.fault(readme.path, 1, f"does not name {path.relative_to(folder)}")

    # ---- commands --------------------------------------------------------------------------------
    def check_commands(self, document):
        for language, lines in document.blocks:
            is_shell = language in ("sh", "bash", "shell", "console")
            pending, first = "", 0
            for number, text in lines:
                if not pending:
                    if not is_shell and not text.startswith("$ "):
                        continue
                    first = number
                pending += text.removeprefix("$ ") + "\n"
                if text.endswith("\\"):
                    continue
                try:
                    words = split(pending)
                except ValueError:  # a quote is still open
                    continue
                for command in words:
                    self.check_command(document.path, first, command)
                pending = ""
            if pending:
                self.fault(document.path, first, "a command that does not end")

    def check_command(self, path, line, words):
        while words and (words[0] in ("do", "then", "else", "sudo", "time")
                         or re.match(r"\w+=", words[0])):
            words = words[1:]
        if not words:
            return
        if words[0] == "make":
            return self.check_make(path, line, words[1:])
        for word in words[:2] if words[0].startswith("python") else words[:1]:
            if re.search(r"\.(py|sh)$", word) and not (self.root / word).exists():
                self.fault(path, line, f"{word} does not exist")
        for place, word in enumerate(words):
            if program := PROGRAM.fullmatch(word):
                return self.check_program(path, line, program[1], words[place + 1:])
        if words[0].startswith("mpirun"):
            self.fault(path, line, "mpirun starts none of our programs")

    def check_make(self, path, line, words):
        settings, targets = {}, []
        for word in words:
            name, equals, value = word.partition("=")
            if equals:
                settings[name] = value
                if not re.search(rf"\$\({name}\)|^#   {name} |^{name}\b *[?:]?=", self.makefile,
                                 re.MULTILINE):
                    self.fault(path, line, f"the Makefile knows no {name}")
            elif not word.startswith("-"):
                targets.append(word)
        known = {*self.chapters, *re.findall(r"^([\w-]+):(?!=)", self.makefile, re.MULTILINE)}
        for target in targets:
            program = PROGRAM.fullmatch(target)
            if program and not self.is_program(program[1]) or not program and target not in known:
                self.fault(path, line, f"make has no target {target}")
        chapter = settings.get("CHAPTER", next(iter(self.chapters), ""))
        if "CHAPTER" in settings or "ARGS" in settings:
            self.check_program(path, line, chapter, shlex.split(settings.get("ARGS", "")))

    def is_program(self, name):
        return (name in self.chapters or (self.root / f"tests/bench/{name}.cpp").exists()
                or f"/{name}:" in self.makefile)

    def check_program(self, path, line, name, words):
        if not self.is_program(name):
            return self.fault(path, line, f"there is no program {name}")
        if name not in self.chapters:
            return  # a test's options are GoogleTest's
        known = self.options_of(path, line, name)
        if known is None:
            return
        options, values = known
        for word, following in zip(words, words[1:] + [""]):
            option, equals, value = word.partition("=")
            if not re.match(r"--?[a-zA-Z]", option):
                continue
            value = value if equals else following
            if option not in options:
                self.fault(path, line, f"{name} has no option {option}")
            elif value not in values.get(option, [value]) and not value.startswith(("$", ".")):
                self.fault(path, line,
                           f"{name} {option} {value}: one of {', '.join(values[option])}")

    def options_of(self, path, line, name):
        if name not in self.known_options:
            program = next((p for p in (self.root / "build" / b / name for b in ("cpu", "cuda"))
                            if p.exists()), None)
            self.known_options[name] = None
            if program:
                done = subprocess.run([program, "--help"], capture_output=True, text=True,
                                      timeout=60)
                if done.returncode != 0:
                    self.fault(path, line, f"{name} --help ends with {done.returncode}")
                else:
                    options = set(re.findall(r"(?<![\w-])--?[a-zA-Z][\w-]*", done.stdout))
                    values = re.findall(r"^\s+(--[\w-]+) TEXT:\{([^}]*)\}", done.stdout,
                                        re.MULTILINE)
                    self.known_options[name] = options, {o: v.split(",") for o, v in values}
            elif self.built:
                self.fault(path, line, f"{name} is not built, so nobody knows its options")
            else:
                self.not_built.add(name)
        return self.known_options[name]


def split(text):
    """The commands of a line of shell, each as its words. An open quote raises ValueError."""
    lexer = shlex.shlex(text.replace("\\\n", " "), posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    commands = [[]]
    for word in lexer:
        if set(word) <= set("();<>|&"):
            commands.append([])
        else:
            commands[-1].append(word)
    return commands


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--built", action="store_true", help="a program not built is a fault")
    parser.add_argument("root", nargs="?", type=pathlib.Path,
                        default=pathlib.Path(__file__).parent.parent)
    arguments = parser.parse_args()
    checker = Checker(arguments.root, arguments.built)
    found = checker.check()
    for file, line, message in found:
        print(f"{file}:{line}: {message}")
    if checker.not_built:
        print("not built, so that their options were not looked at: "
              f"{', '.join(sorted(checker.not_built))}")
    print(f"{len(checker.documents)} documents, {len(found)} faults")
    sys.exit(1 if found else 0)
