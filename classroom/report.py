#!/usr/bin/env python3
"""A page for a browser about grades: those of a student, or of a class.

    make grade HTML=grades.html                  writes it after grading
    classroom/report.py GRADES.json PAGE.html    of a file that was handed in

The page holds everything it shows and asks no network for anything, as those of --html, from which
it takes its style and its elements (common/lab/page/)."""

import datetime
import json
import pathlib
import sys

from places import ROOT, Wrong

PARTS = ROOT / "common/lab/page"


def write(path, grades):
    """grades: as grades.json has them, of a student ("exercises") or of a class (by student)."""
    data = {"on": datetime.date.today().isoformat(), **(
        grades if isinstance(grades.get("of"), int) else {"students": grades})}
    text = json.dumps(data).replace("<", "\\u003c")  # no text can end the element that holds it
    page = (PARTS / "page.html").read_text(encoding="utf-8")
    for mark, put in (("{{page.css}}", (PARTS / "page.css").read_text(encoding="utf-8")),
                      ("{{page.js}}", (PARTS / "draw.js").read_text(encoding="utf-8")
                       + (ROOT / "classroom/grades.js").read_text(encoding="utf-8")),
                      ("{{data}}", text)):
        before, after = page.split(mark)
        page = before + put + after
    path = ROOT / path  # an absolute path stays as it is
    path.write_text(page, encoding="utf-8")
    print(f"page written to {path} (open it in a browser)")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    try:
        write(pathlib.Path(sys.argv[2]).absolute(),
              json.loads(pathlib.Path(sys.argv[1]).read_text(encoding="utf-8")))
    except (OSError, ValueError, Wrong) as error:
        sys.exit(f"error: {error}")
