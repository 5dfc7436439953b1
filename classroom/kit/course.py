#!/usr/bin/env python3
"""`make course`: a site of all pages, slides and a few reports, without a server or a network.

    course.py BUILD SITE     BUILD has the programs, MPIRUN starts ranks; without BUILD ("") no run
    course.py --pdf SITE     prints the slides of a site as PDF, with chromium"""

import html
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

import render
from render import ROOT, address, relative

KIT = ROOT / "classroom/kit"
# The site contains the pages of these runs, which take seconds and show different things.
REPORTS = [
    ("memory", "What a rank of any layout holds, with sliders", 1, "00_single_gpu",
     "--demo memory --model llama-3-8b --dtype bf16 --fp32-grads --micro-batch 1"),
    ("single", "A plain training", 1, "00_single_gpu", "--steps 30"),
    ("overlap", "Three ways to sum gradients", 2, "01_data_parallel",
     "--compare --bucket-mb 1 --node-size 1 --inter-gbps 1 --steps 4"),
    ("zero3", "ZeRO-3", 4, "02_zero", "--stage 3 --micro-batch 2 --steps 10"),
    ("pipeline", "A pipeline with 1F1B", 4, "05_pipeline",
     "--micro-batch 1 --grad-accum 8 --steps 4 --seq 32 --pretend F=40,B=40,W=40,hop=2"),
    ("experts", "Experts and their loads", 4, "06_expert_parallel", "--steps 20 --micro-batch 2"),
    ("kernels", "Two transposes, line by line", 1, "07_kernels",
     "--kernel transpose_naive --kernel transpose_padded"),
    ("plan", "Layouts for 256 GPUs", 1, "09_5d_parallel",
     "--plan --model llama-3-70b --gpus 256 --hardware h100 --seq 8192 --batch-tokens 4M "
     "--dtype bf16 --fp32-grads"),
]


def command(ranks, chapter, arguments):
    return f'make run CHAPTER={chapter} NP={ranks} ARGS="{arguments} --html page.html"'


# ---- the list of pages beside each page ----------------------------------------------------------
def contents(pages):
    """(title, address, pages below it) of everything, in the order in which it is read."""
    below = {}
    for path in pages:
        inside = path.relative_to(ROOT)
        below.setdefault(inside.parts[0] if len(inside.parts) > 1 else "", []).append(path)
    order = ["", *sorted(f for f in below if re.match(r"\d\d_", f)), "common", "classroom"]
    listed = []
    for name in [*order, *sorted(set(below) - set(order))]:
        files = sorted(below.get(name, []), key=lambda p: (len(p.parts), p.name != "README.md"))
        if not name:
            listed += [(short_title(p), address(p), []) for p in files]
        elif files:
            listed.append((short_title(files[0]), address(files[0]),
                           [(short_title(p), address(p)) for p in files[1:]]))
    return listed


def short_title(path):
    title = render.title_of(path.read_text(encoding="utf-8"))
    return title if len(title) <= 40 else re.split(r"[,;(]", title)[0].strip()


def navigation(listed, page):
    """Links to all chapters, and to the pages of the one that is shown."""
    link = lambda title, to: (f'<a href="{relative(to, page)}"'
                              f'{" aria-current=page" if to == page else ""}>'
                              f"{html.escape(title)}</a>")
    items = []
    for title, to, below in listed:
        is_open = len(to.parts) > 1 and to.parts[0] == page.parts[0]
        inner = "".join(f"<li>{link(*entry)}</li>" for entry in below) if is_open else ""
        items.append(f"<li>{link(title, to)}{f'<ul>{inner}</ul>' if inner else ''}</li>")
    return f"<ul>{''.join(items)}</ul>"


