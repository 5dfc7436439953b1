#!/usr/bin/env python3
"""The browser of the pages' tests: what a page's script throws is reported, and one that never ends
is given up, so that no test waits for ever. Without chromium it says so and tests nothing."""

import pathlib
import sys
import tempfile
import time
import unittest

import browser

SECONDS = 5


class BrowserTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name) / "page.html"
        self.window = browser.Browser(SECONDS)
        self.addCleanup(self.window.__exit__)

    def open(self, script):
        self.path.write_text(f"<!DOCTYPE html><p>words</p><script>{script}</script>")
        self.window.open(self.path)

    def gives_up(self, what):
        """Raises TooLate in time, and leaves no process behind; returns its words."""
        begin = time.monotonic()
        with self.assertRaises(browser.TooLate) as raised:
            what()
        self.assertLess(time.monotonic() - begin, SECONDS + 5)
        self.assertIsNotNone(self.window.process.poll())
        with self.assertRaises(OSError):  # later questions fail at once
            self.window.run("1")
        return str(raised.exception)

    def test_a_script_that_throws(self):
        self.open("throw new Error('no such figure')")
        self.assertEqual(len(self.window.errors), 1)
        self.assertIn("no such figure", self.window.errors[0])
        self.assertEqual(self.window.run("document.querySelector('p').innerText"), "words")
        # A later error that this one causes names it.
        with self.assertRaisesRegex(RuntimeError, "(?s)data is not defined.*no such figure"):
            self.window.run("data.length")

    def test_what_is_thrown_may_be_no_error(self):
        self.open("throw 'only words'")
        self.assertRegex(self.window.errors[0], "only words")
        for thrown in ("'other words'", "17", "{}", "null"):
            with self.assertRaises(RuntimeError):
                self.window.run(f"throw {thrown}")
        with self.assertRaisesRegex(RuntimeError, "other words"):
            self.window.run("throw 'other words'")

    def test_a_script_without_an_end(self):
        words = self.gives_up(lambda: self.open("for (;;);"))
        self.assertIn(f"opening page.html: no answer within {SECONDS} s", words)

    def test_what_never_comes(self):
        self.open("const late = new Promise(() => {}); throw new Error('no such figure')")
        words = self.gives_up(lambda: self.window.run("late"))
        self.assertRegex(words, "running late: no answer within .* s; the page.*no such figure")

    def test_a_dialog(self):
        words = self.gives_up(lambda: self.open("alert('is anybody there?')"))
        self.assertIn("opens a dialog: is anybody there?", words)


if __name__ == "__main__":
    if not browser.PROGRAM:
        print("browser_test.py: no chromium (apt install chromium): nothing tested")
        sys.exit(0)
    unittest.main()
