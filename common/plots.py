#!/usr/bin/env python3
"""Draws what --json wrote. Needs matplotlib.

    python3 common/plots.py loss a.json b.json        the loss over the steps
    python3 common/plots.py throughput a.json         tokens/s of runs, or of a comparison's rows
    python3 common/plots.py memory a.json             by category: predicted beside measured
    python3 common/plots.py scaling 1.json 2.json     tokens/s and efficiency over the ranks
    python3 common/plots.py exposed a.json            communication, and what of it is not hidden

The picture is WHAT.svg, or with -o another .svg or .png. A run is called by what of its
configuration the others do not have; a file may hold several runs, one behind the other.
"""
import itertools
import json
import pathlib
import sys
import textwrap
from argparse import ArgumentParser, RawTextHelpFormatter
from types import SimpleNamespace

try:
    import matplotlib.figure
except ImportError:
    print("plots.py needs matplotlib (apt install python3-matplotlib)", file=sys.stderr)
    sys.exit(2)

# The colours of the programs' own pictures (lab/pictures/svg.cpp), good for the colour-blind, too.
COLOURS = {"parameter": "#56b4e9", "gradient": "#e69f00", "optimizer": "#1aa67d",
           "activation": "#cc79a7", "communication": "#dd6b1a", "gathered": "#dd6b1a",
           "host": "#b8a9e0", "exposed": "#f0e442", "": "#a6a6a6"}
INK, GRID, PAPER = "#1f2328", "#c4ccd4", "#ffffff"
DARK = {INK: "#e6edf3", GRID: "#3d444d", PAPER: "#0d1117"}  # in an SVG, where the reader's theme is
STYLE = {"figure.facecolor": PAPER, "axes.facecolor": PAPER, "axes.edgecolor": GRID,
         "text.color": INK, "axes.labelcolor": INK, "xtick.color": INK, "ytick.color": INK,
         "axes.grid": True, "grid.color": GRID, "axes.axisbelow": True, "hatch.color": PAPER,
         "axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False,
         "axes.prop_cycle": matplotlib.cycler(color=dict.fromkeys(COLOURS.values())),
         "legend.fontsize": "small", "svg.fonttype": "none", "svg.hashsalt": "ultrascale"}
NOT_TRAINING = {"--json", "--trace", "--html", "--svg", "--save", "--report", "--compare"}


def read(path):
    """The runs, or comparisons, in a file. Each ends with its summary, unless it was killed."""
    runs = []
    for text in pathlib.Path(path).read_text(encoding="utf-8").splitlines():
        if not runs or runs[-1].summary:
            runs.append(run := SimpleNamespace(file=path, steps=[], rows=[]))
        try:
            line = json.loads(text)
            run.steps += [line] if "step" in line else []
            run.rows += [line["row"]] if "row" in line else []
            run.summary = line.get("summary", {})
        except (ValueError, TypeError, AttributeError):
            raise ValueError(f"{path}: not what --json writes, one JSON object a line") from None
        run.configuration = run.summary.get("configuration", {"ranks": 0})
    return runs


def name_runs(runs):
    """The runs with labels: in what a run's configuration differs from the others'."""
    named = ("chapter", "technique", "model", "ranks", "machine")
    settings = [{key: "ranks " * (key == "ranks") + str(c[key]) for key in named if key in c} |
                {key: f"{key} {value}" for key, value in c.get("options", {}).items()
                 if key not in NOT_TRAINING} for c in (run.configuration for run in runs)]
    different = [key for key in dict.fromkeys(key for each in settings for key in each)
                 if len({each[key] for each in settings if key in each}) > 1]
    if "technique" in different:  # its words tell the options
        different = [key for key in different if not key.startswith("--")]
    for run, each in zip(runs, settings):
        words = [each[key] for key in different if key in each]
        words += [str(run.file)] * (settings.count(each) > 1)
        run.label = ", ".join(words) or each.get("technique", str(run.file))
    return runs


def title_of(runs):
    """What all runs have in common."""
    def words(run):
        options = run.configuration.get("options", {}).items()
        c = {key[2:]: value for key, value in options} | run.configuration
        yield from (c.get(key) for key in ("chapter", "technique", "model", "dtype"))
        yield f"{c['ranks']} rank" + "s" * (c["ranks"] > 1)
        if "global_batch" in c:
            yield f"{c['global_batch'] / c['ranks']:g} x {c['seq']} tokens a rank and step"
    first, *others = [list(words(run)) for run in runs if run.summary] or [[]]
    return ", ".join(word for word in first if word and all(word in other for other in others))


