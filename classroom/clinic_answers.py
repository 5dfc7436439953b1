"""The answer to a case of the clinic (clinic.py): the form for it, and its judge."""

import hashlib
import json
import pathlib
import re
import time
import tomllib

import clinic
from places import Wrong

POINTS = {"rank": 2, "step": 2, "cause": 3, "figure": 3}


def form(one):
    return "\n".join([
        f"# Case {one.number}: {one.title}", f"# Version {one.version()}", "",
        '# The sick rank, a number in quotes; or "all", if every rank has it alike (also in a run',
        "# of one rank).",
        'rank = ""', "",
        "# The first step in which it shows: 1, if it is so from the beginning.",
        "step = 0", "",
        "# The cause: one of",
        *(f"#   {name:<18} {words}" for name, words in clinic.causes().items()),
        'cause = ""', "",
        "# The figure that shows it: a JSON file, the kind of its line, the fields that select the",
        "# line, and the way within it; and what stands there, of which three digits are enough.",
        "# It must show the cause, not only its effect on the loss or the norm. (Ranks in the",
        "# summary's lists count from 0.) For example:",
        '#   figure = ["run.json", "step", "step=7", "loss"]',
        '#   figure = ["run.json", "summary", "times_by_rank", "0", "forward", "ms"]',
        '#   figure = ["run.json", "by_rank", "step=7", "rank=0", "ms", "forward"]',
        '#   figure = ["checksums.json", "checksums", "step=7", "rank=1", "data", "0", "rows"]',
        '#   figure = ["checksums.json", "checksums", "step=7", "rank=1", "own_gradients",',
        '#             "lm_head.weight", "norm"]',
        "figure = []", "value = 0", ""])


def kept(one):
    """The text for answer.toml, and an answer to another version of the case, or ""."""
    blank, path = form(one), one.folder / "answer.toml"
    if not is_answered(one):
        return blank, ""
    said = path.read_text(encoding="utf-8")
    return (said, "") if f"# Version {one.version()}\n" in said else (blank, said)


def found_at(one, figure):
    """The value at a figure's place. Raises Wrong, a sentence."""
    if not isinstance(figure, list) or len(figure) < 3 or \
            not all(isinstance(word, str) for word in figure):
        raise Wrong("figure: a list of texts as in the comment above it, from the file to the name")
    path = one.folder / figure[0]
    if pathlib.Path(figure[0]).name != figure[0] or not path.exists() or path.suffixes != [".json"]:
        raise Wrong(f"figure: {figure[0]} is not a JSON file of this case")
    choose = [word.split("=", 1) for word in figure[2:] if "=" in word]
    way = [word for word in figure[2:] if "=" not in word]
    lines = [line for line in clinic.lines_of(path, figure[1])
             if all(str(line.get(key)) == value for key, value in choose)]
    if len(lines) != 1:
        raise Wrong(f"figure: {len(lines)} lines of {figure[0]} are meant, not one")
    value = lines[0]
    for word in way:
        if isinstance(value, list) and word.isdigit() and int(word) < len(value):
            value = value[int(word)]
        elif isinstance(value, dict) and word in value:
            value = value[word]
        else:
            raise Wrong(f"figure: there is no {word} in {figure[0]} at that place")
    return value


def same(said, value):
    if isinstance(said, bool) or isinstance(value, bool) or not isinstance(value, (int, float)):
        return said == value
    return isinstance(said, (int, float)) and abs(said - value) <= 0.01 * abs(value)


def is_right(one, part, said, sealed):
    """Whether a part of the answer is right, and a sentence if it cannot be judged."""
    if part == "rank":
        return str(said["rank"]).strip() in sealed["rank"], ""
    if part == "step":
        first, last = sealed["step"]
        return isinstance(said["step"], int) and first <= said["step"] <= last, ""
    if part == "cause":
        if str(said["cause"]) not in clinic.causes():
            return False, f"cause: {said['cause'] or 'nothing'} is not one of the list."
        return said["cause"] == sealed["cause"], ""
    try:
        value = found_at(one, said["figure"])
    except Wrong as error:
        return False, f"{error}."
    if not same(said["value"], value):
        return False, f"value: at that place stands {json.dumps(value)[:60]}."
    shown = " / ".join(said["figure"])
    return any(re.fullmatch(rule, shown) for rule in sealed["figures"]), ""


def graded(one):
    """An answer -> a result, as grades.json has it."""
    begin, path = time.monotonic(), one.folder / "answer.toml"
    text = path.read_text(encoding="utf-8")
    result = {"exercise": one.id, "title": one.title, "kind": "clinic", "points": 0,
              "of": sum(POINTS.values()), "lines": [], "said": [],
              "sha256": hashlib.sha256(text.encode()).hexdigest()}
    empty = {"rank": "", "step": 0, "cause": "", "figure": [], "value": 0}
    try:
        said = empty | tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        said, result["said"] = empty, [f"answer.toml is not TOML: {error}"]
    sealed = one.sealed()
    for part, points in POINTS.items():
        right, why = is_right(one, part, said, sealed)
        hint = "" if right else why or f"{part}: {sealed['hints'][part]}"
        yours = said["value"] if part == "figure" else said[part]
        result["lines"].append({"what": part, "predicted": "", "yours": str(yours)[:20],
                                "reference": "", "ok": right, "said": hint,
                                "points": points if right else 0, "of": points})
        result["points"] += points if right else 0
    result["solved"] = result["points"] == result["of"]
    result["seconds"] = round(time.monotonic() - begin, 1)
    return result


def all_graded(wanted=""):
    chosen = [clinic.case(wanted)] if wanted else clinic.all_cases()
    if wanted and not (chosen[0].folder / "answer.toml").exists():
        raise Wrong(f"clinic/{wanted}/answer.toml is not there; make clinic CASE={wanted} first")
    return [graded(one) for one in chosen if wanted or is_answered(one)]


def is_answered(one):
    """Whether something has been filled in."""
    path = one.folder / "answer.toml"
    if not path.exists():
        return False
    try:
        said = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError:
        return True
    return any(said.get(part) for part in POINTS)
