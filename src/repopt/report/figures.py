"""The report's figures, as inline SVG whose colours are the page's own: one figure serves light and dark mode.

A figure is drawn by matplotlib in stand-in colours; in the SVG each becomes a CSS variable of style.css (`--ink`,
`--series-1`, ...). Text stays text, in the page's font.
"""

import io
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from html import escape
from importlib import resources
from textwrap import shorten
from typing import TYPE_CHECKING, Any, Literal

from repopt.report.comparison import Group, mean_and_deviation
from repopt.report.searched_scales import by_depth, stage_starts
from repopt.train.records import EpochRecord, Means, RunRecord

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Weight = Literal["mean", "single", "unfinished", "stage"]

INK, MUTED, GRID, PAPER = "#010101", "#010102", "#010103", "#010104"
SERIES = tuple(f"#0102{index:02x}" for index in range(8))  # the length of style.css's palette

# a second sign beside the colour, for those who see few colours: matplotlib's marker, and its outline for a legend
MARKERS: Sequence[tuple[str, str]] = (
    ("o", "M13 7a4 4 0 1 0 8 0a4 4 0 1 0-8 0z"),
    ("s", "M13.5 3.5h7v7h-7z"),
    ("^", "M17 2.5 21.5 11 12.5 11z"),
    ("D", "M17 2 22 7 17 12 12 7z"),
    ("v", "M17 11.5 21.5 3 12.5 3z"),
    ("p", "M17 2.5 21.5 5.8 19.8 11 14.2 11 12.5 5.8z"),
    ("P", "M15.2 2.5h3.6v2.7h2.7v3.6h-2.7v2.7h-3.6v-2.7h-2.7v-3.6h2.7z"),
    ("h", "M17 2.5 21 4.8 21 9.2 17 11.5 13 9.2 13 4.8z"),
)

_VARIABLES = {INK: "--ink", MUTED: "--muted", GRID: "--grid", PAPER: "--card"} | {
    colour: f"--series-{index + 1}" for index, colour in enumerate(SERIES)
}
_NOT_IN_XML = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
_LINES: Mapping[Weight, dict[str, Any]] = {
    "mean": {"linewidth": 2.2, "zorder": 3.0},
    "single": {"linewidth": 0.9, "alpha": 0.45},
    "unfinished": {"linewidth": 1.2, "alpha": 0.8, "linestyle": (0, (3, 2))},
    "stage": {"linewidth": 1.5},
}
_SETTINGS = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.size": 13,
    "text.color": INK,
    "axes.edgecolor": GRID,
    "axes.labelcolor": MUTED,
    "xtick.color": GRID,
    "ytick.color": GRID,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": MUTED,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.formatter.useoffset": False,
}
_LABEL_WIDTH = 48  # letters that fit into a figure
_LOG_FROM = 20  # largest over smallest loss, from which the end of the curves shows on a log scale only


def curves(groups: Sequence[Group]) -> dict[str, str]:
    """{caption: figure}; without those for which nothing was measured."""
    drawn = {
        "Training loss": _curves(groups, lambda epoch: epoch.train_loss, "training loss"),
        "Validation accuracy": _curves(groups, lambda epoch: epoch.val_accuracy, "validation accuracy (%)"),
        "Final validation accuracy": final_accuracies(groups),
    }
    return {caption: svg for caption, svg in drawn.items() if svg is not None}


def final_accuracies(groups: Sequence[Group]) -> str | None:
    """Each run's last accuracy as a dot, the mean as a bar with its deviation; None if there is a single group."""
    rows = [(series, group) for series, group in enumerate(groups) if group.accuracies]
    if len(rows) < 2:
        return None
    figure, axes = new_figure(height=max(255, 50 + 34 * len(rows)))
    grid_across(axes)
    for height, (series, group) in enumerate(reversed(rows)):
        mean, deviation = mean_and_deviation(group.accuracies)
        colour = SERIES[series % len(SERIES)]
        for value in group.accuracies:
            dot(axes, value, height, series, size=8.0)
        if deviation is not None:
            axes.plot([mean, mean], [height - 0.22, height + 0.22], color=colour, linewidth=2.5)
            axes.plot([mean - deviation, mean + deviation], [height, height], color=colour, linewidth=1.2, alpha=0.6)
        name = shorten(group.label, width=_LABEL_WIDTH, placeholder=" …")
        axes.annotate(
            name, (0, height + 0.32), xycoords=("axes fraction", "data"), color=INK, fontsize=12
        ).set_in_layout(False)
    axes.set_ylim(-0.5, len(rows) - 0.2)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.set_xlabel("validation accuracy (%)")
    return to_svg(figure, "Final validation accuracy of each method, one dot per run")