def row_name(row):
    """What a comparison's row begins with, before the figures."""
    words = itertools.takewhile(lambda item: not isinstance(item[1], float) and
                                not item[0].endswith(("_bytes", "_ms")), row.items())
    return ", ".join(value if isinstance(value, str) else key if value is True else f"{key} {value}"
                     for key, value in words if value is not False)


def figures(runs, of_row, of_summary):
    """(label, figure) of rows and runs; of several runs (the label, None) before each one's."""
    found = []
    for run in runs:
        named = [(row_name(row), of_row(row)) for row in run.rows] + of_summary(run.summary)
        named = [(name or run.label, value) for name, value in named if value]
        if len(runs) > 1 and named and named[0][0] != run.label:
            found.append((run.label, None))
        found += named
    return found


def name_bars(axes, shown):
    """Names horizontal bars, from the top, and makes room for them."""
    axes.set_yticks(range(len(shown)), [textwrap.fill(label, 40) for label, _ in shown])
    axes.set_ylim(max(len(shown), 1) - 0.5, -0.5)
    axes.grid(False, axis="y")
    axes.figure.set_figheight(1.4 + 0.42 * len(shown))
    return shown


def draw_pairs(axes, shown, looks):
    """For each label two bars, one under the other."""
    for part, look in enumerate(looks):
        axes.barh([y + 0.4 * part - 0.2 for y in range(len(shown))],
                  [pair[part] if pair else 0 for _, pair in shown], 0.36, **look)
    return name_bars(axes, shown)


def draw_loss(axes, runs):
    axes.set(xlabel="step", ylabel="loss")
    axes.xaxis.get_major_locator().set_params(integer=True)
    for place, run in enumerate(runs):
        for key, label, look in (("loss", run.label, "-"), ("val_loss", "validation", "o--")):
            points = [(line["step"], line[key]) for line in run.steps if key in line]
            if points:  # equal losses cover each other: thinner ones on top
                width = 2 * (len(runs) - place) - 0.5
                axes.plot(*zip(*points), look, color=f"C{place}", label=label, linewidth=width)
    return axes.lines


def draw_throughput(axes, runs):
    speeds, steps = [figures(runs, lambda row: row.get(key),
                             lambda summary: [("", summary.get("speed", {}).get(key))])
                     for key in ("tokens_per_second_per_device", "step_ms")]
    shown = speeds if len(speeds) >= len(steps) else steps  # some rows have only these
    axes.set(xlabel="tokens/s a rank" if shown is speeds else "ms a step", xmargin=0.1)
    bars = axes.barh(range(len(shown)), [value or 0 for _, value in shown], 0.6)
    axes.bar_label(bars, [f"{value:,.0f}" if value else "" for _, value in shown], padding=3)
    return name_bars(axes, shown)


def draw_memory(axes, runs):
    """Of runs each category; of a comparison's rows all categories end to end."""
    def colour_of(category):
        return next(colour for word, colour in COLOURS.items() if word in category)
    axes.set(xlabel="MiB a rank")
    shown = figures(runs, lambda row: None, lambda summary: [
        (key, [of.get(which, 0) / 2**20 for which in ("predicted", "measured")])
        for key, of in summary.get("memory", {}).items()])
    if shown:
        look = {"color": [colour_of(label) for label, _ in shown]}
        return draw_pairs(axes, shown, [look | {"label": "predicted", "hatch": "//"},
                                        look | {"label": "measured"}])
    rows = figures(runs, lambda row: {key: value / 2**20 for key, value in row.items()
                                      if key.endswith("_bytes")}, lambda summary: [])
    left = [0.0] * len(rows)
    for key in dict.fromkeys(key for _, row in rows for key in row or {}):
        width = [row.get(key, 0) if row else 0 for _, row in rows]
        if any(width) and not key.startswith(("sent", "predicted", "total")):
            axes.barh(range(len(rows)), width, 0.6, left=left, color=colour_of(key),
                      label=key.removesuffix("_bytes").replace("_", " "))
            left = [a + b for a, b in zip(left, width)]
    return name_bars(axes, rows)


