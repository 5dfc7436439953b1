#!/usr/bin/env python3
"""What the grader takes of a student's file, and what it makes of GoogleTest's and the compiler's
words: a sentence that says what is, what should be, and in which case. (What it says of whole
exercises: make prove.)"""

import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "classroom"))
import build  # noqa: E402
import describe  # noqa: E402
import grade  # noqa: E402
import limits  # noqa: E402
import lines  # noqa: E402
import regions  # noqa: E402
from places import Wrong  # noqa: E402


def said(words):
    return lines.failure(f"[ RUN      ] A.Test\n/x/y/a_test.cpp:81: Failure\n{words}\n"
                         "[  FAILED  ] A.Test (0 ms)\n", ["A.Test"])


class WordsOfAFailure(unittest.TestCase):
    def test_two_values_that_should_be_equal(self):
        self.assertEqual(
            said('Expected equality of these values:\n  list("zb-h1", 4)\n    Which is: "F0"\n'
                 '  "F0B0"\n'),
            'A.Test fails at a_test.cpp:81: list("zb-h1", 4) is "F0", and should be "F0B0".')
        self.assertEqual(
            said("Expected equality of these values:\n  1\n  count\n    Which is: 2\n"),
            "A.Test fails at a_test.cpp:81: count is 2, and should be 1.")
        self.assertEqual(
            said("Expected equality of these values:\n  encode(x)\n    Which is: 1\n  want\n"
                 "    Which is: 0\ne4m3 of 0.25\n"),
            "A.Test fails at a_test.cpp:81: encode(x) is 1, and want is 0; they should be equal: "
            "e4m3 of 0.25.")

    def test_a_number_that_should_be_near_another(self):
        self.assertEqual(
            said("The difference between f(2) and 24 is 23, which exceeds 1e-9, where\nf(2) "
                 "evaluates to 1,\n24 evaluates to 24, and\n1e-9 evaluates to 1.0000000000000001e"
                 "-09.\n"),
            "A.Test fails at a_test.cpp:81: f(2) is 1, and should be 24, within 1e-9.")

    def test_nothing_is_cut_off(self):
        long = ", ".join(map(str, range(400)))
        self.assertIn(long, said("Expected equality of these values:\n  a\n    Which is: "
                                 f"{{ {long} }}\n  b\n    Which is: {{ 1 }}\n"))

    def test_a_bound_and_the_case_in_which_it_is_missed(self):
        self.assertEqual(
            said("Expected: (relative_error(o, want)) < (blocks == 1 ? 1e-12 : 1e-6), actual: "
                 "inf vs 1e-12\nGoogle Test trace:\n/x/a_test.cpp:74: 1 blocks in fp32\n"),
            "A.Test fails at a_test.cpp:81: relative_error(o, want) is inf, and should be < "
            "blocks == 1 ? 1e-12 : 1e-6, which is 1e-12. (With 1 blocks in fp32.) There is a NaN "
            "or an infinity.")
        self.assertEqual(said("Expected: (error) <= (1e-5), actual: 0.5 vs 1e-05\n"),
                         "A.Test fails at a_test.cpp:81: error is 0.5, and should be <= 1e-5.")

    def test_what_was_thrown(self):
        self.assertEqual(
            said("Expected: check_schedule(schedule) doesn't throw an exception.\n  Actual: it "
                 'throws ultrascale::UserError with description "rank 0: F8 is too much".\n'),
            "A.Test fails at a_test.cpp:81: it stops: rank 0: F8 is too much.")
        self.assertEqual(
            lines.failure('unknown file: Failure\nC++ exception with description "no" thrown in '
                          "the test body.\n", ["A.Test"]), "A.Test stops: no")

    def test_anything_else_as_it_stands(self):
        self.assertEqual(said("Value of: caught\n  Actual: false\nExpected: true\n"),
                         "A.Test fails at a_test.cpp:81: Value of: caught Actual: false Expected: "
                         "true.")
        self.assertIn("There is a NaN.", said("Value of: x\n  Actual: nan\n"))
        self.assertEqual(lines.failure("nothing", []), "No test ran.")


class WordsOfARun(unittest.TestCase):
    def test_the_signal_that_an_exit_code_stands_for(self):
        def ended(code):
            return limits.Outcome(code, "", 1, ranks=2, timed_out=False).sentence()
        for code in -6, 134:
            self.assertEqual(
                ended(code), "It is ended on 2 ranks by the signal SIGABRT, and says nothing.")
        for code in 2, 127, 255:
            self.assertEqual(ended(code), f"It ends on 2 ranks with exit code {code} and says "
                                          "nothing.")
        self.assertIsNone(ended(0))

    def test_internal_errors_are_shown(self):
        for words in ("internal error: rank 1: /x/y/tensor.h:12: slice: rows outside the tensor",
                      "error: slice: rows outside the tensor"):
            outcome = limits.Outcome(3, f"a\n{words}\nb\n", 1, ranks=2, timed_out=False)
            self.assertRegex(outcome.sentence(), r"^It stops on 2 ranks: (tensor.h:12: )?slice: "
                                                 "rows outside the tensor$")

    def test_a_program_that_ends_before_main_returns(self):
        for ended, ok in ((2, True), (1, False)):
            outcome = limits.Outcome(0, "", 1, ranks=2, timed_out=False, ended=ended)
            self.assertEqual(outcome.sentence() is None, ok)


