"""Appendix B's table: searches whose scales start at 1, and by depth at sqrt(2/l)."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from paper.claims import Claim, claims_to_searches
from paper.jobs import AGAIN, search_job, training_job
from paper.scope import Scope
from paper.searches import EXPLAINED, SIZE, compared_searches, later_seeds, unsearched_row, whose
from paper.summaries import matching, setting
from paper.tables import Record, Row, Table
from paper.workshop import FIGURES, Workshop, figures_of
from repopt.plans.scales import Counting, Scales

_ONES, _BY_DEPTH = "all 1", "sqrt(2/l)"
_STARTS: dict[str, Counting | float] = {_ONES: 1.0, _BY_DEPTH: "authors"}
_PAPER = {_ONES: (47.70, 77.59), _BY_DEPTH: (54.53, 78.47)}


def _rows(scope: Scope) -> Iterator[Row]:
    for seed in scope.seeds:
        for name, start in _STARTS.items():
            yield _row(scope, name, start, seed)
        yield _row(scope.another_search, AGAIN, _STARTS[_BY_DEPTH], seed)
        yield unsearched_row("scales_start", scope, seed)


def _row(scope: Scope, name: str, start: Counting | float, seed: int) -> Row:
    model = scope.model(SIZE)

    def measure(workshop: Workshop) -> list[dict[str, Any]]:
        recipe = dataclasses.replace(scope.search_recipe(), start=start)
        search = workshop.run(search_job(scope, model, recipe))
        scales = Scales.load(search / "scales.safetensors")
        run = workshop.run(training_job(scope, model, "repopt", seed, scales))
        return [{**figures_of(run), "search_accuracy": figures_of(search)["val_accuracy"]}]

    key = {"scales_start": name, "model": model, "seed": seed}
    return Row(key=key, measure=measure, minutes=0.3, searches={name: 2.0})


def _part(rows: Sequence[Record]) -> list[str]:
    return [
        f"The paper: B1 on ImageNet. Ours: {rows[0]['model']}, searched on CIFAR-100, trained on Imagenette: "
        f"{setting(rows)} {EXPLAINED}",
        "",
        *compared_searches(rows, "scales_start", "scales start at", _BY_DEPTH, _PAPER),
    ]


def _claims(rows: Sequence[Record]) -> list[Claim]:
    rows = later_seeds(rows)
    found = [matching(rows, scales_start=name) for name in (_ONES, _BY_DEPTH, AGAIN)]
    itself, scales = (there - by_depth for there, by_depth in zip(_PAPER[_ONES], _PAPER[_BY_DEPTH], strict=True))
    return [
        *claims_to_searches(
            "Appendix B: a search that starts at 1 is less accurate itself (both: CIFAR-100)",
            rows[0]["model"],
            itself,
            *map(_one_search, found),
        ),
        *claims_to_searches("Appendix B: scales of such a search are worse", whose(rows), scales, *found),
    ]


def _one_search(rows: Sequence[Record]) -> list[Record]:
    """The accuracy of the search that rows share."""
    return [{**row, "val_accuracy": row["search_accuracy"]} for row in rows[:1]]


TABLE = Table(
    name="tableB",
    title="Appendix B: where searched scales start",
    keys=("scales_start", "model", "seed"),
    rows=_rows,
    part=_part,
    claims=_claims,
    figures=("search_accuracy", *FIGURES),
)
