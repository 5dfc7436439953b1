"""Runs a graded program within limits of time and memory, and says in a sentence how it ended."""

import json
import os
import pathlib
import re
import resource
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from places import ROOT

sys.path.insert(0, str(ROOT / "tests"))
import processes  # noqa: E402

SECONDS = 10  # limit of a run; most take one. On a busy machine up to four times as long:
BUSY = 0.6  # unless by then it has had this share of the processors for that many seconds
PEER = 4  # the exit code of a rank that has lost another one
GIBIBYTES = 3  # limit of a process's addresses: MPI reserves more than it uses
SIGNALS = {signal.SIGSEGV: "an address outside of what it holds (segmentation fault)",
           signal.SIGFPE: "an integer divided by zero (SIGFPE)",
           signal.SIGBUS: "an address that does not exist (bus error)",
           signal.SIGILL: "an instruction that this processor does not have",
           signal.SIGABRT: "it was aborted"}
# Calls in which a rank waits for others (a call that only begins to send is not among them), and
# names that do not tell where a rank is.
WAITS = re.compile(r"\b(Work|Exchange|Event|Stream|Pending)::(wait|synchronize|arrived|done)"
                   r"|^(MPI_|PMPI_)|wait_asleep")
NOISE = re.compile(r"^(std::|__|_|MPI|PMPI|ompi|opal|gomp|GOMP|say_where|sched_yield|testing::"
                   r"|transport::|Tensor::|Storage|Saved::|start_thread|clone|poll|usleep|main"
                   r"|nanosleep|RUN_ALL_TESTS|run_program|run_chapter|raise|kill|phase|free|malloc"
                   r"|operator |check$|wait4|system)|[a-z*&>] (std|testing|fmt)::|^fmt::"
                   r"|_Test::TestBody|\[clone|operator\(\)|lambda")


def signal_of(code):
    """The name of the signal that an exit code stands for, as -N (Python) or 128 + N (a shell)."""
    try:
        return signal.Signals(-code if code < 0 else code - 128).name
    except ValueError:
        return None


class Outcome:
    def __init__(self, code, text, seconds, ranks, timed_out, ended=None):
        """ended: how many ranks returned from main(); None: the program doesn't say (where.cpp)."""
        self.code, self.text, self.seconds = code, text, seconds
        self.ranks, self.timed_out, self.ended = ranks, timed_out, ended
        self.places = [line.split(": signal ", 1)[1] for line in text.splitlines()
                       if line.startswith("[classroom] ") and ": signal " in line]

    def sentence(self):
        """What went wrong, or None if the program ended by itself, well or with what it says."""
        on = f" on {self.ranks} ranks" if self.ranks > 1 else ""
        if self.timed_out:
            return self.never_ends(on)
        crash = next((place for place in self.places if not place.startswith("10:")), None)
        if crash:
            number, _, frames = crash.partition(":")
            what = SIGNALS.get(int(number), f"signal {number}")
            return f"It crashes{on}: {what}{in_function(frames)}."
        if re.search(r"bad_alloc|out of memory|Cannot allocate", self.text):
            return f"It asks for more memory than there is{on}: {self.own_words() or 'bad_alloc'}"
        if self.ended is not None and self.ended < self.ranks and (
                self.code == 0 or self.code in (1, PEER) and not self.own_words()):
            return f"It ends{on} before main() has returned, as by exit(): what it wrote until " \
                   "then does not count."
        if self.code not in (0, 1) and not self.own_words():
            name = signal_of(self.code)
            return f"It is ended{on} by the signal {name}, and says nothing." if name else \
                f"It ends{on} with exit code {self.code} and says nothing."
        if self.code not in (0, 1):
            return f"It stops{on}: {self.own_words()}"
        return None

    def never_ends(self, on):
        busy = [p for p in self.places if not any(WAITS.search(f) for f in p.split(" < "))]
        waiting = [p for p in self.places if p not in busy]
        after = f"after {self.seconds:.0f} seconds"
        if busy:
            return f"It does not end{on}: {after} a rank still runs{in_function(busy[0])}" \
                   + (", while the others wait for it." if waiting else "; a loop without an end?")
        if waiting and self.ranks > 1:
            return f"It hangs{on}: {after} the ranks wait for each other{in_function(waiting[0])}" \
                   "; one of them waits for a message that nobody sends."
        if waiting:
            return f"It hangs: {after} it waits for what never comes{in_function(waiting[0])}."
        return f"It does not end{on} within {self.seconds:.0f} seconds."

    def own_words(self):
        """The program's own reason: its line that begins with error:, or an exception's."""
        for pattern in (r"^(?:rank \d+: )?(?:internal )?error: (?:rank \d+: )?(.*)",
                        r"what\(\):\s+(.*)", r"^terminate called.*"):
            if found := re.search(pattern, self.text, re.MULTILINE):
                words = found[1] if found.groups() else found[0]
                return re.sub(r"\S*/(\w[\w.]*:\d+)", r"\1", words)
        return None


