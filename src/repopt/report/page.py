"""The page: `write_report` fills page.html, which holds all markup and escapes what it is given."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from repopt.files import write_text
from repopt.plans.wording import joined
from repopt.report import figures
from repopt.report.comparison import (
    METHODS,
    differing_fields,
    group_runs,
    limits,
    mean_and_deviation,
    name_among,
    shared_fields,
)
from repopt.report.searched_scales import over_epochs, sampled_operator
from repopt.train.records import RunInfo, RunRecord, check_distinct, read_run

# fields of run.json that say how a run was made, with their names for a reader
_ORIGIN = {"seed": "seeds", "kernel": "kernels at init", "hardware": "hardware", "threads": "threads"}
_ORIGIN |= {"precision": "precision", "python": "Python", "torch": "PyTorch", "repopt": "repopt", "date": "date"}
_ORIGIN |= {"data_digest": "digest of the data", "options": "options", "limit": "limit", "broken": "broken"}
_ORIGIN |= {"weights": "weights", "scales": "scales", "processes": "processes", "commit": "commit"}
_DIGEST_LENGTH = 12
_ABSENT = "–"
_LEAST_SHARE = 1e-4  # of ImageNet's cost, of which the paper's search is 1.6e-3: a search of digits or a trial is below


@dataclass(frozen=True, kw_only=True)
class SearchedScales:
    """What the page shows of a search: appendix E's two figures, and what the search cost.

    Attributes:
        run: the search, or a training that learned its scales on the way.
        operator: the one whose scales are shown over epochs.
        branches: of that operator.
        over_epochs: a figure.
        by_depth: a figure.
        epochs: those in which scales were searched.
        cost: as a share of the paper's ImageNet training; None for a trial that is too small for the comparison.
    """

    run: RunRecord
    operator: str
    branches: Sequence[str]
    over_epochs: str
    by_depth: str
    epochs: float
    cost: float | None


@dataclass(frozen=True, kw_only=True)
class Overview:
    """What a comparison puts at the head of its page.

    Attributes:
        sentences: what the figures say.
        heads: of the table; the first column is text, the others are numbers.
        rows: of the table.
        notes: how it was measured.
        command: what to run next.
    """

    sentences: Sequence[str]
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str]
    command: str


def write_report(
    runs: Sequence[str | Path], out: str | Path, *, title: str | None = None, overview: Overview | None = None
) -> Path:
    """Writes one HTML page, which needs no network and no other file, about a run or a comparison of runs.

    Args:
        runs: the folders of the runs.
        out: the page's path; what is there is replaced.
        title: the headline; what was run on what unless given.
        overview: what stands above the runs.

    Returns:
        The page's path.

    Raises:
        ValueError: no folder or one folder twice was given, or one is no run, or a file of a run is corrupt.
        ImportError: matplotlib is not installed.
    """
    out = Path(out)
    if not runs:
        raise ValueError("a report needs the folder of at least one run, and none was given")
    check_distinct(runs)
    if out.is_dir():
        raise ValueError(f"{str(out)!r} is a folder: name the page's file, as {str(out / 'report.html')!r}")
    text = render([read_run(folder) for folder in runs], title, overview)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_text(out, text)
    return out


def render(runs: Iterable[RunRecord], title: str | None = None, overview: Overview | None = None) -> str:
    """The page's text."""
    groups = group_runs(runs)
    ordered = [run for group in groups for run in group.runs]
    splits = [group.split for group in groups]
    page = _environment().get_template("page.html")
    return page.render(
        title=title,
        overview=overview,
        groups=groups,
        runs=ordered,
        name=lambda run: name_among(run, ordered),
        methods={group.method: METHODS.get(group.method, group.method) for group in groups},
        sources=_sources(ordered),
        epochs=sorted({run.recipe["epochs"] for run in ordered if isinstance(run.recipe.get("epochs"), int)}),
        limits=limits(groups),
        markers=[outline for _, outline in figures.MARKERS],
        curves=figures.curves(groups),
        searches=[found for run in ordered if (found := _searched(run))],
        parts=list(dict.fromkeys(part for split in splits for part in split)),
        longest=max(sum(split.values()) for split in splits),
        differing=differing_fields(groups),
        shared=shared_fields(groups),
        origin=_origin(ordered),
    )


