"""Is the search any good? Our scales beside the authors', all ones, the search's start and channel means; and A0."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import get_args

from paper.jobs import AGAIN, Source, scales_from, search_job, training_job
from paper.scope import Scope
from paper.searches import gaps_to, later_seeds, whose
from paper.summaries import difference, groups, markdown, matching, setting, spread, told_apart
from paper.tables import Record, Row, Table, training_row
from paper.workshop import Workshop
from repopt.train.recipe import search, search_clipped
from repopt.train.training import Job

_SIZES = ("b1", "a0")
_SOURCES: tuple[Source, ...] = get_args(Source)
# other ways to search than the one that ships
_SEARCHES = {"searched, clipped": search_clipped(), "searched, He": dataclasses.replace(search(), kernel="paper")}
_REPVGG = "RepVGG"
_WORDS = {
    "searched": "ours, which ship",
    "authors": "released by the paper's authors",
    "depth": "what the search starts from",
    "mean": "ours, averaged over the channels",
    AGAIN: "by the same recipe with another seed",
    "searched, clipped": "with label smoothing and clipping",
    "searched, He": "from He's kernels, and trained from torch's as all are",
    _REPVGG: "real branches",
}
_ALL = (*_SOURCES, *_SEARCHES, _REPVGG)


def _rows(scope: Scope) -> Iterator[Row]:
    for seed in scope.seeds:
        for size in _SIZES[:1] if scope.quick else _SIZES:
            for source in _ALL:
                if source != "authors" or (size == "b1" and not scope.quick):
                    yield _row(scope, size, source, seed)


def _row(scope: Scope, size: str, source: str, seed: int) -> Row:
    model = scope.model(size)

    def job(workshop: Workshop) -> Job:
        if source == _REPVGG:
            return training_job(scope, model, "repvgg", seed)
        if source in _SEARCHES:
            scales = workshop.searched(search_job(scope, model, scope.search_recipe(_SEARCHES[source])))
        else:
            scales = scales_from(source, scope, workshop, model)  # type: ignore[arg-type]
        return training_job(scope, model, "repopt", seed, scales)

    searched = {f"{source} {size}": 2.5} if source in (AGAIN, *_SEARCHES) else {}
    key = {"model": model, "constants": source, "seed": seed}
    return training_row(key, job, minutes=0.3, searches=searched, authors=source == "authors")


def _part(rows: Sequence[Record]) -> list[str]:
    lines = [f"Trained on Imagenette: {setting(rows)}", ""]
    cells, told = [], []
    for (model,), its in groups(rows, "model").items():
        found, later = (
            {source: matching(some, constants=source) for source in _ALL} for some in (its, later_seeds(its))
        )
        cells += [
            (model, source, len(seeds), spread(seeds), *gaps_to(seeds, found["searched"], found[AGAIN]))
            for source, seeds in found.items()
            if seeds
        ]
        for ours in ("searched", AGAIN):
            others = {source: seeds for source, seeds in later.items() if source != ours}
            apart = told_apart(others, later[ours], f"`{ours}`")
            told += [f"{whose(later[ours])}: {apart}", ""] if apart else []
    columns = {"model": "<", "constants": "<", "seeds": ">", "accuracy": ">", "to searched": ">", f"to {AGAIN}": ">"}
    return [
        *lines,
        *markdown(columns, cells),
        "",
        *told,
        " ".join(f"{source}: {words}." for source, words in _WORDS.items() if matching(rows, constants=source)),
    ]


def _verdict(rows: Sequence[Record]) -> str | None:
    ours = matching(rows, model="repopt_vgg_b1", constants="searched")
    gap = difference(ours, matching(rows, model="repopt_vgg_b1", constants="authors"))
    told = [f"B1 with our scales against the authors' released ones: {gap} points."] if gap else []
    searches = []
    for its in groups(rows, "model").values():
        later = later_seeds(its)
        first, again = (matching(later, constants=source) for source in ("searched", AGAIN))
        searches += [f"{whose(later)} {apart}"] if (apart := difference(again, first)) else []
    told += [f"A second search's scales against the first's: {'; '.join(searches)} points."] if searches else []
    return " ".join(told) or None


TABLE = Table(
    name="constants",
    title="Is the search any good?",
    keys=("model", "constants", "seed"),
    rows=_rows,
    part=_part,
    verdict=_verdict,
)
