"""Appendix D's table: GhostNet with real fusion layers, and with imagined ones."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import get_args

from paper.claims import Claim
from paper.jobs import Source, scales_from, search_left, training_job
from paper.scope import Scope
from paper.summaries import INITS, best, difference, groups, markdown, matching, setting, spread
from paper.tables import Record, Row, Table, training_row
from paper.workshop import Workshop
from repopt.algebra.csla import Convention
from repopt.train.methods import Method
from repopt.train.recipe import ghost
from repopt.train.training import Job

_MODEL = "repopt_ghostnet_050"
_METHODS: tuple[Method, ...] = ("repvgg", "repopt", "sgd")
_INITS: tuple[Convention, ...] = get_args(Convention)  # torch's, which the branches have, and He's
_SCALES: tuple[Source, ...] = ("searched", "authors")  # where the constants of RepOpt come from
# {method: what is trained how, and the paper's accuracy}
_NAMES = {
    "repvgg": ("RepGhostNet, SGD", "66.49"),
    "repopt": ("RepOpt-GhostNet, RepOptimizer", "66.51"),
    "sgd": ("RepOpt-GhostNet, SGD", ""),
}


def _rows(scope: Scope) -> Iterator[Row]:
    for seed in scope.seeds:
        for method in _METHODS:
            for init in _INITS if method == "sgd" else _INITS[:1]:
                for source in _SCALES if method == "repopt" else (None,):
                    if source != "authors" or not scope.quick:
                        yield _row(scope, method, source, init, seed)


def _row(scope: Scope, method: Method, source: Source | None, init: Convention, seed: int) -> Row:
    def job(workshop: Workshop) -> Job:
        # a third of the epochs, as the VGGs have here, at Imagenette's size and a batch that its images fill 36 times
        recipe = dataclasses.replace(ghost(), epochs=100, size=96, resized_crop=(0.25, 1.0), batch_size=256)
        recipe = dataclasses.replace(recipe, kernel=init, eval_every=100)
        scales = scales_from(source, scope, workshop, _MODEL) if source else None
        made = training_job(scope, _MODEL, method, seed, scales)
        return dataclasses.replace(made, recipe=scope.adapt(recipe, seed))

    searches = search_left(_MODEL, 5.0) if source == "searched" else {}
    key = {"method": method, "scales": source, "model": _MODEL, "init": init, "seed": seed}
    return training_row(key, job, minutes=0.6, searches=searches, authors=source == "authors")


def _part(rows: Sequence[Record]) -> list[str]:
    recipe = ghost()
    lines = [
        f"0.5x. The paper: ImageNet. Ours: Imagenette, {setting(rows)} The recipe is the authors' for GhostNet: lr "
        f"{recipe.lr:g} for {recipe.lr_batch} images, weight decay {recipe.weight_decay:g}, dropout "
        f"{recipe.dropout:g}, colour jitter, erasing. Plain SGD has its better init.",
        "",
    ]
    real = matching(rows, method="repvgg")
    cells = [
        (
            _NAMES[method][0],
            source,
            INITS[its[0]["init"]],
            len(its),
            spread(its),
            "" if its == real else difference(its, real),
            _NAMES[method][1] if source in ("", "authors") else "",
        )
        for method in _METHODS
        for source in (_SCALES if method == "repopt" else ("",))
        if (its := best(groups(matching(rows, method=method, scales=source), "init").values()))
    ]
    columns = {"model, optimizer": "<", "scales": "<", "init": "<", "seeds": ">", "accuracy": ">"}
    lines += markdown({**columns, "to RepGhostNet": ">", "paper": ">"}, cells)
    ours, theirs = (matching(rows, method="repopt", scales=source) for source in _SCALES)
    gap = difference(ours, theirs)
    told = [f"With our scales, to the authors': {gap} points."] if gap else []
    plain = best(groups(matching(rows, method="sgd"), "init").values())
    leads = {source: difference(matching(rows, method="repopt", scales=source), plain) for source in _SCALES}
    to_plain = [f"{source} {lead}" for source, lead in leads.items() if lead]
    told += [f"RepOptimizer to plain SGD: {', '.join(to_plain)}."] if to_plain else []
    return [*lines, "", " ".join(told)] if told else lines


def _claims(rows: Sequence[Record]) -> list[Claim]:
    gap = difference(matching(rows, method="repopt", scales="searched"), matching(rows, method="repvgg"))
    text = "Appendix D: RepOpt-GhostNet reaches RepGhostNet's accuracy"
    papers = float(_NAMES["repopt"][1]) - float(_NAMES["repvgg"][1])
    return [Claim(text=text, model=_MODEL, paper=papers, ours=gap, alike=True)] if gap else []


TABLE = Table(
    name="tableD",
    title="Appendix D: GhostNet",
    keys=("method", "scales", "model", "init", "seed"),
    rows=_rows,
    part=_part,
    claims=_claims,
)