class WordsOfTheCompiler(unittest.TestCase):
    def test_the_students_line_comes_first(self):
        tree = build.Tree.__new__(build.Tree)
        tree.replaced = {"02_zero/zero1.h": "a\n    sort(xs, 3);\nb\n"}
        self.assertEqual(
            tree.first_error("In file included from /usr/include/algo:1,\n"
                             "                 from /x/02_zero/zero1.h:1:\n"
                             "/usr/include/algo.h: In instantiation of 'sort':\n"
                             "/x/02_zero/zero1.h:2:9:   required from here\n"
                             "/usr/include/algo.h:40:3: error: no match for 'operator<'\n"
                             "   40 |   a < b\n/usr/include/algo.h:1:1: note: candidate\n"
                             "/x/02_zero/zero1.h:3:1: error: another\n"),
            "zero1.h:2: sort(xs, 3);\nalgo.h:40:3: error: no match for 'operator<'\n"
            "   40 |   a < b")
        self.assertEqual(
            tree.first_error("/x/02_zero/zero1.h:2:5: error: 'sort' was not declared\n"
                             "    2 |     sort(xs, 3);\n      |     ^~~~\n"),
            "zero1.h:2:5: error: 'sort' was not declared\n    2 |     sort(xs, 3);\n"
            "      |     ^~~~")


class WhatIsTaken(unittest.TestCase):
    def test_only_the_marked_part_of_a_file(self):
        for e in describe.all_exercises():
            if e.kind not in ("code", "bug"):
                continue
            ours = e.start()
            begin = ours.index(f"// exercise {e.id} begin")
            end = ours.index(f"// exercise {e.id} end")
            part = ours[ours.rindex("\n", 0, begin) + 1:ours.index("\n", end) + 1]
            taken, note = e.taken("int main() { invented(); }\n" + part + "deleted\n")
            self.assertEqual(taken, ours, e.id)
            self.assertIn("Note: line 1", note)
            self.assertEqual(e.taken(ours), (ours, ""), e.id)
            self.assertEqual(e.taken(e.solution()), (e.solution(), ""), e.id)

    def test_what_is_no_part(self):
        e = describe.exercise("02.4")
        for part, why in (("}\nint main() {\n", "} that closes nothing"),
                          ("f(1;\n", "( that nothing in the part closes"),
                          ("#define check(x)\n", "for the preprocessor (#define check(x))"),
                          ("// a comment \\\n", "for the preprocessor"), ("<% %> \n", "brace")):
            with self.assertRaises(Wrong) as refused:
                e.taken(e.region.with_part(part))
            self.assertIn(why, str(refused.exception))
        e.taken(e.region.with_part('#pragma unroll\nf("}", \'}\', R"(})"); // }\n'))
        for line, missing in (("begin", "end"), ("end", "begin")):
            text = "\n".join(l for l in e.start().splitlines()
                             if f"// exercise {e.id} {missing}" not in l)
            with self.assertRaisesRegex(Wrong, f"// exercise {e.id} {missing}\" is not there"):
                e.taken(text)

    def test_a_change_is_found_however_its_lines_are_broken(self):
        self.assertEqual(regions.replaced("x = f(a,\n    b);  // f(a, b)\n", "f(a, b)", "g()", ""),
                         "x = g();  // f(a, b)\n")
        for text in "f(aa, b)", "f(a, b) + f(a, b)", '"f(a, b)"':
            with self.assertRaises(Wrong):
                regions.replaced(text, "f(a, b)", "g()", "it")


class WhatIsNoFile(unittest.TestCase):
    def test_one_sentence_for_each(self):
        e = describe.exercise("02.4")
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / e.name
            for make, why in ((lambda: file.mkdir(), "is a folder or a device"),
                              (lambda: file.symlink_to("/dev/zero"), "is a link"),
                              (lambda: file.write_bytes(b"abc\xff"), "UTF-8 (byte 3)"),
                              (lambda: file.write_bytes(b" " * 2**21), "more than 1048576 bytes"),
                              (lambda: file.write_text("int main() {}\n"), "begin\" is not there")):
                make()
                result = grade.graded_file(None, e, file, "no/build")
                self.assertEqual(result["points"], 0)
                self.assertEqual(len(result["said"]), 1)
                self.assertIn(why, result["said"][0])
                self.assertNotIn("\n", result["said"][0])
                file.rmdir() if file.is_dir() else file.unlink()

    def test_answers_that_are_no_numbers(self):
        e = describe.exercise("00.5")
        for answer in "nan", "inf", "-inf", "twelve":
            with self.assertRaisesRegex(Wrong, f"= {answer}: that is not a number"):
                describe.read_answers(f"{e.numbers[0]['name']} = {answer}\n", e.numbers)

    def test_exercises_that_there_are_not(self):
        for wanted in "42", "02", "02.9", "../02.4", "":
            with self.assertRaisesRegex(Wrong, "there is no exercise"):
                describe.exercise(wanted)


if __name__ == "__main__":
    unittest.main()
