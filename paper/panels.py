"""The figures of the analyses: appendix C's histograms, appendix B's ratios, appendix E's curves side by side."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from paper.kernel_spread import POSITIONS, RunKernels, at_positions
from paper.searches import Search
from repopt.report.figures import (
    INK,
    MUTED,
    PAPER,
    SERIES,
    draw_by_depth,
    draw_over_epochs,
    grid_across,
    key,
    line,
    new_figure,
    new_panels,
    to_svg,
)
from repopt.report.searched_scales import over_epochs, searched_branches

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BINS = 101
_REACH = 3  # times the root mean square of the widest kernel's centre, shown to both sides of 0
_SIDE_BY_SIDE = 2  # searches in a row


def kernel_histograms(runs: Sequence[RunKernels]) -> str:
    """A row for each kernel: its numbers overall, at the centre and around it, over one range; an outline at init.

    Heights are relative to the highest bin.
    """
    rows = [(series, run, step) for series, run in enumerate(runs) for step in run.kernels]
    centres = [at_positions(run.kernels[step][0])["central"] for _, run, step in rows]
    limit = _REACH * max(centre.square().mean().sqrt().item() for centre in centres)
    figure, panels = new_panels(len(rows), len(POSITIONS), width=270, height=150, sharex=True)
    for (series, run, step), row in zip(rows, panels, strict=True):
        trained, start = map(at_positions, run.kernels[step])
        for position, axes in zip(POSITIONS, row, strict=True):
            colour = SERIES[series % len(SERIES)]
            axes.stairs(*_bins(trained[position], limit), fill=True, color=colour, alpha=0.75)
            axes.stairs(*_bins(start[position], limit), color=INK, linewidth=0.9)
            axes.set_yticks([])
            axes.spines["left"].set_visible(False)
            axes.set_xlim(-limit, limit)
            about = position + _outside(trained[position], limit)
            axes.text(1, 0.98, about, transform=axes.transAxes, color=MUTED, ha="right", va="top", fontsize=12)
        row[0].set_title(f"{run.about['run']}: {step}", loc="left", color=INK, fontsize=13)
    names = ", ".join(run.about["run"] for run in runs)
    return to_svg(figure, f"Histograms of the kernels of {names} at {runs[0].layer.name}")


def identity_ratio_curves(means: Mapping[str, Mapping[int, tuple[float, float]]], setting: str) -> str:
    """Appendix B's figure: the identity variance ratio by block, with a band of one deviation over the seeds."""
    figure, axes = new_figure(width=820, height=330)
    for series, points in enumerate(means.values()):
        line(axes, {block: mean for block, (mean, _) in points.items()}, series, "mean")
        low, high = ([mean + sign * deviation for mean, deviation in points.values()] for sign in (-1, 1))
        axes.fill_between(list(points), low, high, color=SERIES[series], alpha=0.18, linewidth=0)
    axes.set_ylim(0, 1)
    axes.set_xlabel("block of the longest stage")
    axes.set_ylabel("identity variance ratio")
    key(axes, list(means))
    return to_svg(figure, f"Identity variance ratio by depth, one curve for each model. {setting}")


def labelled_bar(axes: "Axes", at: float, length: float, series: int, text: str, **look: Any) -> None:
    """A bar with its number at its foot; behind the bar where that is too short for it."""
    axes.barh(at, length, color=SERIES[series], ecolor=INK, capsize=3, **look)
    fits = length > 0.12 * axes.get_xlim()[1]
    behind = 0 if fits else length + (look.get("xerr") or 0)
    color = PAPER if fits else INK
    axes.annotate(text, (behind, at), (5, 0), textcoords="offset points", va="center", color=color, fontsize=11)


def step_costs(ratios: Mapping[str, Mapping[str, float]]) -> str:
    """How long a step takes, {optimizer: {"in a loop" or "as a CUDA graph": times stock}}, as bars."""
    figure, axes = new_figure(width=500, height=70 + 46 * len(ratios))
    grid_across(axes)
    kinds = list(dict.fromkeys(kind for found in ratios.values() for kind in found))
    axes.set_xlim(0, 1.05 * max(found[kind] for found in ratios.values() for kind in kinds))
    for height, found in enumerate(list(ratios.values())[::-1]):
        for series, kind in enumerate(kinds):
            ratio, place = found[kind], height + 0.19 - 0.38 * series
            labelled_bar(axes, place, ratio, series, f"{ratio:.2f}", height=0.34)
    axes.axvline(1, color=INK, linewidth=1)
    axes.set_yticks(range(len(ratios)), list(ratios)[::-1])
    axes.set_xlabel("time of a step, times the stock optimizer's")
    key(axes, kinds)
    return to_svg(figure, "Time of an optimizer step with repopt, times the stock optimizer's")


def scales_over_epochs(searches: Sequence[Search], operator: str) -> str:
    """Appendix E's first figure, one panel for each search."""
    description = f"Mean of the scales of {operator} over epochs in"
    return _side_by_side(
        searches, lambda axes, search: draw_over_epochs(axes, over_epochs(search.history, operator)), description
    )


def scales_by_depth(searches: Sequence[Search]) -> str:
    """Appendix E's second figure, one panel for each search."""
    description = "Mean of each branch's scales by depth in"
    return _side_by_side(searches, lambda axes, search: draw_by_depth(axes, search.means), description)


def _side_by_side(searches: Sequence[Search], draw: Callable[["Axes", Search], None], description: str) -> str:
    """Panels in rows of two, with one range upwards, which those on the right do not label again."""
    columns = min(len(searches), _SIDE_BY_SIDE)
    figure, rows = new_panels(-(-len(searches) // columns), columns, width=420, height=290, sharey=True)
    panels = [axes for row in rows for axes in row]
    for place, (search, axes) in enumerate(zip(searches, panels, strict=False)):
        draw(axes, search)
        axes.set_title(f"{search.name}, on {search.data.partition(':')[0]}", loc="left", color=INK, fontsize=13)
        if place % _SIDE_BY_SIDE:
            axes.set_ylabel("")
    for axes in panels[len(searches) :]:
        axes.set_visible(False)
    key(panels[0], searched_branches(searches[0].means))
    return to_svg(figure, f"{description} {', '.join(search.name for search in searches)}")


def _outside(values: Tensor, limit: float) -> str:
    """What a histogram does not show, where that is worth a word."""
    share = (values.abs() > limit).double().mean().item()
    return f"\n{share:.1%} outside" if share >= 0.0005 else ""


def _bins(values: Tensor, limit: float) -> tuple[list[float], list[float]]:
    """The heights of a histogram, the highest being 1, and the edges of its bins."""
    counts = torch.histc(values.float(), bins=_BINS, min=-limit, max=limit)
    return (counts / counts.max().clamp(min=1)).tolist(), torch.linspace(-limit, limit, _BINS + 1).tolist()
