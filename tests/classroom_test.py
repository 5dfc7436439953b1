#!/usr/bin/env python3
"""What the grader makes of GoogleTest's words: a sentence that says what is, what should be, and in
which case. (What it says of whole exercises: make prove.)"""

import pathlib
import sys
import unittest

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent / "classroom"))
import limits  # noqa: E402
import lines  # noqa: E402


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


if __name__ == "__main__":
    unittest.main()
