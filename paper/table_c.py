"""Appendix C's second table: the spread of a kernel on its way from training to deployment."""

from collections.abc import Iterator, Sequence
from typing import Any

from paper.kernels import run_kernels, spread
from paper.quantized import SIZE, trained_for_int8
from paper.scope import Scope
from paper.summaries import NAMES, dates, groups, markdown, matching, mean
from paper.tables import Record, Row, Table
from paper.workshop import Workshop, figures_of
from repopt.train.methods import Method

_METHODS: tuple[Method, ...] = ("repvgg", "repopt")
_POSITIONS = ("overall", "central", "surrounding")
_AT_INIT = tuple(f"{position}_at_init" for position in _POSITIONS)
_ENVIRONMENT = ("epochs", "kernel", "hardware", "threads", "python", "torch", "date")
_PAPER = {
    ("repvgg", "before fusing BN"): "0.0131, 0.0128, 0.0131",
    ("repvgg", "after fusing BN"): "0.0176, 0.0175, 0.0177",
    ("repvgg", "after branch addition"): "0.0236, 0.0500, 0.0177",
    ("repopt", "3x3 kernel"): "0.0066, 0.0151, 0.0045",
}
_DEPLOYED = {"repvgg": "after branch addition", "repopt": "after fusing BN"}  # the kernel that is quantized


def _rows(scope: Scope) -> Iterator[Row]:
    for seed in scope.seeds:
        for trained_by in _METHODS:
            yield _row(scope, trained_by, seed)


def _row(scope: Scope, trained_by: Method, seed: int) -> Row:
    def measure(workshop: Workshop) -> list[dict[str, Any]]:
        run = trained_for_int8(scope, workshop, trained_by, seed)
        found, about = run_kernels(run), figures_of(run)
        return [
            {
                "layer": found.layer.name,
                "stage": each.name,
                **vars(spread(each.trained)),
                **{f"{position}_at_init": value for position, value in vars(spread(each.start)).items()},
                **{column: about[column] for column in _ENVIRONMENT},
            }
            for each in found.kernels
        ]

    key = {"trained_by": trained_by, "model": scope.model(SIZE), "seed": seed}
    return Row(key=key, measure=measure, minutes=1.5)


def _part(rows: Sequence[Record]) -> list[str]:
    first = rows[0]
    lines = [
        f"Standard deviation of the 3x3 kernel of {first['layer']}, overall, at the centre and around it; means over "
        f"the seeds. The paper: the 8th layer of B1's third stage, ImageNet. Ours: {first['model']} on CIFAR-100, "
        f"{first['epochs']} epochs, {first['hardware']}, {dates(rows)}.",
        "",
    ]
    cells = [
        (
            NAMES[trained_by],
            stage,
            len(its),
            *(f"{mean(its, position):.4f}" for position in _POSITIONS),
            ", ".join(f"{mean(its, position):.4f}" for position in _AT_INIT),
            _PAPER.get((trained_by, stage)),
        )
        for (trained_by, stage), its in sorted(groups(rows, "trained_by", "stage").items(), key=_place)
    ]
    columns = {"trained by": "<", "kernel": "<", "seeds": ">", **dict.fromkeys(_POSITIONS, ">")}
    lines += markdown({**columns, "at initialization": ">", "paper": ">"}, cells)
    return [*lines, "", *_deployed(rows)]


def _deployed(rows: Sequence[Record]) -> list[str]:
    """How much wider the centre is than what surrounds it, in the kernels that are quantized."""
    ratios = []
    for trained_by, stage in _DEPLOYED.items():
        its = matching(rows, trained_by=trained_by, stage=stage)
        ratios += [f"{NAMES[trained_by]} {mean(its, 'central') / mean(its, 'surrounding'):.1f}"] if its else []
    return [
        "The paper compares RepVGG's converted kernel with RepOpt's before BN is fused. In what is deployed, the "
        f"centre to what surrounds it: {', '.join(ratios)}."
    ]


def _place(group: tuple[tuple[str, ...], list[Record]]) -> int:
    """RepVGG's kernels first, each method's in the order in which they were measured."""
    return _METHODS.index(group[0][0])


TABLE = Table(
    name="tableC",
    title="Appendix C: the spread of a kernel",
    keys=("trained_by", "model", "seed"),
    rows=_rows,
    part=_part,
    data=("cifar100",),
    figures=("layer", "stage", *_POSITIONS, *_AT_INIT, *_ENVIRONMENT),
)
