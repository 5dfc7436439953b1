#!/usr/bin/env python3
"""What tests/processes.py promises: of a run nothing stays, however it ends, and nothing else ends.
The runs leave behind a child as MPICH's launcher does, in a session of its own, which has what the
run inherited and does not listen to SIGTERM."""

import os
import signal
import subprocess
import time
import unittest

import processes

# A child sleeps for a number of seconds that no other program uses, which identifies it.
SECONDS = f"1000.{os.getpid()}"
STAYS = f"trap '' TERM; setsid sleep {SECONDS} & trap - TERM; "


def left_behind():
    return subprocess.run(["pgrep", "-f", f"^sleep {SECONDS}"], stdout=subprocess.PIPE,
                          check=False).stdout.split()


def shell(words):
    return ["sh", "-c", words]


class ProcessesTest(unittest.TestCase):
    def setUp(self):
        processes.PATIENCE = 0.2

    def tearDown(self):  # runs even if a test fails
        for process in left_behind():
            os.kill(int(process), signal.SIGKILL)

    def wait_for_children(self, count):
        until = time.monotonic() + 20
        while len(left_behind()) < count:
            self.assertLess(time.monotonic(), until)
            time.sleep(0.02)

    def test_a_run_that_takes_too_long(self):
        begin = time.monotonic()
        ended = processes.run(shell(STAYS + "echo said; wait"), 5)
        self.assertEqual(ended, (None, "said\n", ""))
        self.assertLess(time.monotonic() - begin, 20)
        self.assertEqual(left_behind(), [])

    def test_a_run_that_ends_before_its_child(self):
        begin = time.monotonic()
        ended = processes.run(shell(STAYS + "echo said; echo why >&2; exit 3"), 60)
        self.assertEqual(ended, (3, "said\n", "why\n"))
        self.assertLess(time.monotonic() - begin, 20)
        self.assertEqual(left_behind(), [])

    def test_an_interrupted_run(self):
        with self.assertRaises(KeyboardInterrupt):
            with processes.Run(shell(STAYS + "wait")) as run:
                self.wait_for_children(1)
                self.assertIn(int(left_behind()[0]), run.processes())
                raise KeyboardInterrupt
        self.assertEqual(left_behind(), [])

    def test_who_listens_may_end_by_itself(self):
        processes.PATIENCE = 20
        begin = time.monotonic()
        ended = processes.run(shell("trap 'echo bye; exit 5' TERM; while :; do sleep 0.1; done"), 5)
        self.assertEqual(ended, (None, "bye\n", ""))
        self.assertLess(time.monotonic() - begin, 15)

    def test_nothing_else_ends(self):
        with processes.Run(shell(STAYS + "wait")) as other:
            self.wait_for_children(1)
            (child,) = left_behind()
            with processes.Run(shell(STAYS + "wait")):
                self.wait_for_children(2)
            self.assertEqual(left_behind(), [child])
            self.assertIsNone(other.launcher.poll())
        self.assertEqual(left_behind(), [])

    def test_a_run_inside_of_a_run(self):
        inner = ("import processes; "
                 f"processes.Run(['sh', '-c', {STAYS + 'wait'!r}]).wait(1000)")
        with processes.Run(["python3", "-c", inner], cwd=os.path.dirname(processes.__file__)):
            self.wait_for_children(1)
        self.assertEqual(left_behind(), [])


if __name__ == "__main__":
    unittest.main()