def _searched(run: RunRecord) -> SearchedScales | None:
    means = run.scales[max(run.scales)] if run.scales else {}
    if not means:
        return None
    operator, name = sampled_operator(means), run.folder.name
    history = over_epochs(run.scales, operator)
    share = run.recipe.get("freeze_at")  # of all epochs, however many are done
    settled = min(epoch for epoch, found in run.scales.items() if found == means)  # in which they were frozen
    epochs = min(max(share * run.recipe.get("epochs", settled), settled - 1), settled) if share else run.epochs_done
    cost = cost_share(run.info.train_images, epochs, run.info.image_size)
    return SearchedScales(
        run=run,
        operator=operator,
        branches=list(history),
        over_epochs=figures.scales_over_epochs(history, f"{operator} of {name}"),
        by_depth=figures.scales_by_depth(means, name),
        epochs=epochs,
        cost=cost if cost >= _LEAST_SHARE else None,
    )


def cost_share(images: int, epochs: float, image_size: int) -> float:
    """The cost of a search as a fraction of the paper's ImageNet training: images x epochs x pixels.

    The paper's own figure (section 4.1) is 10/9 of that, as its blocks convolve once per branch, 3x3 and 1x1; a search
    block of repopt merges the kernels first and convolves once.

    Example:
        >>> f"{cost_share(50_000, 240, 32) * 10 / 9:.2%}"  # the paper's figure, with its two convolutions per block
        '0.18%'
    """
    return images / 1_281_167 * epochs / 120 * (image_size / 224) ** 2


def _sources(runs: Sequence[RunRecord]) -> list[RunInfo]:
    """One run for each kind of data on the page."""
    infos = [run.info for run in runs]
    return list({(info.data, info.train_images, info.val_images, info.image_size): info for info in infos}.values())


def _origin(runs: Sequence[RunRecord]) -> dict[str, list[str]]:
    """{name for a reader: the values over the runs}, where there are any."""
    found = {name: [getattr(run.info, field) for run in runs] for field, name in _ORIGIN.items()}
    found["seeds"].sort()
    texts = {name: [_value(each) for each in values if each not in (None, "", {})] for name, values in found.items()}
    texts["digest of the data"] = [digest[:_DIGEST_LENGTH] for digest in texts["digest of the data"]]
    return {name: values for name, values in texts.items() if values}


def _accuracy(values: Sequence[float]) -> str:
    """Mean and deviation, or a single value."""
    if not values:
        return _ABSENT
    mean, deviation = mean_and_deviation(values)
    return f"{mean:.2f}" if deviation is None else f"{mean:.2f} ± {deviation:.2f}"


def _decimals(number: float | None, digits: int) -> str:
    return _ABSENT if number is None else f"{number:.{digits}f}"


def _count(number: float | None) -> str:
    """Thousands apart: 1,437; below ten with a decimal."""
    if number is None:
        return _ABSENT
    return f"{number:,.0f}" if number >= 10 or isinstance(number, int) else f"{number:.1f}"


def _duration(seconds: float | None) -> str:
    """9.4 s, 3 min 5 s, 2 h 7 min."""
    if seconds is None:
        return _ABSENT
    if seconds < 59.5:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min {rest} s"


def _memory(size: float | None) -> str:
    """512 MiB, 3.4 GiB."""
    if size is None:
        return _ABSENT
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"


def _percent(share: float) -> str:
    """A share with two significant digits: 0.16%, 0.00029%."""
    if share <= 0:
        return "0%"
    digits = max(1, 1 - math.floor(math.log10(100 * share)))
    return f"{100 * share:.{digits}f}%"


def _listed(words: Iterable[str]) -> str:
    """a, b and c; each once."""
    return joined(dict.fromkeys(words))


def _value(value: object) -> str:
    """A field of a recipe."""
    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    if isinstance(value, list):
        return ", ".join(map(_value, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


# how the template writes numbers; `–` where there is none
FILTERS: Mapping[str, Callable[..., str]] = {
    "accuracy": _accuracy,
    "decimals": _decimals,
    "count": _count,
    "duration": _duration,
    "memory": _memory,
    "percent": _percent,
    "listed": _listed,
    "value": _value,
}


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("repopt", "report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(FILTERS)
    return environment
