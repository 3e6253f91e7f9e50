"""`python -m paper kernels`, `variance` and `scales`: what the paper's appendices look at, as tables and figures."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import tyro
from rich import box
from rich.console import Console
from rich.table import Table as Printed
from torch import Tensor

from paper.kernels import POSITIONS, run_kernels, spreads
from paper.ranks import rank_correlations
from paper.variance import identity_ratios, over_seeds
from repopt.cli.output import print_json
from repopt.data import EvalBatches, load_data
from repopt.device import environment
from repopt.files import append_csv, replacing
from repopt.models import VGGSpec
from repopt.report.searches import check_comparable, over_epochs, points, sampled_operator

_Rows = Sequence[Mapping[str, Any]]
_Runs = tyro.conf.Positional[tuple[Path, ...]]


def kernels(runs: _Runs, *, layer: str | None = None, out: Path | None = None, json: bool = False) -> int:
    """Standard deviations and histograms of a 3x3 kernel: trained, at initialization, before and after conversion.

    Example: python -m paper kernels runs/repopt runs/repvgg

    Args:
        runs: finished runs.
        layer: the layer by its module's name; the 8th of the longest stage unless given, or the middle of a short one.
        out: folder for the files; analysis/ in the first run's folder unless given.
        json: print JSON instead of a table.
    """
    found = [run_kernels(folder, layer, name=name) for name, folder in _named(runs).items()]
    rows = [
        {
            **{name: getattr(each, name) for name in ("run", "method", "model")},
            "layer": each.layer.name,
            "kernel": kernel.name,
            **spreads(kernel),
            "seed": each.seed,
        }
        for each in found
        for kernel in each.kernels
    ]
    lines = [
        [row["run"], row["kernel"], *(f"{row[place]:.4f} ({row[f'{place}_at_init']:.4f})" for place in POSITIONS)]
        for row in rows
    ]
    if not json:
        _print("Standard deviation of a 3x3 kernel (in brackets: at init)", ["run", "kernel", *POSITIONS], lines)
        print("\n".join(dict.fromkeys(f"layer: {each.layer}" for each in found)))

    def figures() -> dict[str, str]:
        from paper.panels import kernel_histograms

        return {"kernels": kernel_histograms(found)}

    return _finish(out or runs[0] / "analysis", {"kernels": rows}, rows, figures, json)


def variance(
    *,
    depths: tuple[int, ...] = (4, 6, 16),
    widths: tuple[int, ...] = (64, 128, 256),
    data: str | None = None,
    size: int = 64,
    batch_size: int = 32,
    seeds: int = 3,
    out: Path = Path("runs/variance"),
    json: bool = False,
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
        json: print JSON instead of a table.
    """
    if seeds < 1 or size < 1 or batch_size < 1:
        raise ValueError(f"seeds, size and batch_size must be at least 1, not {seeds}, {size} and {batch_size}")
    spec = VGGSpec(depths=depths, widths=widths)
    images = None if data is None else _images(data, size, batch_size)
    found = [
        ratios
        for seed in range(seeds)
        for ratios in identity_ratios(spec, _noise(batch_size, size, seed) if images is None else images, seed)
    ]
    means = over_seeds(found)
    if not all(means.values()):
        raise ValueError(f"the longest stage of {depths} has no block with an identity: give one of 2 blocks or more")
    stages = {"depths": " ".join(map(str, depths)), "widths": " ".join(map(str, widths))}
    setting = {**stages, "data": data or "noise", "size": size, "batch_size": batch_size}
    rows = [
        {"model": each.model, "block": block, "ratio": ratio, **setting, "seed": each.seed}
        for each in found
        for block, ratio in each.by_block.items()
    ]
    about = ", ".join(f"{name} {value}" for name, value in setting.items())
    if not json:
        cells = {model: [f"{mean:.3f} ± {by:.3f}" for mean, by in blocks.values()] for model, blocks in means.items()}
        lines = zip(map(str, next(iter(means.values()))), *cells.values(), strict=True)
        _print(f"Identity variance ratio, mean ± deviation over {seeds} seeds", ["block", *cells], list(lines))
        print(about)

    def figures() -> dict[str, str]:
        from paper.panels import identity_ratio_curves

        return {"variance": identity_ratio_curves(means, about)}

    return _finish(out, {"variance": rows}, rows, figures, json)


