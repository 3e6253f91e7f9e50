"""The figures of docs/results.md: where re-parameterization gains on others, and accuracy over weight decay."""

from collections.abc import Sequence
from itertools import product
from typing import Any

from paper.evidence import DECAY, LEARNED, WHERE
from paper.view import Record, difference, matching, mean, mean_and_error
from repopt.report.figures import INK, MARKERS, MUTED, SERIES, key, new_figure, new_panels, to_svg

_MODELS, _OURS, _OTHERS = ("b0", "a0"), ("RepOpt, searched", LEARNED), ("plain SGD", "Dirac", "RepVGG")


def over_decay(rows: Sequence[Record]) -> str:
    """What each way reaches at its best learning rate, over weight decay, with standard errors."""
    figure, axes = new_figure(width=560, height=330)
    decays = sorted({row["weight_decay"] for row in rows}, key=float)
    for series, way in enumerate(DECAY.order["way"]):
        lines = [DECAY.at_best(matching(rows, way=way, weight_decay=decay)) for decay in decays]
        points = [(place, *mean_and_error(line)) for place, line in enumerate(lines) if line]
        if not points:
            continue
        places, accuracies, errors = zip(*points, strict=True)
        look: dict[str, Any] = {"marker": MARKERS[series][0], "color": SERIES[series], "linewidth": 2, "capsize": 4}
        axes.errorbar(places, accuracies, yerr=errors, markersize=7, **look)
        ends = places[-1] == len(decays) - 1
        beside: dict[str, Any] = {"xytext": (12, 0)} if ends else {"xytext": (-12, 0), "ha": "right"}
        look = {"textcoords": "offset points", "va": "center", "color": INK, "fontsize": 12}
        axes.annotate(way, (places[-1], accuracies[-1]), **look, **beside)
    axes.set_xticks(range(len(decays)), [f"{float(decay):.0e}".replace("e-0", "e-") for decay in decays])
    axes.set_xlim(-0.15, len(decays) - 0.25)
    axes.set_xlabel("weight decay")
    axes.set_ylabel("accuracy (%)")
    return to_svg(figure, "Accuracy of RepOpt-VGG-B0 on mini-ImageNet after 40 epochs over weight decay, by method")


def over_the_map(rows: Sequence[Record]) -> str:
    """By how much RepOpt is ahead of others: a column for each share, a row for each model and way to its scales."""
    shares, epochs = WHERE.order["share"], WHERE.order["epochs"]
    trained_by = [*product(_MODELS, _OURS)]
    figure, panels = new_panels(len(trained_by), len(shares), width=250, height=220, sharey=True)
    for ((size, ours), row), (column, share) in product(zip(trained_by, panels, strict=True), enumerate(shares)):
        axes, trained = row[column], []
        axes.axhline(0, color=INK, linewidth=1)
        for place, length in enumerate(epochs):
            cell = matching(rows, model=f"repopt_vgg_{size}", share=share, epochs=length)
            lines = {way: WHERE.at_best(matching(cell, way=way)) for way in (ours, *_OTHERS)}
            trained.append(mean(lines[ours], "train_accuracy"))
            for series, way in enumerate(_OTHERS):
                look: dict[str, Any] = {"marker": MARKERS[series][0], "color": SERIES[series]}
                gap = difference(lines[ours], lines[way])
                if gap is not None:
                    at = place + (series - 1) / 6
                    axes.errorbar(at, gap.mean, yerr=gap.error, markersize=6, capsize=3, linewidth=2, **look)
        labels = [
            f"{length}\n{right:.0f}%" if right == right else length
            for length, right in zip(epochs, trained, strict=True)
        ]
        axes.set_xticks(range(len(epochs)), labels)
        axes.set_xlim(-0.4, len(epochs) - 0.6)
        title = f"{size.upper()}, {ours.removeprefix('RepOpt, ')}: {share} of the data"
        axes.set_title(title, loc="left", color=MUTED, fontsize=12)
        if row is panels[-1]:
            axes.set_xlabel("epochs, and training accuracy")
        if not column:
            axes.set_ylabel("points ahead")
    key(panels[0][0], [f"of {way}" for way in _OTHERS])
    return to_svg(figure, "Points by which RepOpt is ahead of plain SGD, Dirac and RepVGG, over epochs and data")