def in_function(frames):
    names = [re.sub(r"ultrascale::|\(anonymous namespace\)::", "", n.strip())
             for n in frames.split(" < ")[1:]]
    names = [n for n in names if n and not NOISE.search(n)]
    own = [n for n in names if not WAITS.search(n)] or names
    if not own:
        return ""
    return f" in {own[0]}" + (f", called by {own[1]}" if len(own) > 1 else "")


def limited(seconds, gibibytes):
    def set_limits():
        most = int(gibibytes * 2**30)
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CPU, (int(seconds * 8),) * 2)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2**28, 2**28))
    return set_limits


def no_network():
    """What goes before a command so that it has no network; empty where that is not allowed.

    The new name space has a loopback device, which is down: MPI on one machine needs none."""
    if not hasattr(no_network, "words"):
        words = ["unshare", "--net", "--map-root-user"] if os.getuid() else ["unshare", "--net"]
        allowed = shutil.which("unshare") and subprocess.run(
            [*words, "true"], capture_output=True).returncode == 0
        no_network.words = words if allowed else []
    return no_network.words


def run(command, ranks, seconds=SECONDS, isolated=False, watched=True):
    """command, already with mpirun -> Outcome. Kills all that it started.

    watched: where.cpp is linked into the program."""
    begin = time.monotonic()
    word = secrets.token_hex(8)
    program = os.path.realpath(next(w for w in command if w.startswith(str(ROOT))))
    enough = seconds * BUSY * min(ranks, os.cpu_count() or 1)
    with tempfile.TemporaryFile() as said:
        with processes.Run([*(no_network() if isolated else []), *command], patience=0.2, cwd=ROOT,
                           env={**os.environ, "OMP_WAIT_POLICY": "passive",
                                "CLASSROOM_WORD": word}, stdout=said,
                           stderr=subprocess.STDOUT, start_new_session=True,
                           preexec_fn=limited(seconds, GIBIBYTES)) as started:
            for wait in [seconds] + [1] * int(3 * seconds):
                code = started.wait(wait)
                if code is not None or processor_seconds(started.processes()) >= enough:
                    break
            if code is None:  # all at once: a rank that ends takes the others along
                processes.send([p for p in started.processes() if executable(p) == program],
                               signal.SIGUSR1)
                time.sleep(0.5)
        said.seek(0)
        text = said.read(2**21)
        said.seek(max(said.tell(), said.seek(0, os.SEEK_END) - 2**21))  # a long output: both ends
        text = (text + said.read()).decode("utf-8", "replace")
    return Outcome(started.launcher.returncode, text, time.monotonic() - begin, ranks,
                   timed_out=code is None,
                   ended=text.count(f"[classroom] ended {word} ") if watched else None)


def processor_seconds(pids):
    """What these processes have used so far."""
    used = 0
    for pid in pids:
        try:
            fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            used += int(fields[11]) + int(fields[12])
        except OSError:
            continue
    return used / os.sysconf("SC_CLK_TCK")


def executable(pid):
    try:
        return os.readlink(f"/proc/{pid}/exe")
    except OSError:
        return ""


def read_json(path):
    """--json's lines -> {"steps": [...], "rows": [...], "summary": {...}}."""
    found = {"steps": [], "rows": [], "summary": {}}
    if not path.exists():
        return found
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if "summary" in row:
            found["summary"] = row["summary"]
        elif "row" in row:
            found["rows"].append(row["row"])
        elif "step" in row:
            found["steps"].append(row)
    return found
