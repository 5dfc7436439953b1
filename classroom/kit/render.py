"""Markdown, sources and slides as pages: what course.py puts together.

markdown-it reads the Markdown, as GitHub does (CommonMark and tables); Pygments colours code. Links
between pages follow: README.md becomes index.html, and a link to a source leads to a page of it."""

import html
import pathlib
import re
import sys
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
# The folders of Debian's packages, even if they were unpacked without root or python3 is another.
sys.path += [str(ROOT / ".deps/usr/lib/python3/dist-packages"), "/usr/lib/python3/dist-packages"]
sys.path.insert(0, str(ROOT / "tests"))
try:
    import pygments
    import pygments.formatters
    import pygments.lexers
    import pygments.util
    from markdown_it import MarkdownIt
except ImportError as error:
    sys.exit(f"{error}: make course installs it on Debian and Ubuntu; elsewhere "
             "pip install markdown-it-py pygments")
sys.path.insert(0, str(ROOT / "classroom"))
from check_docs import anchor_of  # noqa: E402  as GitHub makes them
from regions import MARKER  # noqa: E402

NOT_PAGES = ("build", "exercises", "classroom/answers", "classroom/kit/slides")


class BrokenLink(Exception):
    pass


def pages():
    """All Markdown files that are pages. Answers are for teachers, slides are another format."""
    found = []
    for path in sorted(ROOT.rglob("*.md")):
        name = path.relative_to(ROOT).as_posix()
        if not name.startswith(".") and not any(name.startswith(n + "/") for n in NOT_PAGES):
            found.append(path)
    return found


def address(path):
    """A file's place in the site, relative to it."""
    inside = path.relative_to(ROOT)
    if path.is_dir():
        return inside / "index.html"
    if path.suffix == ".md":
        return inside.with_name("index.html") if path.name == "README.md" else \
            inside.with_suffix(".html")
    if path.suffix in (".svg", ".png", ".ipynb"):
        return inside
    return inside.with_name(path.name + ".html")


def relative(target, page):
    """From the page at the site's address `page` to that at `target`."""
    up = "../" * (len(page.parts) - 1)
    return urllib.parse.quote(up + target.as_posix())


class Linked:
    """Follows links, and remembers what else the site must hold: sources, folders, pictures."""

    def __init__(self):
        self.files = set()

    def follow(self, source, page, target):
        if re.match(r"[a-zA-Z][\w+.-]*:", target):
            return target
        where, mark, anchor = urllib.parse.unquote(target).partition("#")
        if not where:
            return target
        path = (source.parent / where).resolve()
        if not path.exists() or ROOT not in (path, *path.parents):
            raise BrokenLink(f"{source.relative_to(ROOT)}: {target} does not exist")
        if path.is_dir() and (path / "README.md").exists():
            path = path / "README.md"
        if path.suffix != ".md" or "slides" in path.parts:
            self.files.add(path)
        return relative(address(path), page) + mark + anchor


def coloured(code, language, _=None):
    """The inside of <pre>; markdown-it asks for it with a block's language."""
    try:
        lexer = pygments.lexers.get_lexer_by_name(language or "text", stripnl=False)
    except pygments.util.ClassNotFound:
        lexer = pygments.lexers.get_lexer_by_name("text")
    inside = pygments.highlight(code, lexer, pygments.formatters.HtmlFormatter(nowrap=True))
    return f'<pre class="code">{inside}</pre>'


def colours():
    """Pygments' styles for light and dark."""
    of = lambda style: pygments.formatters.HtmlFormatter(style=style).get_style_defs("pre.code")
    dark = re.sub(r"background[-\w]*: *#\w+;?", "", of("github-dark"))
    light = re.sub(r"background[-\w]*: *#\w+;?", "", of("default"))
    return f"{light}\n@media screen and (prefers-color-scheme: dark) {{\n{dark}\n}}\n"


MARKDOWN = MarkdownIt("commonmark", {"highlight": coloured}).enable(["table", "strikethrough"])
MARKDOWN.add_render_rule("table_open", lambda *_: '<div class="scroll"><table>')
MARKDOWN.add_render_rule("table_close", lambda *_: "</table></div>")


