"""A browser without a window, for tests of pages: Debian's chromium, driven through its DevTools
protocol over a pipe, which needs no library."""

import base64
import contextlib
import itertools
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time

PROGRAM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))),
               None)


class TooLate(RuntimeError):
    """The browser gave no answer in time, and was ended."""


class Browser:
    """`errors` has what pages threw or logged as an error, and what they asked the network for.

    Whatever is asked of it has so many seconds, because a page's script may never end: then
    TooLate says what was asked, and what the page said before."""

    def __init__(self, seconds=60):
        self.seconds, self.deadline = seconds, None
        (read_here, write_there), (read_there, write_here) = os.pipe(), os.pipe()
        self.folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        # Chromium reads commands from descriptor 3 and writes answers to 4.
        moves = f"exec 3<&{read_there} 4>&{write_there}; exec \"$@\""
        self.process = subprocess.Popen(
            ["bash", "-c", moves, "browser", PROGRAM, "--headless", "--no-sandbox", "--disable-gpu",
             "--remote-debugging-pipe", f"--user-data-dir={self.folder.name}", "about:blank"],
            pass_fds=(read_there, write_there), stderr=subprocess.DEVNULL, start_new_session=True)
        os.close(read_there), os.close(write_there)
        self.answers, self.commands = os.fdopen(read_here, "rb"), os.fdopen(write_here, "wb")
        self.numbers, self.buffer, self.errors, self.events = itertools.count(1), b"", [], []
        self.session = None
        try:
            self.attach()
        except BaseException:
            self.__exit__()
            raise

    def attach(self):
        target = next(one for one in self.call("Target.getTargets")["targetInfos"]
                      if one["type"] == "page")
        self.session = self.call("Target.attachToTarget", targetId=target["targetId"],
                                 flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(domain + ".enable")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        with contextlib.suppress(BrokenPipeError):
            self.commands.close()  # chromium ends with its pipe
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.kill()
        self.answers.close()
        self.folder.cleanup()

    def kill(self):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    @contextlib.contextmanager
    def in_time(self, what):
        """Limits what is asked inside; what is part of a longer question has its limit."""
        if self.deadline:
            yield
            return
        self.deadline, self.asked = time.monotonic() + self.seconds, what
        try:
            yield
        finally:
            self.deadline = None

    def call(self, method, **parameters):
        with self.in_time(method):
            return self.ask(method, parameters)

    def ask(self, method, parameters):
        number = next(self.numbers)
        command = {"id": number, "method": method, "params": parameters}
        if self.session:
            command["sessionId"] = self.session
        self.commands.write(json.dumps(command).encode() + b"\0")
        self.commands.flush()
        while True:
            message = self.read()
            if message.get("id") == number:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']['message']}")
                return message["result"]

    def read(self):
        while b"\0" not in self.buffer:
            left = max(0, self.deadline - time.monotonic())
            if not select.select([self.answers], [], [], left)[0]:
                self.kill()
                raise TooLate(f"{self.asked}: no answer within {self.seconds} s{self.page_said()}")
            more = os.read(self.answers.fileno(), 65536)
            if not more:
                raise RuntimeError("the browser ended")
            self.buffer += more
        text, self.buffer = self.buffer.split(b"\0", 1)
        message = json.loads(text)
        method, what = message.get("method"), message.get("params", {})
        self.events.append(method)
        if method == "Runtime.exceptionThrown":
            details = what["exceptionDetails"]
            self.errors.append(thrown(details))
        elif method == "Log.entryAdded" and what["entry"]["level"] == "error":
            self.errors.append(what["entry"]["text"])
        elif method == "Page.javascriptDialogOpening":  # nobody is there to close it
            self.errors.append(f"opens a dialog: {what['message']}")
        elif method == "Network.requestWillBeSent":
            url = what["request"]["url"]
            if not url.startswith(("file:", "data:", "about:")):
                self.errors.append(f"asks the network for {url}")
        return message

    def page_said(self):
        return f"; the page's errors: {'; '.join(self.errors)}" if self.errors else ""

    def open(self, path, width=1000, height=900, dark=False):
        with self.in_time(f"opening {path.name}"):
            self.call("Emulation.setDeviceMetricsOverride", width=width, height=height,
                      deviceScaleFactor=1, mobile=width < 600)
            self.call("Emulation.setEmulatedMedia", features=[
                {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])
            self.events.clear()
            self.call("Page.navigate", url=path.resolve().as_uri())
            while "Page.loadEventFired" not in self.events:
                self.read()

    def run(self, script):
        """The value of a script's last expression."""
        with self.in_time(f"running {' '.join(script.split())[:100]}"):
            result = self.call("Runtime.evaluate", expression=script, returnByValue=True,
                               awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(thrown(result["exceptionDetails"]) + self.page_said())
        return result["result"].get("value")

    def click(self, selector, x=None, y=None):
        """With the mouse, in the element's middle or at x, y inside it."""
        box = self.run(f"""(() => {{ const e = document.querySelector({json.dumps(selector)});
            e.scrollIntoView({{block: "center", behavior: "instant"}});
            const b = e.getBoundingClientRect();
            return [b.left, b.top, b.width, b.height]; }})()""")
        at = {"x": box[0] + (box[2] / 2 if x is None else x),
              "y": box[1] + (box[3] / 2 if y is None else y)}
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **at)

    def screenshot(self, path):
        image = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(image["data"]))

    def print_pdf(self, path):
        pdf = self.call("Page.printToPDF", printBackground=True)
        path.write_bytes(base64.b64decode(pdf["data"]))


def thrown(details):
    """What a script threw: an Error's description, or the value, which may be anything."""
    what = details.get("exception", {})
    return what.get("description") or f"{details['text']} {what.get('value', '')}".strip()
