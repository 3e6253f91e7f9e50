"""Runs that differ in nothing but the seed stand together, as one row of the table and one colour of the figures."""

import json
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from repopt.report.runs import Epoch, Run


@dataclass(frozen=True, kw_only=True)
class Method:
    """A way to train: its name for a reader, and what it does in plain words."""

    name: str
    meaning: str


# in the order of the table
METHODS: Mapping[str, Method] = {
    "search": Method(
        name="Hyper-Search",
        meaning="a short training in which every branch has a trainable scale; only the scales are kept, as constants "
        "for RepOpt",
    ),
    "sgd": Method(name="SGD", meaning="the plain model with an ordinary optimizer, the baseline"),
    "repvgg": Method(
        name="RepVGG",
        meaning="the model with real 3x3, 1x1 and identity branches, each with a batch norm, merged after training",
    ),
    "qarepvgg": Method(name="QARepVGG", meaning="RepVGG with the batch norms moved so that INT8 keeps its accuracy"),
    "csla": Method(
        name="CSLA", meaning="the same model with real branches and constant scales, which RepOpt only imagines"
    ),
    "repopt": Method(
        name="RepOpt", meaning="the plain model; the optimizer changes the gradients as if it had the branches"
    ),
}

# fields of a recipe that may differ between runs of one group
PER_RUN = frozenset({"seed", "out", "resume"})

_SUBJECTS: tuple[Callable[[Run], str], ...] = (lambda run: run.model, lambda run: run.data)
_MANNERS: tuple[Callable[[Run], str], ...] = (
    lambda run: f"{run.kernel} init",
    lambda run: f"{run.image_size} px",
    lambda run: run.environment.get("precision", ""),
)


@dataclass(frozen=True, kw_only=True)
class Group:
    """The runs of one method with one setting, over seeds.

    Attributes:
        label: the method, and what else tells this group from the others of the page.
    """

    label: str
    runs: tuple[Run, ...]

    @property
    def method(self) -> str:
        return self.runs[0].method

    @property
    def counted(self) -> tuple[Run, ...]:
        """The runs that means are taken over: the finished ones, or all where none is finished yet."""
        return tuple(run for run in self.runs if run.finished) or self.runs

    @property
    def finished(self) -> bool:
        """Whether the means are those of finished runs."""
        return self.counted[0].finished

    def values(self, of: Callable[[Run], float | None]) -> list[float]:
        """What the counted runs that have it say."""
        return [value for run in self.counted if (value := of(run)) is not None]

    def seconds(self) -> dict[str, float]:
        """The time split, as means over the finished runs."""
        splits = [run.summary.seconds for run in self.runs if run.summary]
        parts = dict.fromkeys(part for split in splits for part in split)
        return {part: statistics.fmean(split.get(part, 0.0) for split in splits) for part in parts}


def group_runs(runs: Iterable[Run]) -> tuple[Group, ...]:
    """Puts the runs together that differ in nothing but the seed, in the order of `METHODS`."""
    found: dict[str, list[Run]] = {}
    for run in sorted(runs, key=_order):
        found.setdefault(_setting(run), []).append(run)
    return tuple(
        Group(label=label, runs=tuple(members))
        for label, members in zip(_labels(list(found.values())), found.values(), strict=True)
    )


def method_name(method: str) -> str:
    return METHODS[method].name if method in METHODS else method


def mean_and_deviation(values: Sequence[float]) -> tuple[float, float | None]:
    """The mean and the sample standard deviation; one value has none."""
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None


def curve(run: Run, of: Callable[[Epoch], float | None]) -> dict[int, float]:
    """{epoch: value} where it was measured."""
    return {epoch.epoch: value for epoch in run.epochs if (value := of(epoch)) is not None}


def mean_curve(curves: Sequence[Mapping[int, float]]) -> dict[int, float]:
    """The mean at the epochs that all the curves have."""
    shared = set(curves[0]).intersection(*curves[1:]) if curves else set()
    return {epoch: statistics.fmean(curve[epoch] for curve in curves) for epoch in sorted(shared)}


def differing_fields(groups: Sequence[Group]) -> list[str]:
    """The recipe's fields that are not the same in all groups."""
    recipes = [group.runs[0].recipe for group in groups]
    fields = dict.fromkeys(field for recipe in recipes for field in recipe if field not in PER_RUN)
    return [field for field in fields if len({_text(recipe.get(field)) for recipe in recipes}) > 1]


def _order(run: Run) -> tuple[str, str, int, str, int]:
    known = list(METHODS)
    return run.data, run.model, known.index(run.method) if run.method in known else len(known), run.kernel, run.seed


def _setting(run: Run) -> str:
    recipe = {field: value for field, value in run.recipe.items() if field not in PER_RUN}
    data = (run.data, run.environment.get("data_digest"), run.train_images, run.val_images)
    return _text([run.method, data, [describe(run) for describe in (*_SUBJECTS, *_MANNERS)], run.parameters, recipe])


def _labels(groups: Sequence[Sequence[Run]]) -> list[str]:
    """The method, and of the rest what a reader must know to tell it from the others."""
    runs = [group[0] for group in groups]
    subjects = [describe for describe in _SUBJECTS if len({describe(run) for run in runs}) > 1]
    labels = [
        ", ".join(
            [
                method_name(run.method),
                *(describe(run) for describe in subjects),
                *(describe(run) for describe in _MANNERS if _is_telling(describe, run, runs)),
            ]
        )
        for run in runs
    ]
    twins = {label: [run for run, other in zip(runs, labels, strict=True) if other == label] for label in labels}
    return [f"{label}{_apart(run, twins[label])}" for run, label in zip(runs, labels, strict=True)]


def _is_telling(describe: Callable[[Run], str], run: Run, runs: Sequence[Run]) -> bool:
    """Whether a run is unlike most others, or unlike another of its own method."""
    alike = sum(describe(other) == describe(run) for other in runs)
    twins = {describe(other) for other in runs if other.method == run.method}
    return 2 * alike <= len(runs) or len(twins) > 1


def _apart(run: Run, twins: Sequence[Run]) -> str:
    """What tells a run from others of the same label: fields of the recipe, or else its folder."""
    if len(twins) == 1:
        return ""
    fields = [field for field in run.recipe if len({_text(twin.recipe.get(field)) for twin in twins}) > 1]
    telling = [f"{field} {run.recipe[field]}" for field in fields if field not in PER_RUN]
    return f" ({', '.join(telling[:2]) or run.folder.name})"


def _text(value: object) -> str:
    return json.dumps(value, sort_keys=True, default=str)
