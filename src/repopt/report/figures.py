"""The report's figures: loss and accuracy over epochs, the final accuracies, and both figures of appendix E."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from textwrap import shorten
from typing import TYPE_CHECKING

from repopt.report.comparison import Group, mean_and_deviation
from repopt.report.drawing import GRID, INK, SERIES, count_epochs, dot, line, log_scale, new_figure, to_svg
from repopt.report.searches import Means, by_depth, stage_starts
from repopt.train.records import EpochRecord, RunRecord

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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
    axes.grid(visible=False, axis="y")
    axes.grid(axis="x", color=GRID, linewidth=0.6)
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
