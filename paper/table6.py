"""Table 6: scales searched with other strides, the model trained unchanged."""

from collections.abc import Iterator, Sequence
from typing import Any

from paper.claims import Claim, claims_to_searches
from paper.jobs import AGAIN, has_identity, planned, search_job, training_job
from paper.scope import Scope
from paper.searches import EXPLAINED, SIZE, compared_searches, later_seeds, unsearched_row, whose
from paper.summaries import matching, setting
from paper.tables import Record, Row, Table
from paper.workshop import FIGURES, Workshop, figures_of
from repopt.plans.planning import Plan
from repopt.plans.scales import Scales

# {strides of the search: the paper's accuracy of the search, and of the target on ImageNet}
_ORIGINAL = (2, 2, 2, 2, 2)
_PAPER: dict[tuple[int, ...], tuple[float, float]] = {
    (2, 2, 2, 2, 2): (54.53, 78.47),
    (2, 2, 1, 2, 1): (70.66, 77.81),
    (2, 1, 2, 1, 1): (74.37, 77.88),
}


def fitting(scales: Scales, plan: Plan) -> tuple[Scales, int]:
    """Scales without the identities that a plan's operators lack, and how many those were.

    A layer that keeps the shape in the search, and changes it in the target, has an identity there alone.
    """
    kept = {
        operator: {
            branch: scale for branch, scale in found.items() if branch != "identity" or has_identity(plan, operator)
        }
        for operator, found in scales.items()
    }
    return Scales(kept, scales.metadata), sum(map(len, scales.values())) - sum(map(len, kept.values()))


def _text(strides: tuple[int, ...]) -> str:
    return " ".join(map(str, strides))


def _rows(scope: Scope) -> Iterator[Row]:
    for seed in scope.seeds:
        for strides in _PAPER:
            yield _row(scope, _text(strides), strides, seed)
        yield _row(scope.another_search, AGAIN, _ORIGINAL, seed)
        yield unsearched_row("strides", scope, seed)


def _row(scope: Scope, name: str, strides: tuple[int, ...], seed: int) -> Row:
    model = scope.model(SIZE)

    def measure(workshop: Workshop) -> list[dict[str, Any]]:
        # the default strides are left out, so that the search is the one that other tables ask for
        options = {} if strides == _ORIGINAL else {"strides": strides}
        search = workshop.run(search_job(scope, model, options=options))
        scales, dropped = fitting(Scales.load(search / "scales.safetensors"), planned(model))
        run = workshop.run(training_job(scope, model, "repopt", seed, scales))
        found = {"search_accuracy": figures_of(search)["val_accuracy"], "dropped_identities": dropped}
        return [{**figures_of(run), **found}]

    key = {"strides": name, "model": model, "seed": seed}
    return Row(key=key, measure=measure, minutes=0.3, searches={name: 2.0 + strides.count(1)})


def _part(rows: Sequence[Record]) -> list[str]:
    lines = [
        f"The paper: B1 on ImageNet. Ours: {rows[0]['model']}, searched on CIFAR-100 with other strides, trained on "
        f"Imagenette with all strides 2: {setting(rows)} {EXPLAINED}",
        "",
    ]
    papers = {_text(strides): paper for strides, paper in _PAPER.items()}
    lines += compared_searches(rows, "strides", "strides of the search", _text(_ORIGINAL), papers)
    dropped = [row for row in rows if row["dropped_identities"] not in ("", "0")]
    if dropped:
        lines += ["", "Identity entries that the target's layers do not have were left out."]
    return lines


def _claims(rows: Sequence[Record]) -> list[Claim]:
    rows = later_seeds(rows)
    searches = [matching(rows, strides=strides) for strides in (_text(_ORIGINAL), AGAIN)]
    return [
        claim
        for strides, (_, paper) in _PAPER.items()
        if strides != _ORIGINAL
        for claim in claims_to_searches(
            f"Table 6: scales searched with strides {_text(strides)} are worse",
            whose(rows),
            paper - _PAPER[_ORIGINAL][1],
            matching(rows, strides=_text(strides)),
            *searches,
        )
    ]


TABLE = Table(
    name="table6",
    title="Table 6: scales from other strides",
    keys=("strides", "model", "seed"),
    rows=_rows,
    part=_part,
    claims=_claims,
    figures=("search_accuracy", "dropped_identities", *FIGURES),
)
