"""What searched scales look like: over epochs and by depth, as in appendix E, and as multipliers of gradients."""

from collections.abc import Mapping, Sequence
from functools import partial
from operator import itemgetter

import torch
from torch import Tensor

from paper.jobs import Lines, Scope, Source, Training, hyper_search, planned, scales_from
from paper.panels import scales_by_depth, scales_over_epochs
from paper.ranks import spearman
from paper.searches import Search, points, read_search
from paper.studies import AUTHORS_VGGS, VGGS
from paper.tables import Table
from paper.view import Record, groups, matching, number, over_rows, text, values
from paper.workshop import ENVIRONMENT, Workshop, figures_of
from repopt.device import environment
from repopt.plans.scales import Scales
from repopt.report.searched_scales import sampled_operator

_SOURCES = ("cifar100", "imagenette")


def _points(training: Training, scope: Scope, seed: int, workshop: Workshop) -> Lines:
    run = training.run(scope, seed, workshop)
    search, about = read_search(run, run.name), figures_of(run)
    return [{**about, **point} for point in points(search, sampled_operator(search.means))]


def _at(rows: Sequence[Record], share: float) -> str:
    by_epoch = {int(row["epoch"]): float(row["mean"]) for row in rows}
    return f"{by_epoch[round(share * max(by_epoch))]:.3f}"


FIGURE_E = Table(
    title="Appendix E: scales over epochs and by depth",
    keys=("source", "model", "seed"),
    trainings=[hyper_search(model="b0", key={"source": data}, data=data, measure=_points) for data in _SOURCES],
    figures=("curve", "operator", "epoch", "branch", "mean", "commit", *ENVIRONMENT),
    by=("source", "branch"),
    where={"curve": "over epochs"},
    columns=[
        *(text("source", "searched on"), "branch"),
        *(over_rows(f"{share:.0%}", partial(_at, share=share)) for share in (0, 0.1, 0.25, 0.5, 0.75, 1)),  # of epochs
    ],
)


def rank_correlations_by_depth(rows: Sequence[Record]) -> dict[str, tuple[float | None, float | None]]:
    """{branch: how alike two searches rank the operators' final means, and their change from the shared start}."""
    found = {}
    for (branch, model), deep in groups(matching(rows, curve="by depth"), "branch", "model").items():
        start, by_name = Scales.depth_init(planned(model)), itemgetter("operator")
        one, other = (sorted(matching(deep, source=data), key=by_name) for data in _SOURCES)
        begun = torch.tensor([start[row["operator"]].get(branch, torch.ones(1)).mean() for row in one])
        pair = torch.tensor([values(one, "mean"), values(other, "mean")])
        found[branch] = (spearman(*pair), spearman(*(pair / begun)))
    return found


def drawings(rows: Sequence[Record]) -> dict[str, str]:
    """Both figures, one panel for each search."""
    searches = [read_back(source, found) for (source,), found in groups(rows, "source").items()]
    over = scales_over_epochs(searches, matching(rows, curve="over epochs")[0]["operator"])
    return {"epochs": over, "depth": scales_by_depth(searches)}


def read_back(source: str, rows: Sequence[Record]) -> Search:
    """A search as far as its points go: all means after the last epoch, one operator's before."""
    history: dict[int, dict[str, dict[str, float]]] = {}
    for row in sorted(rows, key=lambda row: (int(row["epoch"]), row["curve"])):  # by depth first: as the operators are
        history.setdefault(int(row["epoch"]), {}).setdefault(row["operator"], {})[row["branch"]] = float(row["mean"])
    seed, model = int(rows[0]["seed"]), rows[0]["model"]
    return Search(name=model, model=model, data=source, seed=seed, history=history, scales=Scales({}))


_FROZEN = 1e-3  # a tap whose gradient is multiplied by less hardly moves in training
_WHOSE: dict[Source, tuple[str, Sequence[str]]] = {"searched": ("ours", VGGS), "authors": ("authors", AUTHORS_VGGS)}
_FIGURES = ("around", "centre", "diagonal", "variation", "frozen", "negative")


def _multipliers(training: Training, scope: Scope, _: int, workshop: Workshop) -> Lines:
    model, stages = scope.model(training.model), dict[str, list[dict[str, Tensor]]]()
    scales = scales_from(training.scales or "searched", scope, workshop, model)
    plan = planned(model).with_scales(scales)
    for operator, block in plan.blocks.items():
        multiplier, identity = plan.multiplier(operator).dense(), "identity" in block.branches
        found = operator_figures(multiplier, scales[operator]["conv3x3"], identity=identity)
        stages.setdefault(operator.partition(".")[0], []).append(found)
    found_in = {stage: {"operators": len(found), **mean_figures(found)} for stage, found in stages.items()}
    return [{"stage": stage, **figures, **environment("cpu")} for stage, figures in found_in.items()]


def operator_figures(multiplier: Tensor, scale: Tensor, *, identity: bool) -> dict[str, Tensor]:
    """Multipliers by position, how much the scales of the 3x3 branch vary, and which taps are frozen or negative."""
    around, centre = multiplier[:, 0, 0, 0], multiplier[:, :, 1, 1]
    return {
        "around": around,
        "centre": torch.cat([centre[:1, -1], centre[1:, 0]]),  # off the diagonal: a channel has the same for all inputs
        **({"diagonal": centre.diagonal()} if identity else {}),
        "variation": scale.std() / scale.abs().mean(),
        "frozen": around.lt(_FROZEN).double(),
        "negative": scale.lt(0).double(),
    }


def mean_figures(operators: Sequence[Mapping[str, Tensor]]) -> dict[str, float | None]:
    """Means over the operators of a stage, which all have its width."""
    found = {name: [each[name].mean() for each in operators if name in each] for name in _FIGURES}
    return {name: torch.stack(means).mean().item() if means else None for name, means in found.items()}


MULTIPLIERS = Table(
    title="What the scales multiply gradients by",
    keys=("model", "scales", "seed"),
    trainings=[
        Training(model=size, key={"scales": whose}, scales=source, data="", measure=_multipliers)
        for source, (whose, sizes) in _WHOSE.items()
        for size in sizes
    ],
    figures=("stage", "operators", *_FIGURES, *ENVIRONMENT),
    columns=[
        *("model", "scales", "stage", number("operators")),
        *(number(position, form="{:.3f}") for position in ("around", "centre", "diagonal")),
        number("variation", form="{:.2f}"),
        *(number(share, form="{:.1%}") for share in ("frozen", "negative")),
    ],
)
