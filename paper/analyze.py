"""`repopt analyze kernels`, `variance` and `scales`: what the paper's appendices look at."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import tyro
from torch import Tensor

from paper.analysis_tables import Rows, print_kernels, print_scales, print_variance
from paper.kernels import run_kernels, spread
from paper.ranks import rank_correlations
from paper.variance import identity_ratios, over_seeds
from repopt.cli.output import print_json
from repopt.data import EvalBatches, load_data
from repopt.device import environment
from repopt.files import append_csv, replacing
from repopt.models import VGGSpec
from repopt.report.searches import check_comparable, points, sampled_operator

if TYPE_CHECKING:
    from paper.analyses import Analysis


def analyze_kernels(
    runs: tyro.conf.Positional[tuple[Path, ...]],
    *,
    layer: str | None = None,
    out: Path | None = None,
    json: bool = False,
) -> int:
    """Standard deviations and histograms of a 3x3 kernel: trained, at initialization, before and after conversion.

    Example: repopt analyze kernels runs/repopt runs/repvgg

    Args:
        runs: finished runs.
        layer: the layer by its module's name; the 8th of the longest stage unless given, or the middle of a short one.
        out: folder for the files; analysis/ in the first run's folder unless given, where its report finds them.
        json: print JSON instead of a table.
    """
    names = _names(runs)
    found = [run_kernels(folder, layer, name=name) for folder, name in zip(runs, names, strict=True)]
    rows = [
        {
            "run": each.run,
            "method": each.method,
            "model": each.model,
            "layer": each.layer.name,
            "kernel": kernel.name,
            **vars(spread(kernel.trained)),
            **{f"{position}_at_init": value for position, value in vars(spread(kernel.start)).items()},
            "seed": each.seed,
        }
        for each in found
        for kernel in each.kernels
    ]
    _show(rows, lambda: print_kernels(found, rows), json)

    def analysis() -> "Analysis":
        from paper.analyses import kernels_analysis

        return kernels_analysis(found)

    _write(_out(out, runs), {"kernels": rows}, analysis, quiet=json)
    return 0


def analyze_variance(
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

    Example: repopt analyze variance --widths 128 256 512 --out runs/b1/analysis

    Args:
        depths: blocks of the stages; the longest is measured.
        widths: channels of the stages; those of B0 unless given, 128 256 512 are B1's.
        data: images to measure on, as `repopt train` takes them; noise unless given.
        size: side of the images.
        batch_size: images.
        seeds: how many times each model is drawn.
        out: folder for the files; analysis/ in a run's folder puts them into its report.
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
    setting = {
        "depths": " ".join(map(str, depths)),
        "widths": " ".join(map(str, widths)),
        "data": data or "noise",
        "size": size,
        "batch_size": batch_size,
    }
    rows = [
        {"model": each.model, "block": block, "ratio": ratio, **setting, "seed": each.seed}
        for each in found
        for block, ratio in each.by_block.items()
    ]
    sentence = (
        f"Stages of {_listed(depths)} blocks with {_listed(widths)} channels, {batch_size} images of {data or 'noise'} "
        f"at {size} px, {seeds} {'seed' if seeds == 1 else 'seeds'}."
    )
    _show(rows, lambda: print_variance(means, sentence), json)

    def analysis() -> "Analysis":
        from paper.analyses import variance_analysis

        return variance_analysis(means, sentence)

    _write(out, {"variance": rows}, analysis, quiet=json)
    return 0


def analyze_scales(
    runs: tyro.conf.Positional[tuple[Path, ...]],
    *,
    operator: str | None = None,
    out: Path | None = None,
    json: bool = False,
) -> int:
    """The scales of searches over epochs and by depth, side by side, and how alike two searches rank them.

    Example: repopt analyze scales runs/search-cifar100 runs/search-caltech256

    Args:
        runs: finished searches of one model.
        operator: whose scales to follow over epochs; the last of the longest stage unless given.
        out: folder for the files; analysis/ in the first run's folder unless given, where its report finds them.
        json: print JSON instead of a table.
    """
    from repopt.report import read_search

    searches = [read_search(folder, name) for folder, name in zip(runs, _names(runs), strict=True)]
    check_comparable(searches)
    followed = operator or sampled_operator(searches[0].means)
    if followed not in searches[0].means:
        raise ValueError(
            f"the searches hold no operator {followed!r}: one of theirs is {next(iter(searches[0].means))!r}"
        )
    correlations = rank_correlations(searches)
    curves = [point for search in searches for point in points(search, followed)]
    seeds = {search.name: search.seed for search in searches}
    pairs = [{**vars(each), "seeds": f"{seeds[each.first]} {seeds[each.second]}"} for each in correlations]
    tables = {"scales": curves, "rank_correlations": pairs}
    _show(tables, lambda: print_scales(searches, correlations, followed), json)

    def analysis() -> "Analysis":
        from paper.analyses import scales_analysis

        return scales_analysis(searches, correlations, followed)

    _write(_out(out, runs), tables, analysis, quiet=json)
    return 0


def _names(runs: Sequence[Path]) -> list[str]:
    """What to call the runs: their folders' names, or the whole paths where two have the same."""
    if not runs:
        raise ValueError("there is nothing to analyze: give the folder of at least one finished run")
    paths = [folder.resolve() for folder in runs]
    twice = [str(folder) for folder, path in zip(runs, paths, strict=True) if paths.count(path) > 1]
    if twice:
        raise ValueError(f"the run {twice[0]!r} is given twice: name each folder once")
    names = [path.name for path in paths]
    return [name if names.count(name) == 1 else str(folder) for name, folder in zip(names, runs, strict=True)]


def _out(out: Path | None, runs: Sequence[Path]) -> Path:
    from paper.analyses import FOLDER

    return runs[0] / FOLDER if out is None else out


def _noise(batch_size: int, size: int, seed: int) -> Tensor:
    return torch.randn(batch_size, 3, size, size, generator=torch.Generator().manual_seed(seed))


def _images(source: str, size: int, batch_size: int) -> Tensor:
    """The first training images of a data set."""
    data = load_data(source, limit=batch_size)
    batches = EvalBatches(
        data.train, batch_size=batch_size, size=size, mean=data.mean, std=data.std, device=torch.device("cpu")
    )
    return next(iter(batches))[0]


def _show(rows: object, print_table: Callable[[], None], json: bool) -> None:
    if json:
        print_json(rows)
    else:
        print_table()


def _write(out: Path, tables: Mapping[str, Rows], analysis: Callable[[], "Analysis"], *, quiet: bool) -> None:
    """Writes the tables as CSV, then figures and a page where they can be drawn, and says where."""
    if out.exists() and not out.is_dir():
        raise ValueError(f"{str(out)!r} is a file: give --out a folder")
    place = environment("cpu")
    out.mkdir(parents=True, exist_ok=True)
    written = []
    for name, rows in tables.items():
        path = out / f"{name}.csv"
        if not rows:
            path.unlink(missing_ok=True)  # of an earlier analysis
            continue
        with replacing(path) as unfinished:
            unfinished.unlink(missing_ok=True)
            append_csv(unfinished, [{**row, **place} for row in rows])
        written.append(path)
    missing = ""
    try:
        from paper.analyses import write_analysis

        written += write_analysis(analysis(), out)
    except ImportError as error:
        missing = f"no figures: {error}"
    if not quiet:
        print("\n".join([f"written: {path}" for path in written] + [missing] * bool(missing)))


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))
