"""Proves the clinic: each case runs, and shows its figure; the right answer gets all points, and a
wrong one a hint that does not tell the cause; the same program without what makes it sick has no
sign of it. `make prove ONLY=clinic` proves all cases, with CASE=3 one of them: half a minute each.

A case's sign, sealed with it, is a figure that is at least so many `times` another figure of the
same run (or 1), or `equal` to another one. Prints GoogleTest's lines, as proof.py does."""

import json
import time

import build
import clinic
import clinic_answers

WRONG = {"rank": "17", "step": 99, "cause": "slow-link",
         "figure": ["run.json", "summary", "speed", "mfu"]}


def has_sign(one, sign, before=""):
    def value(place):
        return clinic_answers.found_at(one, [before + place[0], *place[1:]])
    shown = value(sign["figure"])
    if "equal" in sign:
        return shown == value(sign["equal"])
    return shown >= sign["times"] * (value(sign["than"]) if "than" in sign else 1)


def answer(one, parts):
    text = "".join(f"{key} = {json.dumps(value)}\n" for key, value in parts.items())
    (one.folder / "answer.toml").write_text(text, encoding="utf-8")
    return clinic_answers.graded(one)


def complaints(settings, one):
    """What is not as it should be."""
    sealed = one.sealed()
    one.healthy, one.folder = True, build.BUILT / "clinic-proof" / str(one.number)
    (one.folder / "answer.toml").unlink(missing_ok=True)  # of the last proof
    begin = time.monotonic()
    clinic.run(settings, one)
    seconds = time.monotonic() - begin
    right = {"rank": sealed["rank"][0], "step": sealed["step"][0], "cause": sealed["cause"],
             "figure": sealed["example"],
             "value": clinic_answers.found_at(one, sealed["example"])}
    if not has_sign(one, sealed["sign"]):
        yield "the sick run does not show its figure"
    if has_sign(one, sealed["sign"], "healthy-"):
        yield "the healthy run shows the sick one's figure"
    if not answer(one, right)["solved"]:
        yield f"the right answer does not get all points: {clinic_answers.graded(one)}"
    for part in clinic_answers.POINTS:
        wrong = right | {part: WRONG[part]}
        if part == "figure":
            wrong["value"] = clinic_answers.found_at(one, wrong["figure"])
        result = answer(one, wrong)
        line = next(line for line in result["lines"] if line["what"] == part)
        if result["points"] != result["of"] - clinic_answers.POINTS[part]:
            yield f"a wrong {part} gets {result['points']} points"
        if not line["said"] or sealed["cause"] in line["said"]:
            yield f"a wrong {part} gets no hint, or the cause: {line['said']}"
    if seconds > 4 * clinic.MOST_SECONDS:
        yield f"it took {seconds:.0f} s"


def prove(settings, wanted):
    cases = [clinic.case(wanted)] if wanted else clinic.all_cases()
    failed = []
    for one in cases:
        print(f"[ RUN      ] Clinic.{one.number}", flush=True)
        wrong = list(complaints(settings, one))
        print("\n".join(wrong + [f"[  FAILED  ] Clinic.{one.number}" if wrong
                                 else f"[       OK ] Clinic.{one.number}"]), flush=True)
        failed += wrong
    print(f"[==========] {len(cases)} tests ran.\n[  PASSED  ] {len(cases) - len(failed)} tests.")
    return not failed