def scales_over_epochs(means: Mapping[str, Mapping[int, float]], name: str) -> str:
    """Appendix E's first figure: the mean of one operator's scales after each epoch, one curve per branch."""
    figure, axes = new_figure()
    draw_over_epochs(axes, means)
    return to_svg(figure, f"Mean of the scales of {name} over epochs, one curve per branch")


def draw_over_epochs(axes: "Axes", means: Mapping[str, Mapping[int, float]]) -> None:
    for series, points in enumerate(means.values()):
        line(axes, points, series, "mean")
    count_epochs(axes, 0, max(epoch for points in means.values() for epoch in points))
    axes.set_ylabel("mean of the scales")


def scales_by_depth(means: Means, name: str) -> str:
    """Appendix E's second figure: the mean of each branch's scales by depth, broken where a stage starts."""
    figure, axes = new_figure()
    draw_by_depth(axes, means)
    return to_svg(figure, f"Mean of each branch's scales by depth after the last epoch of {name}")


def draw_by_depth(axes: "Axes", means: Means) -> None:
    starts = stage_starts(means)
    for start in starts[1:]:
        axes.axvline(start - 0.5, color=GRID, linewidth=0.8, linestyle=(0, (2, 2)))
    for series, pieces in enumerate(by_depth(means).values()):
        for piece in pieces:
            line(axes, piece, series, "stage")
            for x, y in piece.items():
                dot(axes, x, y, series, size=max(6.5 - 1.2 * series, 3.5))  # branches may lie on each other
    axes.set_xticks(_apart([*starts, len(means)], gap=len(means) / 20))
    axes.set_xlabel("operator, by depth (labels: where a stage starts)")
    axes.set_ylabel("mean of the scales")


def _curves(groups: Sequence[Group], of: Callable[[EpochRecord], float | None], name: str) -> str | None:
    figure, axes = new_figure()
    drawn: list[float] = []
    for series, group in enumerate(groups):
        for run in group.runs:
            points = curve(run, of)
            drawn.extend(points.values())
            if len(group.runs) > 1:
                line(axes, points, series, "single" if run.finished else "unfinished")
        line(axes, mean_curve([curve(run, of) for run in group.counted]), series, "mean")
    if not drawn:
        return None
    if name.endswith("loss") and min(drawn) > 0 and max(drawn) > _LOG_FROM * min(drawn):
        log_scale(axes)
        name += " (log scale)"
    count_epochs(axes, 1, max(run.epochs_done for group in groups for run in group.runs))
    axes.set_ylabel(name)
    return to_svg(figure, f"{name} over epochs, one colour per method")


def curve(run: RunRecord, of: Callable[[EpochRecord], float | None]) -> dict[int, float]:
    """{epoch: value} where it was measured."""
    return {epoch.epoch: value for epoch in run.epochs if (value := of(epoch)) is not None}


def mean_curve(curves: Sequence[Mapping[int, float]]) -> dict[int, float]:
    """The mean at the epochs that all the curves have."""
    shared = set(curves[0]).intersection(*curves[1:]) if curves else set()
    return {epoch: statistics.fmean(curve[epoch] for curve in curves) for epoch in sorted(shared)}


def _apart(places: Sequence[int], gap: float) -> list[int]:
    """The places, without those whose labels would touch the one before."""
    kept: list[int] = []
    for place in places:
        if not kept or place - kept[-1] >= gap:
            kept.append(place)
    return kept


def new_figure(width: int = 380, height: int = 255) -> tuple["Figure", "Axes"]:
    """A figure with one pair of axes; the size counts in the units that the font's 13 does."""
    figure, panels = new_panels(1, 1, width=width, height=height)
    return figure, panels[0][0]


def grid_across(axes: "Axes") -> None:
    """Lines for what is read off along the bottom, as that of bars."""
    axes.grid(visible=False, axis="y")
    axes.grid(axis="x", color=GRID, linewidth=0.6)


