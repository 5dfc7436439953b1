"""Runs a command, such as mpirun with a program, and ends everything that it has started.

    code, out, err = processes.run(["mpirun", "-n", "4", ...], seconds)   # code None: it was ended

    with processes.Run(["mpirun", "-n", "4", ...], stdout=file) as run:
        while run.wait(0.1) is None: ...                                  # run.processes(): its ids

It is not enough to end the launcher: of MPICH's, each rank has a session of its own and may outlive
it, and no process group has all of them. So a run has a mark, a variable in its environment. All
that it starts inherit the mark (also from runs inside of runs), and what carries it is ended.
"""

import collections
import os
import pathlib
import signal
import subprocess
import tempfile
import time
import uuid

PATIENCE = 3  # seconds within which a run that must end has to end by itself

Ended = collections.namedtuple("Ended", "code out err")


class Run:
    """A command under way. At the end of `with`, also by an exception, nothing of it is left.
    `options` are subprocess.Popen's."""
    def __init__(self, command, patience=None, env=None, **options):
        self.patience = PATIENCE if patience is None else patience
        mark = f"RUN_{uuid.uuid4().hex}"
        self.mark = f"{mark}=yes".encode()
        self.launcher = subprocess.Popen(command, stdin=subprocess.DEVNULL, **options,
                                         env={**(os.environ if env is None else env), mark: "yes"})

    def processes(self):
        """The ids of its processes that have not ended, the launcher's among them."""
        found = []
        for path in pathlib.Path("/proc").glob("[0-9]*/environ"):
            try:
                if self.mark in path.read_bytes().split(b"\0"):
                    found.append(int(path.parent.name))
            except OSError:  # it has ended, or is another user's
                pass
        return found

    def wait(self, seconds):
        """Returns the exit code, or None if it does not end within so many seconds."""
        try:
            return self.launcher.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def end(self):
        """Ends what is left: first the launcher, which ends its ranks; then whoever stays."""
        if self.launcher.poll() is None:
            self.launcher.terminate()
        until = time.monotonic() + self.patience
        looks = 0  # looks that found nobody: a process that is just being started has no mark yet
        while looks < 3:
            left = self.processes()
            looks = looks + 1 if not left and self.launcher.poll() is not None else 0
            if time.monotonic() > until:
                send(left, signal.SIGKILL)
            time.sleep(0.02)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()


def send(processes, number):
    for process in processes:
        try:
            os.kill(process, number)
        except ProcessLookupError:
            pass


def run(command, seconds, **options):
    """Runs it for so many seconds at most. Returns its exit code (None: it was ended), and what it
    wrote on stdout and stderr: through files, because whoever is left would keep a pipe open."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        with Run(command, stdout=out, stderr=err, **options) as started:
            code = started.wait(seconds)
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode("utf-8", "replace"))
    return Ended(code, *texts)
