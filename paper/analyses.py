"""`python -m paper kernels`, `variance` and `scales`: what the paper's appendices look at, as tables and figures."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import tyro
from torch import Tensor

from paper.kernel_spread import run_kernels, spreads
from paper.measured import VIEWS
from paper.panels import identity_ratio_curves, kernel_histograms, scales_by_depth, scales_over_epochs
from paper.ranks import rank_correlations
from paper.searches import check_comparable, points, read_search
from paper.variance import identity_ratios, over_seeds
from paper.view import Column, View, number, render, text
from repopt.data import EvalBatches, load_data
from repopt.device import environment
from repopt.files import append_csv, write_text
from repopt.models import VGGSpec
from repopt.report.figures import standing_alone
from repopt.report.searched_scales import sampled_operator
from repopt.train.records import check_distinct

_Runs = tyro.conf.Positional[tuple[Path, ...]]
_Rows = Sequence[Mapping[str, Any]]
_VARIANCE = View(by=("model", "block"), columns=["model", "block", number("ratio", "variance ratio", "{:.3f}")])
_SCALES = View(
    by=("run", "branch"),
    where={"curve": "over epochs"},
    columns=[
        *(text("run", "search"), "data", "operator", "branch"),
        Column("mean at the start", lambda line: f"{float(line.rows[0]['mean']):.3f}"),
        Column("at the end", lambda line: f"{float(line.rows[-1]['mean']):.3f}"),
    ],
)
_RANKS = View(
    columns=["first", "second", "branch"]
    + [number(what, f"rank correlation, {what}", "{:.3f}") for what in ("channels", "operators", "moved")]
)


def kernels(runs: _Runs, *, layer: str | None = None, out: Path | None = None) -> int:
    """Standard deviations and histograms of a 3x3 kernel: trained, at initialization, before and after conversion.

    Example: python -m paper kernels runs/repopt runs/repvgg

    Args:
        runs: finished runs.
        layer: the layer by its module's name; the 8th of the longest stage unless given, or the middle of a short one.
        out: folder for the files; analysis/ in the first run's folder unless given.
    """
    found = [run_kernels(folder, layer, name=name) for name, folder in _named(runs).items()]
    rows = [
        {**each.about, "layer": each.layer.name, "kernel": name, **spreads(*kernels), "seed": each.seed}
        for each in found
        for name, kernels in each.kernels.items()
    ]
    print("\n".join(dict.fromkeys(f"layer: {each.layer}" for each in found)))
    print("Standard deviation of its kernel, in brackets at initialization:\n")

    tables = {"kernels": (VIEWS["kernels"], rows)}
    return _finish(out or runs[0] / "analysis", tables, lambda: {"kernels": kernel_histograms(found)})


def variance(
    *,
    depths: tuple[int, ...] = (4, 6, 16),
    widths: tuple[int, ...] = (64, 128, 256),
    data: str | None = None,
    size: int = 64,
    batch_size: int = 32,
    seeds: int = 3,
    out: Path = Path("runs/variance"),
) -> int:
    """The identity variance ratio by depth at initialization: of a ResNet, and of search models with two starts.

    Example: python -m paper variance --widths 128 256 512

    Args:
        depths: blocks of the stages; the longest is measured.
        widths: channels of the stages; those of B0 unless given, 128 256 512 are B1's.
        data: images to measure on, as `repopt train` takes them; noise unless given.
        size: side of the images.
        batch_size: images.
        seeds: how many times each model is drawn.
        out: folder for the files.
    """
    if seeds < 1 or size < 1 or batch_size < 1:
        raise ValueError(f"seeds, size and batch_size must be at least 1, not {seeds}, {size} and {batch_size}")
    spec, shape = VGGSpec(depths=depths, widths=widths), (batch_size, 3, size, size)
    images = None if data is None else _images(data, size, batch_size)
    noise = (torch.randn(shape, generator=torch.Generator().manual_seed(seed)) for seed in range(seeds))
    drawn = [identity_ratios(spec, each if images is None else images, seed) for seed, each in enumerate(noise)]
    if not all(drawn[0].values()):
        raise ValueError(f"the longest stage of {depths} has no block with an identity: give one of 2 blocks or more")
    stages = {"depths": " ".join(map(str, depths)), "widths": " ".join(map(str, widths))}
    setting = {**stages, "data": data or "noise", "size": size, "batch_size": batch_size}
    rows = [
        {"model": model, "block": block, "ratio": ratio, **setting, "seed": seed}
        for seed, ratios in enumerate(drawn)
        for model, by_block in ratios.items()
        for block, ratio in by_block.items()
    ]
    about = ", ".join(f"{name} {value}" for name, value in setting.items())
    print(f"Means over {seeds} seeds: {about}\n")
    tables = {"variance": (_VARIANCE, rows)}
    return _finish(out, tables, lambda: {"variance": identity_ratio_curves(over_seeds(drawn), about)})


def scales(runs: _Runs, *, operator: str | None = None, out: Path | None = None) -> int:
    """The scales of searches over epochs and by depth, side by side, and how alike two searches rank them.

    Example: python -m paper scales runs/search-cifar100 runs/search-caltech256

    Args:
        runs: finished searches of one model.
        operator: whose scales to follow over epochs; the last of the longest stage unless given.
        out: folder for the files; analysis/ in the first run's folder unless given.
    """
    searches = [read_search(folder, name) for name, folder in _named(runs).items()]
    check_comparable(searches)
    followed = operator or sampled_operator(searches[0].means)
    if followed not in searches[0].means:
        raise ValueError(
            f"the searches hold no operator {followed!r}: one of theirs is {next(iter(searches[0].means))!r}"
        )

    def figures() -> dict[str, str]:
        over = scales_over_epochs(searches, followed)
        return {"scales_over_epochs": over, "scales_by_depth": scales_by_depth(searches)}

    curves = [point for search in searches for point in points(search, followed)]
    tables = {"scales": (_SCALES, curves), "rank_correlations": (_RANKS, rank_correlations(searches))}
    return _finish(out or runs[0] / "analysis", tables, figures)


def _named(runs: Sequence[Path]) -> dict[str, Path]:
    """The runs by their folders' names, or by the whole paths where two have the same."""
    if not runs:
        raise ValueError("there is nothing to analyze: give the folder of at least one finished run")
    check_distinct(runs)
    names = [folder.resolve().name for folder in runs]
    return {name if names.count(name) == 1 else str(run): run for name, run in zip(names, runs, strict=True)}