def new_panels(
    rows: int, columns: int, *, width: int, height: int, sharex: bool = False, sharey: bool = False
) -> tuple["Figure", list[list["Axes"]]]:
    """A figure with several pairs of axes.

    Args:
        rows: of panels.
        columns: of panels.
        width: of one panel.
        height: of one panel.
        sharex: the same range along the bottom of all.
        sharey: the same range upwards in all.
    """
    matplotlib = _matplotlib()
    from matplotlib.figure import Figure
    from matplotlib.ticker import StrMethodFormatter

    with matplotlib.rc_context(_SETTINGS):
        figure = Figure(figsize=(columns * width / 72, rows * height / 72), layout="constrained")
        panels = figure.subplots(rows, columns, squeeze=False, sharex=sharex, sharey=sharey).tolist()
    for axes in (axes for row in panels for axes in row):
        axes.grid(axis="y", color=GRID, linewidth=0.6)
        axes.set_axisbelow(True)
        axes.tick_params(length=3)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(StrMethodFormatter("{x:g}"))
    return figure, panels


def marker(series: int) -> str:
    """Another one where the colours begin again."""
    return MARKERS[(series + series // len(SERIES)) % len(MARKERS)][0]


def line(axes: "Axes", points: Mapping[int, float], series: int, weight: Weight) -> None:
    """A curve; a mean is bold and ends in its marker."""
    colour = SERIES[series % len(SERIES)]
    axes.plot(list(points), list(points.values()), color=colour, solid_capstyle="round", **_LINES[weight])
    if weight == "mean" and points:
        dot(axes, list(points)[-1], list(points.values())[-1], series)


def dot(axes: "Axes", x: float, y: float, series: int, *, size: float = 7.0) -> None:
    """The marker of a series, with a rim that keeps it apart from what lies under it."""
    axes.plot(
        [x],
        [y],
        marker=marker(series),
        markersize=size,
        color=SERIES[series % len(SERIES)],
        markeredgecolor=PAPER,
        markeredgewidth=0.8,
        zorder=4.0,
        clip_on=False,
    )


def count_epochs(axes: "Axes", first: int, last: int) -> None:
    """Epochs along the bottom, in whole numbers."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    room = max(0.04 * (last - first), 0.1)
    axes.set_xlim(first - room, last + room)
    axes.set_xlabel("epoch")


def log_scale(axes: "Axes") -> None:
    """A log scale upwards, labelled with plain numbers."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def to_svg(figure: "Figure", description: str) -> str:
    """The figure for inside a page.

    Args:
        figure: what was drawn.
        description: for those who hear the page; different for each figure of it.
    """
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        text.set_parse_math(False)  # a name with dollar signs is no formula
        text.set_text(_NOT_IN_XML.sub("\N{REPLACEMENT CHARACTER}", text.get_text()))
    description = _NOT_IN_XML.sub("\N{REPLACEMENT CHARACTER}", description)
    buffer = io.StringIO()
    # ids made from the description, not at random: the same runs give the same page, its figures have different ids
    with _matplotlib().rc_context({**_SETTINGS, "svg.hashsalt": description}):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r' (width|height)="[\d.]+pt"', "", svg, count=2)  # as wide as the card
    svg = re.sub(r"<[^>]*>", lambda tag: _restyled(tag[0]), svg)  # not the text between the tags, which is a run's
    return svg.replace("<svg", f'<svg role="img" aria-label="{escape(description)}"', 1)


def _restyled(tag: str) -> str:
    """A tag of matplotlib's in the page's font and colours."""
    tag = re.sub(r'^<g id="[^"]*"', "<g", tag)  # several figures share a page, and an id must be the only one
    tag = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font-size: \1px", tag)
    for colour, variable in _VARIABLES.items():
        tag = tag.replace(colour, f"var({variable})")
    return tag


def key(axes: "Axes", labels: Sequence[str]) -> None:
    """The labels of all series, in their order, above a panel: for a figure that also stands alone."""
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color=SERIES[series % len(SERIES)], marker=marker(series), markersize=6)
        for series in range(len(labels))
    ]
    axes.figure.legend(
        handles, labels, loc="outside upper left", ncols=len(labels), frameon=False, labelcolor=INK, fontsize=13
    )


def standing_alone(svg: str) -> str:
    """The figure for a file of its own, on its own ground, in the page's colours: dark where the reader's are."""
    css = resources.files("repopt.report").joinpath("style.css").read_text(encoding="utf-8")
    palette = css.partition("* {")[0]  # light, then dark
    style = f"<style>{palette}svg {{ background: var(--card); font-family: sans-serif }}</style>"
    return re.sub(r'<svg([^>]* viewBox="0 0 ([\d.]+)[^>]*>)', rf'<svg width="\2"\1{style}', svg, count=1)


def _matplotlib() -> Any:
    """The module, imported only where figures are drawn."""
    try:
        import matplotlib
    except ImportError as error:
        raise ImportError(
            "figures are drawn by matplotlib, which is not installed: pip install -e '.[report]' from a checkout"
        ) from error
    return matplotlib
