"""The figures of the README and of the pages on concepts, each from rows or from the scales that ship."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from paper.compared import method_name
from paper.evidence import LEARNED
from paper.jobs import planned
from paper.panels import labelled_bar
from paper.view import METHODS, Record, groups, matching, mean, mean_and_error, values
from repopt.plans.scales import Scales
from repopt.report.figures import GRID, INK, MARKERS, MUTED, SERIES, grid_across, key, new_figure, new_panels, to_svg

_MODEL, _OPERATOR = "repopt_vgg_b0", "stage2.1.conv"
_CHANNELS = 8  # in and out, of the multiplier that is drawn
_INT8 = {"float": "channel", "INT8, weights scaled per channel": "channel", "INT8, per tensor": "tensor"}
_FRONT = {"RepOpt": LEARNED}  # {method: the way it is trained}, where they differ


def multiplier() -> str:
    """What the gradient of a layer is multiplied by: a square of 3x3 taps for each pair of channels."""
    from matplotlib.patches import Rectangle

    plan = planned(_MODEL).with_scales(Scales.load(_MODEL))
    shown = plan.multiplier(_OPERATOR).dense()[:_CHANNELS, :_CHANNELS].float()
    top = shown.max().item()
    figure, axes = new_figure(width=420, height=430)
    for row, taps in enumerate(shown):
        for column, tap in enumerate(taps):
            for height in range(3):
                for across in range(3):
                    strength = math.sqrt(tap[height, across].item() / top)  # or small ones would all look like 0
                    at = column + across / 3.2, row + height / 3.2
                    axes.add_patch(Rectangle(at, 0.3, 0.3, facecolor=SERIES[0], alpha=round(strength, 2), linewidth=0))
    axes.set_xlim(-0.1, _CHANNELS)
    axes.set_ylim(_CHANNELS, -0.1)
    axes.set_aspect("equal")
    axes.grid(visible=False)
    axes.set_xticks([at + 0.45 for at in range(_CHANNELS)], [str(at + 1) for at in range(_CHANNELS)])
    axes.set_yticks([at + 0.45 for at in range(_CHANNELS)], [str(at + 1) for at in range(_CHANNELS)])
    axes.set_xlabel("input channel")
    axes.set_ylabel("output channel")
    axes.tick_params(length=0)
    return to_svg(
        figure, "The multipliers of a 3x3 layer's gradient: centres are larger, those on the diagonal largest"
    )


def int8_bars(rows: Sequence[Record], ways: Sequence[str]) -> str:
    """Accuracy in float and in INT8 by the way a model was trained, with deviations over the seeds."""
    found = {way: groups(matching(rows, way=way), "rate") for way in ways}
    trained = {
        f"{way}, lr {rate}" if len(by_rate) > 1 else way: rows
        for way, by_rate in found.items()
        for (rate,), rows in sorted(by_rate.items())
    }
    figure, axes = new_figure(width=560, height=70 + 62 * len(trained))
    axes.set_xlim(0, 1.08 * max(values(rows, "float_accuracy")))
    grid_across(axes)
    for height, each in enumerate(reversed(trained.values())):
        for series, (kind, by) in enumerate(_INT8.items()):
            measured = matching(each, backend="onnxruntime", weights=by, images="1000")
            reached = values(measured, "float_accuracy" if kind == "float" else "int8_accuracy")
            error = statistics.stdev(reached) if len(reached) > 1 else None
            at, length = height + 0.26 - 0.26 * series, statistics.mean(reached)
            labelled_bar(axes, at, length, series, f"{length:.1f}", height=0.23, xerr=error)
    axes.set_yticks(range(len(trained)), [*trained][::-1])
    axes.set_xlabel("accuracy (%)")
    key(axes, list(_INT8))
    return to_svg(figure, "Accuracy of B0 on mini-ImageNet in float and in INT8, by the way it was trained")


def accuracy_against_speed(points: Mapping[str, tuple[float, Sequence[float]]]) -> str:
    """{method: training images per second, accuracies of its seeds}: a point with their deviation for each."""
    figure, axes = new_figure(width=480, height=320)
    axes.grid(axis="x", color=GRID, linewidth=0.6)
    for series, (name, (speed, accuracies)) in enumerate(points.items()):
        at = speed / 1000, statistics.mean(accuracies)
        look: dict[str, Any] = {"color": SERIES[series], "marker": MARKERS[series][0], "markersize": 9, "linewidth": 2}
        axes.errorbar(*at, yerr=statistics.stdev(accuracies), capsize=4, **look)
        axes.annotate(name, at, (-12, 0), textcoords="offset points", ha="right", va="center", color=INK, fontsize=13)
    axes.set_xlim(0, 1.05 * max(speed for speed, _ in points.values()) / 1000)
    axes.set_xlabel("training, thousand images per second")
    axes.set_ylabel("accuracy (%)")
    return to_svg(figure, "Accuracy against training speed: RepOpt, RepVGG and plain SGD, B1 on Imagenette, one H200")


def compared(study: Mapping[str, Any]) -> str:
    """A study of `repopt compare`: accuracy in float and INT8 with standard errors, and, in figures, the speed."""
    methods = sorted(study["methods"], key=lambda each: float(each["accuracy"]))
    kinds = {"float": "", "INT8": "int8_"} if any(each["int8_accuracy"] for each in methods) else {"float": ""}
    figure, axes = new_figure(width=540, height=90 + 44 * len(methods))
    grid_across(axes)
    for height, method in enumerate(methods):
        for series, kind in enumerate(kinds.values()):
            if method[f"{kind}accuracy"] is None:
                continue
            at = method[f"{kind}accuracy"], height - 0.2 * series
            look: dict[str, Any] = {
                "color": SERIES[series],
                "marker": MARKERS[series][0],
                "markersize": 8,
                "capsize": 4,
            }
            axes.errorbar(*at, xerr=method[f"{kind}standard_error"], linewidth=2, **look)
        reached = [method[f"{kind}accuracy"] for kind in kinds.values()]
        figures = ["–" if each is None else f"{each:.1f}" for each in reached]
        _beside(axes, height - 0.1, [*figures, f"{method['images_per_second']:,.0f}"], INK)
    _beside(axes, len(methods) - 0.35, [*kinds, "images/s"], MUTED)
    axes.set_yticks([height - 0.1 for height in range(len(methods))], [*map(method_name, methods)])
    axes.set_ylim(-0.7, len(methods) - 0.4)
    axes.set_xlabel("accuracy (%)")
    key(axes, list(kinds))
    axes.set_position((0.18, 0.17, 0.4, 0.66))  # the layout makes no room for what stands beside a panel
    return to_svg(figure, "Accuracy in float and in INT8, and training speed, by the way a network is trained")


def _beside(axes: Any, height: float, words: Sequence[str], colour: str) -> None:
    """Words in columns to the right of a panel."""
    for place, word in enumerate(words):
        across = 1.25 + 0.28 * place + (0.16 if place == len(words) - 1 else 0.0)
        axes.annotate(
            word,
            (across, height),
            xycoords=("axes fraction", "data"),
            annotation_clip=False,
            ha="right",
            va="center",
            color=colour,
            fontsize=12,
        )


def front(quantized: Sequence[Record], study: Mapping[str, Any]) -> str:
    """The README's: what the same runs of each way reach in float and in INT8, and how fast it trained in a study."""
    methods = []
    for method in study["methods"]:
        name = method_name(method)
        way = {"way": _FRONT.get(name, name), "backend": "onnxruntime", "weights": "channel", "images": "1000"}
        rates = groups(matching(quantized, **way), "rate").values()
        rows = max(rates, key=lambda rows: mean(rows, "float_accuracy"), default=[])
        found = {
            f"{kind}{what}": value
            for kind, column in (("", "float_accuracy"), ("int8_", "int8_accuracy"))
            for what, value in zip(("accuracy", "standard_error"), mean_and_error(rows, column), strict=True)
        }
        if rows:
            methods.append({"name": name, "images_per_second": method["images_per_second"], **found})
    return compared({"methods": methods})


def kernel_steps(rows: Sequence[Record]) -> str:
    """A panel for each step from the trained kernel to the deployed one: numbers at the centre, and around it."""
    steps = groups(rows, "trained_by", "step")
    figure, panels = new_panels(len(steps), 1, width=460, height=125)
    for ((method, step), found), (axes,) in zip(steps.items(), panels, strict=True):
        limit = float(found[0]["limit"])
        for series, ((_,), bins) in enumerate(groups(found, "position").items()):
            shares = [float(row["share"]) for row in sorted(bins, key=lambda row: int(row["bin"]))]
            edges = [limit * (2 * number / len(shares) - 1) for number in range(len(shares) + 1)]
            axes.stairs(shares, edges, color=SERIES[series], linewidth=2)
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
        axes.set_xlim(-limit, limit)
        axes.set_title(f"{METHODS[method]}: {step}", loc="left", color=MUTED, fontsize=13)
    key(panels[0][0], ["at the centre", "around it"])
    return to_svg(figure, "Histograms of a 3x3 kernel before and after its norm and branches are merged into it")
