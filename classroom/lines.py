"""A line of a check's result, and what it is made of."""

import dataclasses
import re


@dataclasses.dataclass
class Line:
    what: str
    ok: bool
    predicted: str = ""
    yours: str = ""
    reference: str = ""
    said: str = ""


def number(value):
    if value is None:
        return "NaN"
    if isinstance(value, str):
        return value
    return f"{value:.6g}" if abs(value) >= 1e-3 or value == 0 else f"{value:.2e}"


def at(data, path):
    """The value at "summary.memory.peak.measured"; of a list [a, b] their quotient a / b."""
    if isinstance(path, list):
        above, below = (at(data, p) for p in path)
        return None if above is None or not below else above / below
    for key in path.split("."):
        if isinstance(data, list):
            data = data[int(key)] if -len(data) <= int(key) < len(data) else None
        elif isinstance(data, dict):
            data = data.get(key)
        if data is None:
            return None
    return data


def failure(text, failed):
    """GoogleTest's first failure in one or two lines."""
    found = re.search(r"([\w.]+:\d+): Failure\n((?:(?!.*: Failure$|\[|Google Test).+\n){1,5})",
                      text, re.MULTILINE)
    if not found:
        thrown = re.search(r"C\+\+ exception with description \"(.*?)\" thrown", text, re.DOTALL)
        if thrown:
            return f"{failed[0] if failed else 'A test'} stops: {thrown[1][:300]}"
        return "No test ran." if not failed else f"{failed[0]} fails."
    words = re.sub(r"\s+", " ", found[2]).strip()
    if thrown := re.search(r'description "(.*?)" thrown', words):
        words = "it stops: " + re.sub(r"\S*/", "", thrown[1])
    nan = " There is a NaN." if re.search(r"\b-?nan\b", words) else ""
    return f"{failed[0] if failed else 'On another rank a test'} fails at {found[1]}: " \
           f"{words[:260]}{nan}"
