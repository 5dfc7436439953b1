"""The marked parts of source files:

    // exercise 02.1 begin: what the student is told
    ... the solution ...
    // exercise 02.1 end

Where a part lies is found by its markers, wherever the code moves. A change of a part (a wrong
solution) is found by its tokens, wherever lines are broken."""

import functools
import re

from places import ROOT, Wrong

MARKER = re.compile(r"^(\s*)// exercise (\d\d\.\w+) (begin|end)(?:: (.*))?$")
SOURCES = (".h", ".cpp", ".cu", ".cuh")
# Comments and raw strings come first: code inside them is not code.
TOKEN = re.compile(r'(?P<comment>//[^\n]*|/\*.*?\*/)|R"(?P<raw>[^(\s]*)\(.*?\)(?P=raw)"'
                   r"|\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)+'|[A-Za-z_]\w*"
                   r"|\.?\d(?:'?[\w.]|(?<=[eEpP])[+-])*|\S", re.DOTALL)


class Region:
    """A marked part of a text: part, hint, and what is before and after its markers' lines, without
    the markers of all other exercises."""

    def __init__(self, text, wanted, where):
        self.before, self.after, part, self.hint = [], [], [], None
        self.ended = False
        for line in text.splitlines():
            mark = MARKER.match(line)
            if mark and mark[2] != wanted:
                continue
            if mark and mark[3] == "begin" and self.hint is None:
                self.indent, self.hint = mark[1], mark[4] or ""
            elif mark and mark[3] == "end" and self.hint is not None and not self.ended:
                self.ended = True
            elif mark and self.hint is None:
                break
            elif mark:
                raise Wrong(f"{where}: there are two lines \"// exercise {wanted} {mark[3]}\"")
            elif self.hint is None:
                self.before.append(line)
            else:
                (self.after if self.ended else part).append(line)
        if not self.ended:
            missing = "begin" if self.hint is None else "end"
            raise Wrong(f"{where}: the line \"// exercise {wanted} {missing}\" is not there; what "
                        "lies between begin and end is what counts")
        self.part = "".join(line + "\n" for line in part)
        self.id = wanted

    def line(self):
        """Of the marker that begins the part."""
        return len(self.before) + 1

    def with_part(self, part):
        """The text with another part."""
        hint = f": {self.hint}" if self.hint else ""
        return "\n".join([*self.before, f"{self.indent}// exercise {self.id} begin{hint}",
                          *part.rstrip("\n").split("\n"),
                          f"{self.indent}// exercise {self.id} end", *self.after]) + "\n"

    def indented(self, code):
        return "".join(self.indent + line + "\n" if line else "\n"
                       for line in code.strip("\n").splitlines())


@functools.cache
def marked_files():
    """Of each exercise that has markers the file, relative to the repository."""
    found = {}
    for folder in sorted(p for p in ROOT.glob("*")
                         if p.name[:2].isdigit() or p.name in ("common", "classroom")):
        for path in sorted(folder.rglob("*")):
            if path.suffix not in SOURCES:
                continue
            for line in path.read_text(encoding="utf-8").splitlines():
                mark = MARKER.match(line)
                if mark and mark[3] == "begin":
                    if mark[2] in found:
                        raise Wrong(f"exercise {mark[2]} begins twice: in {found[mark[2]]} and "
                                    f"{path.relative_to(ROOT)}")
                    found[mark[2]] = str(path.relative_to(ROOT))
    return found


def tokens(text):
    """[(token, begin, end)], without comments."""
    return [(m[0], m.start(), m.end()) for m in TOKEN.finditer(text) if m["comment"] is None]


def replaced(text, old, new, what):
    """text with the tokens of `old`, which must be there once, replaced by the text `new`."""
    have, wanted = tokens(text), [token for token, *_ in tokens(old)]
    names = [token for token, *_ in have]
    if not wanted:
        raise Wrong(f"{what}: there is no code in it, only a comment: {old.strip()}")
    found = [i for i in range(len(names) - len(wanted) + 1) if names[i] == wanted[0]
             and names[i:i + len(wanted)] == wanted]
    if len(found) != 1:
        raise Wrong(f"{what}: its code is there {len(found)} times, not once: {old.strip()}")
    begin, end = have[found[0]][1], have[found[0] + len(wanted) - 1][2]
    return text[:begin] + new.strip("\n") + text[end:]


def replaced_somewhere(folders, old, new, what):
    """(file, its text with `old` replaced): of the one file in these folders that has it."""
    longest = max(re.findall(r"\w+", old), key=len)
    found = []
    for path in sorted(p for folder in folders for p in (ROOT / folder).rglob("*")
                       if p.suffix in SOURCES):
        text = path.read_text(encoding="utf-8")
        if longest in text:
            try:
                found.append((str(path.relative_to(ROOT)), replaced(text, old, new, what)))
            except Wrong:
                continue
    if len(found) != 1:
        raise Wrong(f"{what}: its code is in {len(found)} files, not in one: {old.strip()}")
    return found[0]


# ---- the code that a student may write -----------------------------------------------------------
def refusal(part, first_line):
    """Why this is no part of a function or file, in a sentence; None if it is one. The part could
    otherwise end the function that it is in, or redefine the words that check it."""
    def at(place):
        return f"Line {first_line + part.count(chr(10), 0, place)}"
    closing = {")": "(", "]": "[", "}": "{"}
    opened = []
    for line in re.finditer(r"^[ \t]*#[ \t]*(\w*).*$|\\$", part, re.MULTILINE):
        if line[1] != "pragma":
            return (f"{at(line.start())} is for the preprocessor ({line[0].strip()}): the marked "
                    "part is code.")
    for token, begin, _ in tokens(part):
        if part[begin:begin + 2] in ("<%", "%>", "%:") and len(token) == 1:
            return f"{at(begin)} has {part[begin:begin + 2]}: write it as a brace."
        if token in "([{":
            opened.append((token, begin))
        elif token in closing:
            if not opened or opened[-1][0] != closing[token]:
                return f"{at(begin)} has a {token} that closes nothing which the part has opened."
            opened.pop()
    if opened:
        return f"{at(opened[-1][1])} has a {opened[-1][0]} that nothing in the part closes."
    return None
