#!/usr/bin/env python3
"""The site that `make course` builds: every link, picture and anchor leads somewhere inside it, no
page asks a network for anything, slides fit their screen. Without markdown-it or chromium it says
what is not tested.

    course_test.py          makes a site of its own, without reports of runs
    course_test.py SITE     tests the one that make course has built there"""

import html.parser
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest
import urllib.parse

import browser

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "classroom/kit"))
import render  # noqa: E402

sys.path.insert(0, str(ROOT / "classroom"))
import describe  # noqa: E402

COURSE = ROOT / "classroom/kit/course.py"


class Page(html.parser.HTMLParser):
    def __init__(self, path):
        super().__init__()
        self.links, self.loaded, self.ids = [], [], []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        for name, value in attributes:
            if name == "id":
                self.ids.append(value)
            elif name == "src" or name == "href" and tag == "link":
                self.loaded.append(value)
            elif name == "href":
                self.links.append(value)


class CourseTest(unittest.TestCase):
    built = None  # a site that is there already

    @classmethod
    def setUpClass(cls):
        if cls.built:
            cls.site = cls.built
        else:
            folder = tempfile.TemporaryDirectory()
            cls.addClassCleanup(folder.cleanup)
            cls.site = pathlib.Path(folder.name) / "site"
            subprocess.run([sys.executable, COURSE, "", cls.site], check=True)
        cls.pages = {path: Page(path) for path in cls.site.rglob("*.html")}

    def test_every_link_leads_somewhere(self):
        wrong = []
        for path, page in self.pages.items():
            for link in page.links + page.loaded:
                if re.match(r"https?:", link) and link not in page.loaded:
                    continue
                where, _, anchor = urllib.parse.unquote(link).partition("#")
                target = (path.parent / where).resolve() if where else path
                if not target.is_file() or self.site.resolve() not in target.resolve().parents:
                    wrong.append(f"{path.relative_to(self.site)}: {link}")
                elif anchor and anchor not in self.pages[target].ids:
                    wrong.append(f"{path.relative_to(self.site)}: {link}: no such anchor")
        self.assertEqual(wrong, [])

    def test_every_page_is_there_and_can_be_reached(self):
        for source in [*render.pages(), *(ROOT / "classroom/kit/slides").glob("*.md")]:
            self.assertIn(self.site / render.address(source), self.pages)
        reached, left = set(), [self.site / "index.html"]
        while left:
            path = left.pop()
            if path in reached or path not in self.pages:
                continue
            reached.add(path)
            left += [(path.parent / urllib.parse.unquote(link).partition("#")[0]).resolve()
                     for link in self.pages[path].links if not link.startswith(("http", "#"))]
        self.assertEqual(set(self.pages) - reached, set())

    def test_answers_stay_with_the_teacher_and_solutions_are_folded(self):
        self.assertFalse([path for path in self.pages if "answers" in path.parts])
        folded = {}
        for path in self.pages:
            page = path.read_text(encoding="utf-8")
            for exercise in re.findall(r"<details><summary>The solution of exercise (\S+): ", page):
                folded[exercise] = page
        for e in describe.all_exercises():
            if e.kind == "code" and self.site / render.address(ROOT / e.source) in self.pages:
                shown = re.sub(r"<details><summary>The solution.*?</details>", "", folded.pop(e.id),
                               flags=re.DOTALL)
                numbers = {int(n) for n in re.findall(r'id="L(\d+)"', shown)}
                lines = (ROOT / e.source).read_text(encoding="utf-8").splitlines()
                marks = [n for n, line in enumerate(lines, 1) if f"// exercise {e.id} " in line]
                self.assertFalse(numbers & set(range(marks[0] + 1, marks[1])), e.id)
                self.assertLessEqual(set(marks), numbers, e.id)
        self.assertEqual(folded, {})

    def test_every_page_has_the_previous_and_the_next_or_its_chapter(self):
        alone = [path.relative_to(self.site) for path in self.pages
                 if "slides" not in path.parts and "reports" not in path.parts
                 and not re.search('<nav class="around">.*?<a ', path.read_text(encoding="utf-8"))]
        self.assertEqual(alone, [])

    def test_a_broken_link_is_an_error(self):
        with self.assertRaises(render.BrokenLink):
            render.Linked().follow(ROOT / "README.md", pathlib.PurePath("index.html"), "no/such.h")

    def test_markdown_is_read_as_on_github(self):
        text = "# A `b` (c)\nWords:\n- one\n\n| a | b |\n|---|---|\n| `x` | 2 |\n\n```sh\nls\n```\n"
        page = render.MARKDOWN.renderer.render(
            render.tokens_of(ROOT / "README.md", pathlib.PurePath("index.html"), text,
                             render.Linked()), render.MARKDOWN.options, {})
        for part in ('<h1 id="a-b-c">', "<li>one</li>", "<td><code>x</code></td>", "ls\n</pre>"):
            self.assertIn(part, page)

    @unittest.skipUnless(browser.PROGRAM, "there is no chromium")
    def test_pages_fit_a_phone_and_slides_their_screen(self):
        with browser.Browser() as window:
            for name in ("index.html", "05_pipeline/index.html", "02_zero/4_zero1.h.html",
                         "classroom/kit/index.html"):
                window.open(self.site / name, 360, 800, dark=True)
                self.assertLessEqual(window.run("document.documentElement.scrollWidth"), 360, name)
                window.open(self.site / name, 1200, 800)  # lines of 100 columns, beside the list
                self.assertEqual(window.run("""[document.documentElement, ...document.
                    querySelectorAll("main pre")].filter(e => e.scrollWidth > e.clientWidth + 1)
                    .length"""), 0, name)
            for deck in sorted((self.site / "classroom/kit/slides").glob("[0-9]*.html")):
                window.open(deck, 1280, 720)
                too_long = window.run("""[...document.querySelectorAll("section")].filter(
                    s => s.scrollHeight > s.clientHeight + 1 || s.scrollWidth > s.clientWidth + 1 ||
                    [...s.querySelectorAll("pre, .scroll")].some(e => e.scrollWidth > e.clientWidth
                    + 1 || e.scrollHeight > e.clientHeight + 1)).map(s => s.id)""")
                self.assertEqual(too_long, [], deck.name)
                self.assertEqual(window.run("[...document.images].filter("
                                            "i => i.clientHeight < 150).length"), 0, deck.name)
                window.call("Input.dispatchKeyEvent", type="keyDown", key="ArrowRight")
                self.assertEqual(window.run("shown()"), 1, deck.name)
            self.assertEqual(window.errors, [])


if __name__ == "__main__":
    if len(sys.argv) > 1 and not sys.argv[1].startswith("-"):
        CourseTest.built = pathlib.Path(sys.argv.pop(1)).resolve()
        if not (CourseTest.built / "index.html").exists():
            sys.exit(f"{CourseTest.built}: there is no site (make course)")
    if not browser.PROGRAM:
        print("course_test.py: no chromium (apt install chromium): nothing is looked at")
    unittest.main()
