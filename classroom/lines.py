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


def counted(count, what="test"):
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


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


# GoogleTest's messages for EXPECT_EQ, and for EXPECT_LT and similar macros.
EQUAL = re.compile(r"Expected equality of these values:\n  (.+)\n(?:    Which is: (.+)\n)?"
                   r"  (.+)\n(?:    Which is: (.+)\n)?")
ORDERED = re.compile(r"Expected: \((.+)\) ([<>]=?|!=) \((.+)\), actual: (.+) vs (.+)\n")

NEAR = re.compile(r"The difference between (.+) and (.+) is (?:.+), which exceeds (.+), where\n"
                  r"(?:.+) evaluates to (.+),\n(?:.+) evaluates to (.+), and\n.+\n?")


def failure(text, failed):
    """GoogleTest's first failure in a sentence or two."""
    found = re.search(r"([\w.]+:\d+): Failure\n((?:(?!.*: Failure$|\[).+\n){1,12})", text,
                      re.MULTILINE)
    if not found:
        thrown = re.search(r"C\+\+ exception with description \"(.*?)\" thrown", text, re.DOTALL)
        if thrown:
            return f"{failed[0] if failed else 'A test'} stops: {thrown[1]}"
        return "No test ran." if not failed else f"{failed[0]} fails."
    body, _, trace = found[2].partition("Google Test trace:\n")
    words = one_line(body)
    if thrown := re.search(r'description "(.*?)"(?: thrown|\.$)', words):
        words = "it stops: " + re.sub(r"\S*/", "", thrown[1])
    elif equal := EQUAL.match(body):
        words = told(*equal.groups()) + added(body[equal.end():])
    elif near := NEAR.match(body):
        what, wanted, bound, is_, wanted_is = near.groups()
        words = f"{what} is {is_}, and should be {wanted}"
        words += "" if same(wanted, wanted_is) else f", which is {wanted_is}"
        words += f", within {bound}" + added(body[near.end():])
    elif ordered := ORDERED.match(body):
        what, sign, bound, is_, bound_is = ordered.groups()
        words = f"{what} is {is_}, and should be {sign} {bound}"
        words += "" if same(bound, bound_is) else f", which is {bound_is}"
        words += added(body[ordered.end():])
    words = words.rstrip(".") + "."
    if where := re.search(r"^\S+:\d+: (.+)", trace, re.MULTILINE):
        words += f" (With {where[1]}.)"
    if re.search(r"\b-?nan\b", words):
        words += " There is a NaN."
    elif re.search(r"relative_error\(.*\) is inf\b", words):  # the result for a NaN
        words += " There is a NaN or an infinity."
    return f"{failed[0] if failed else 'On another rank a test'} fails at {found[1]}: {words}"


def told(left, left_is, right, right_is):
    """What EXPECT_EQ(left, right) found."""
    if left_is and right_is:
        return f"{left} is {left_is}, and {right} is {right_is}; they should be equal"
    if right_is:
        left, left_is, right = right, right_is, left
    return f"{left} is {left_is or left}, and should be {right}"


def same(written, value):
    """Whether a bound as it stands in the source is the number that it has."""
    try:
        return float(written) == float(value)
    except ValueError:
        return False


def one_line(words):
    return re.sub(r"\s+", " ", words).strip()


def added(words):
    """What a test says besides (<<)."""
    return ": " + one_line(words) if words.strip() else ""