def scales(runs: _Runs, *, operator: str | None = None, out: Path | None = None, json: bool = False) -> int:
    """The scales of searches over epochs and by depth, side by side, and how alike two searches rank them.

    Example: python -m paper scales runs/search-cifar100 runs/search-caltech256

    Args:
        runs: finished searches of one model.
        operator: whose scales to follow over epochs; the last of the longest stage unless given.
        out: folder for the files; analysis/ in the first run's folder unless given.
        json: print JSON instead of a table.
    """
    from repopt.report import read_search

    searches = [read_search(folder, name) for name, folder in _named(runs).items()]
    check_comparable(searches)
    followed = operator or sampled_operator(searches[0].means)
    if followed not in searches[0].means:
        raise ValueError(
            f"the searches hold no operator {followed!r}: one of theirs is {next(iter(searches[0].means))!r}"
        )
    correlations = rank_correlations(searches)
    seeds = {search.name: search.seed for search in searches}
    tables: dict[str, _Rows] = {
        "scales": [point for search in searches for point in points(search, followed)],
        "rank_correlations": [
            {**vars(each), "seeds": f"{seeds[each.first]} {seeds[each.second]}"} for each in correlations
        ],
    }
    if not json:
        curves = {search.name: over_epochs(search.history, followed) for search in searches}
        ends = {
            name: [
                " -> ".join(f"{mean:.3f}" for mean in [*curve.values()][:: max(1, len(curve) - 1)])
                for curve in by.values()
            ]
            for name, by in curves.items()
        }
        heads = ["search", *next(iter(curves.values()))]
        _print(
            f"Mean of the scales of {followed}, from start to end",
            heads,
            [[name, *cells] for name, cells in ends.items()],
        )
        lines = [
            [
                f"{each.first}, {each.second}",
                each.branch,
                *map(_correlation, (each.channels, each.operators, each.moved)),
            ]
            for each in correlations
        ]
        if lines:
            heads = ["searches", "branch", "channels", "operators", "moved"]
            _print("Rank correlation over channels, over operators' means, of how far each moved", heads, lines)

    def figures() -> dict[str, str]:
        from paper.panels import scales_by_depth, scales_over_epochs

        return {
            "scales_over_epochs": scales_over_epochs(searches, followed),
            "scales_by_depth": scales_by_depth(searches),
        }

    return _finish(out or runs[0] / "analysis", tables, tables, figures, json)


def _correlation(value: float | None) -> str:
    return "constant" if value is None else f"{value:.3f}"


def _named(runs: Sequence[Path]) -> dict[str, Path]:
    """The runs by their folders' names, or by the whole paths where two have the same."""
    if not runs:
        raise ValueError("there is nothing to analyze: give the folder of at least one finished run")
    paths = [folder.resolve() for folder in runs]
    twice = [str(folder) for folder, path in zip(runs, paths, strict=True) if paths.count(path) > 1]
    if twice:
        raise ValueError(f"the run {twice[0]!r} is given twice: name each folder once")
    names = [path.name for path in paths]
    return {name if names.count(name) == 1 else str(run): run for name, run in zip(names, runs, strict=True)}


def _noise(batch_size: int, size: int, seed: int) -> Tensor:
    return torch.randn(batch_size, 3, size, size, generator=torch.Generator().manual_seed(seed))


def _images(source: str, size: int, batch_size: int) -> Tensor:
    """The first training images of a data set."""
    data, cpu = load_data(source, limit=batch_size), torch.device("cpu")
    return next(
        iter(EvalBatches(data.train, batch_size=batch_size, size=size, mean=data.mean, std=data.std, device=cpu))
    )[0]


def _print(title: str, heads: Sequence[str], lines: Sequence[Sequence[str]]) -> None:
    printed = Printed(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for place, head in enumerate(heads):
        printed.add_column(head, overflow="fold", justify="right" if place else "left")
    for line in lines:
        printed.add_row(*line)
    Console(markup=False).print(printed)


def _finish(
    out: Path, tables: Mapping[str, _Rows], shown: object, figures: Callable[[], Mapping[str, str]], json: bool
) -> int:
    """Writes the tables as CSV, and figures where they can be drawn; says where, or prints JSON."""
    if out.exists() and not out.is_dir():
        raise ValueError(f"{str(out)!r} is a file: give --out a folder")
    out.mkdir(parents=True, exist_ok=True)
    place, written, missing = environment("cpu"), [], ""
    for name, rows in tables.items():
        path = out / f"{name}.csv"
        path.unlink(missing_ok=True)  # of an earlier analysis
        if rows:
            append_csv(path, [{**row, **place} for row in rows])
            written.append(path)
    try:
        from repopt.report.drawing import standing_alone

        for name, svg in figures().items():
            written.append(out / f"{name}.svg")
            with replacing(written[-1]) as unfinished:
                unfinished.write_text(standing_alone(svg))
    except ImportError as error:
        missing = f"no figures: {error}"
    if json:
        print_json(shown)
    else:
        print("\n".join([f"written: {path}" for path in written] + [missing] * bool(missing)))
    return 0