def draw_exposed(axes, runs):
    axes.set(xlabel="ms a step")
    shown = figures(
        runs, lambda row: "exposed_ms" in row and (row["communication_ms"], row["exposed_ms"]),
        lambda summary: [(kind, (1e3 * of["seconds"], 1e3 * of["exposed_seconds"]))
                         for kind, of in summary.get("communication", {}).items()])
    return draw_pairs(axes, shown, [
        {"label": "from the first message to the last", "color": COLOURS["communication"]},
        {"label": "exposed: computation waits for it", "color": COLOURS["exposed"]}])


def draw_scaling(axes, runs):
    """Each machine's run on the fewest ranks is what its other runs are compared with."""
    runs = [(run.configuration["ranks"], run.summary["speed"]["tokens_per_second"],
             run.configuration) for run in runs if "speed" in run.summary]
    runs.sort(key=lambda run: run[0])
    counts = sorted({ranks for ranks, _, _ in runs})
    alone, series = {}, {}
    for ranks, speed, configuration in runs:
        first, its_speed = alone.setdefault(configuration.get("machine"), (ranks, speed))
        if first != counts[0]:
            raise ValueError(f"scaling: no run on {counts[0]} to compare that on {ranks} with")
        if not series:
            series["ideal"] = [(n, speed * n / first, 100) for n in counts]
        elif ranks > first:
            name = "measured" if len(counts) == len(runs) else str(configuration.get("technique"))
            series.setdefault(name, series["ideal"][:1]).append(
                (ranks, speed, 100 * speed / ranks / its_speed * first))
    right = axes.figure.add_subplot(1, 2, 2, ylabel="efficiency: % of ideal")
    axes.set(ylabel="tokens/s of all ranks", subplotspec=right.get_gridspec()[0])
    for name, points in series.items():
        look = {"color": INK, "linestyle": "--"} if name == "ideal" else {
            "marker": "o", "linestyle": "-" if len(alone) == 1 else ""}  # no line across machines
        for part, each in enumerate((axes, right), 1):
            each.plot([of[0] for of in points], [of[part] for of in points], **look,
                      label=textwrap.fill(name, 30))
            each.set(xticks=counts, xlabel="ranks")
    axes.set_ylim(bottom=0)
    return len(series) > 1


def draw(what, paths):
    """The figure. ValueError: the files do not hold what it needs."""
    matplotlib.rcParams.update(STYLE)
    runs = name_runs([run for path in paths for run in read(path)])
    figure = matplotlib.figure.Figure(figsize=(9, 4.5), layout="constrained")
    axes = figure.add_subplot()
    if not globals()["draw_" + what](axes, runs):
        raise ValueError(f"{', '.join(map(str, paths))}: nothing there to draw for {what}")
    figure.suptitle(textwrap.fill(title_of(runs), 90))
    if len(axes.get_legend_handles_labels()[1]) > 1:
        above_bars = {"loc": "lower left", "bbox_to_anchor": (0, 1), "ncols": 4}
        axes.legend(**(above_bars if what in ("memory", "exposed") else {}))
    return figure


def save(figure, path):
    if path.suffix != ".svg":
        return figure.savefig(path, dpi=150)
    figure.savefig(path, metadata={"Date": None})
    dark = "".join(f'[style*="{what}: {light}"]{{{what}:{DARK[light]}!important}}'
                   for light in DARK for what in ("fill", "stroke"))
    style = f"<style>@media (prefers-color-scheme:dark){{{dark}}}</style>"
    path.write_bytes(path.read_bytes().replace(b"<defs>", style.encode() + b"\n <defs>", 1))


if __name__ == "__main__":
    parser = ArgumentParser(description=__doc__, formatter_class=RawTextHelpFormatter)
    parser.add_argument("what", choices=["loss", "throughput", "memory", "scaling", "exposed"])
    parser.add_argument("files", nargs="+")
    parser.add_argument("-o", type=pathlib.Path, metavar="FILE", help="FILE.svg or FILE.png")
    given = parser.parse_args()
    try:
        save(draw(given.what, given.files), given.o or pathlib.Path(given.what + ".svg"))
    except (OSError, ValueError) as error:
        print(f"plots.py: {error}", file=sys.stderr)
        sys.exit(2)