def write(site, page, title, body, listed):
    flat = [entry for title_, to, below in listed for entry in [(title_, to), *below]]
    place = [to for _, to in flat].index(page) if page in [to for _, to in flat] else None
    around = []
    if place is not None:
        for other, arrow in ((place - 1, "← {}"), (place + 1, "{} →")):
            if 0 <= other < len(flat):
                around.append(f'<a href="{relative(flat[other][1], page)}">'
                              f"{html.escape(arrow.format(flat[other][0]))}</a>")
    else:  # a source: its chapter, or the first page
        up = next((entry for entry in flat if entry[1].parts[0] == page.parts[0]), flat[0])
        around.append(f'<a href="{relative(up[1], page)}">↑ {html.escape(up[0])}</a>')
    around = " ".join(around)
    path = site / page
    path.parent.mkdir(parents=True, exist_ok=True)
    nav = navigation(listed, page)
    path.write_text(f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{html.escape(title)}</title>
<link rel="stylesheet" href="{relative(pathlib.PurePath("style.css"), page)}"></head>
<body class="course">
<details class="menu"><summary>All pages</summary><nav>{nav}</nav></details>
<nav class="side">{nav}</nav>
<main>
<nav class="around">{around}</nav>
{body}
<footer class="around">{around}</footer>
</main></body></html>
""", encoding="utf-8")


# ---- the parts of the site -----------------------------------------------------------------------
def run_reports(build, site):
    """Runs the programs; each writes a page of its own."""
    folder = site / "reports"
    folder.mkdir(parents=True, exist_ok=True)
    launcher = shlex.split(os.environ.get("MPIRUN", "mpirun"))
    os.environ["OMP_WAIT_POLICY"] = "passive"  # ranks share the cores
    for name, _, ranks, chapter, arguments in REPORTS:
        words = [*launcher, "-n", str(ranks), build / chapter, *arguments.split(),
                 "--html", folder / f"{name}.html"]
        done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT)
        if done.returncode != 0:
            sys.exit(f"{chapter} {arguments} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    rows = "".join(f'<dt><a href="{name}.html">{html.escape(title)}</a></dt>'
                   f'<dd><pre class="code">{html.escape(command(*of))}</pre></dd>'
                   for name, title, *of in REPORTS)
    return ("<h1>Reports</h1>\n<p>Each page was written by a run on the machine that made this "
            f"site, with the command below it.</p>\n<dl>{rows}</dl>")


def make(build, site):
    shutil.rmtree(site, ignore_errors=True)
    linked, pages = render.Linked(), render.pages()
    listed = contents(pages)
    decks = sorted((KIT / "slides").glob("*.md"))
    if build:
        listed += [("Reports", pathlib.PurePath("reports/index.html"), []),
                   ("Memory, with sliders", pathlib.PurePath("reports/memory.html"), [])]
        write(site, listed[-2][1], "Reports", run_reports(build, site), listed)
    for path in pages:
        write(site, address(path), *render.markdown(path, linked), listed)
    style, script = ((KIT / name).read_text(encoding="utf-8") for name in
                     ("slides.css", "slides.js"))
    for path in decks:
        target = site / address(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(render.slides(path, linked, render.colours() + style, script)[1],
                          encoding="utf-8")
    # Folders add files to the list while the list is processed.
    done = set(decks)
    while left := sorted(linked.files - done):
        for path in left:
            target = site / address(path)
            if path.is_dir():
                write(site, address(path), *render.folder(path, linked), listed)
            elif address(path) == path.relative_to(ROOT):
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, target)
            else:
                write(site, address(path), *render.source_file(path), listed)
        done.update(left)
    (site / "style.css").write_text(
        (ROOT / "common/lab/page/page.css").read_text(encoding="utf-8") + render.colours()
        + (KIT / "course.css").read_text(encoding="utf-8"), encoding="utf-8")
    print(f"{len(pages)} pages, {len(decks)} decks of slides, "
          f"{len(REPORTS) if build else 0} reports: {site}/index.html")


def print_slides(site):
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser",
                                                    "google-chrome"))), None)
    if not chromium:
        sys.exit("there is no chromium (apt install chromium)")
    for deck in sorted((site / "classroom/kit/slides").glob("[0-9]*.html")):
        pdf = deck.with_suffix(".pdf")
        subprocess.run([chromium, "--headless", "--no-sandbox", "--disable-gpu",
                        "--no-pdf-header-footer", "--print-to-pdf-no-header",
                        f"--print-to-pdf={pdf}", deck.resolve().as_uri()],
                       check=True, capture_output=True)
        print(pdf)


if __name__ == "__main__":
    try:
        if sys.argv[1:2] == ["--pdf"]:
            print_slides(pathlib.Path(sys.argv[2]))
        else:
            make(pathlib.Path(sys.argv[1]).absolute() if sys.argv[1] else None,
                 pathlib.Path(sys.argv[2]))
    except render.BrokenLink as error:
        sys.exit(f"error: {error}")