def _images(source: str, size: int, batch_size: int) -> Tensor:
    """The first training images of a data set."""
    data = load_data(source, limit=batch_size)
    cpu, mean, std = torch.device("cpu"), data.mean, data.std
    return next(iter(EvalBatches(data.train, batch_size=batch_size, size=size, mean=mean, std=std, device=cpu)))[0]


def _finish(out: Path, tables: Mapping[str, tuple[View, _Rows]], figures: Callable[[], Mapping[str, str]]) -> int:
    """Prints the tables, writes them as CSV, and figures where they can be drawn; says where."""
    if out.exists() and not out.is_dir():
        raise ValueError(f"{str(out)!r} is a file: give --out a folder")
    out.mkdir(parents=True, exist_ok=True)
    place, written = environment("cpu"), []
    for name, (view, rows) in tables.items():
        path = out / f"{name}.csv"
        path.unlink(missing_ok=True)  # of an earlier analysis
        if rows:
            texts = [{key: "" if cell is None else str(cell) for key, cell in row.items()} for row in rows]
            print(f"{render(view, texts)}\n")
            append_csv(path, [{**row, **place} for row in rows])
            written.append(f"written: {path}")
    try:
        for name, svg in figures().items():
            write_text(out / f"{name}.svg", standing_alone(svg))
            written.append(f"written: {out / f'{name}.svg'}")
    except ImportError as error:
        written.append(f"no figures: {error}")
    print("\n".join(written))
    return 0