def tokens_of(source, page, text, linked):
    """Parsed, with links that lead to the site's pages and headings that can be linked to."""
    tokens, times = MARKDOWN.parse(text), {}
    for token, following in zip(tokens, tokens[1:] + [None]):
        if token.type == "heading_open":
            slug = anchor_of(following.content)
            repeated = times.get(slug, 0)
            times[slug] = repeated + 1
            token.attrSet("id", f"{slug}-{repeated}" if repeated else slug)
        for child in token.children or []:
            for attribute in ("href", "src"):
                if target := child.attrGet(attribute):
                    child.attrSet(attribute, linked.follow(source, page, target))
    return tokens


def title_of(text):
    heading = re.search(r"^# +(.*)", text, re.MULTILINE)
    return re.sub(r"[`*]", "", heading[1]) if heading else ""


def markdown(source, linked):
    text = source.read_text(encoding="utf-8")
    tokens = tokens_of(source, address(source), text, linked)
    return title_of(text), MARKDOWN.renderer.render(tokens, MARKDOWN.options, {})


def source_file(path):
    """A source with its lines' numbers, to which links lead (#L12). The solutions of exercises are
    folded."""
    text = path.read_text(encoding="utf-8", errors="replace")
    try:
        lexer = pygments.lexers.get_lexer_for_filename(
            path.name.replace(".cuh", ".cpp").replace(".cu", ".cpp"), stripnl=False)
    except pygments.util.ClassNotFound:
        lexer = pygments.lexers.get_lexer_by_name("text")
    lines = pygments.highlight(text, lexer, pygments.formatters.HtmlFormatter(nowrap=True))
    rows = [f'<span id="L{n}" class="line">{line}\n</span>'
            for n, line in enumerate(lines.rstrip("\n").split("\n"), 1)]
    marks = [(n, mark) for n, line in enumerate(text.splitlines(), 1)
             if (mark := MARKER.match(line))]

    def block(begin, end):  # lines begin + 1 to end
        return (f'<pre class="code numbered" style="counter-reset: line {begin}">'
                f'{"".join(rows[begin:end])}</pre>')
    shown, at = "", 0
    for (begin, mark), (end, _) in zip(marks[::2], marks[1::2]):
        shown += (block(at, begin) + f"<details><summary>The solution of exercise {mark[2]}: lines "
                  f"{begin + 1} to {end - 1}</summary>{block(begin, end - 1)}</details>")
        at = end - 1
    name = path.relative_to(ROOT).as_posix()
    return name, f"<h1>{name}</h1>\n{shown}{block(at, len(rows))}"


def folder(path, linked):
    """A folder without a README: its files."""
    files = sorted(p for p in path.iterdir() if p.is_file() and not p.name.startswith("."))
    linked.files.update(files)
    name = path.relative_to(ROOT).as_posix() + "/"
    items = "".join(f'<li><a href="{relative(address(p), address(path))}">{p.name}</a></li>'
                    for p in files)
    return name, f"<h1>{name}</h1>\n<ul>{items}</ul>"


def slides(source, linked, style, script):
    """A deck: one page, in which each slide fills the screen, or a sheet when it is printed."""
    text = source.read_text(encoding="utf-8")
    text = re.sub(r"\A---\n.*?\n---\n", "", text, flags=re.DOTALL)  # the header that Marp reads
    tokens = tokens_of(source, address(source), text, linked)
    parts = [[]]
    for token in tokens:
        if token.type == "hr":
            parts.append([])
        elif token.type == "html_block" and token.content.startswith("<!--"):
            note = token.content.strip().removeprefix("<!--").removesuffix("-->").strip()
            token.content = f'<aside>{html.escape(note)}</aside>\n'
            parts[-1].append(token)
        else:
            parts[-1].append(token)
    shown = [MARKDOWN.renderer.render(part, MARKDOWN.options, {}) for part in parts]
    body = "\n".join(f'<section id="{n}">\n{part}</section>' for n, part in enumerate(shown, 1))
    return title_of(text), f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{html.escape(title_of(text))}</title>
<style>
{style}</style></head>
<body class="deck">
{body}
<script>
{script}</script></body></html>
"""
