"""Runs side by side: those that differ in nothing but the seed are one group, a row of the page and a colour."""

import json
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from repopt.files import seal_of
from repopt.train.records import RunRecord

# names for a reader, in the order of the page
METHODS: Mapping[str, str] = {
    "search": "Hyper-Search",
    "sgd": "SGD",
    "dirac": "SGD with Dirac init",
    "repvgg": "RepVGG",
    "qarepvgg": "QARepVGG",
    "branches": "branches",
    "csla": "CSLA",
    "repopt": "RepOpt",
}

_PER_RUN = "seed"  # a field of a recipe that may differ within a group

Trait = Callable[[RunRecord], str]
_SUBJECTS: tuple[Trait, ...] = (lambda run: run.info.model, lambda run: run.info.data)
_SETTINGS: tuple[Trait, ...] = (
    lambda run: f"{run.info.kernel} init",
    lambda run: f"{run.info.image_size} px",
    lambda run: run.info.precision or "",
)


@dataclass(frozen=True, kw_only=True)
class Group:
    """The runs of one method with one setting, over seeds.

    Attributes:
        label: the method, and what distinguishes this group from the others on the page.
        runs: by seed.
    """

    label: str
    runs: tuple[RunRecord, ...]

    @property
    def method(self) -> str:
        return self.runs[0].info.method

    @property
    def counted(self) -> tuple[RunRecord, ...]:
        """The runs that means are taken over: the finished ones, or all if none is finished yet."""
        return tuple(run for run in self.runs if run.finished) or self.runs

    @property
    def unfinished(self) -> tuple[RunRecord, ...]:
        return tuple(run for run in self.runs if not run.finished)

    @property
    def seeds(self) -> tuple[int, int]:
        """How many seeds the means are over, and how many were started."""
        return len({run.info.seed for run in self.counted}), len({run.info.seed for run in self.runs})

    @property
    def accuracies(self) -> list[float]:
        return self._values(lambda run: run.val_accuracy)

    @property
    def images_per_second(self) -> float | None:
        return _mean(self._values(lambda run: run.images_per_second))

    @property
    def peak_memory(self) -> float | None:
        return _mean(self._values(lambda run: run.summary.peak_memory_bytes if run.summary else None))

    @property
    def seconds(self) -> float | None:
        return _mean(self._values(lambda run: run.seconds))

    @property
    def split(self) -> dict[str, float]:
        """Seconds by what they were spent on, as means over the finished runs."""
        splits = [run.summary.seconds for run in self.runs if run.summary]
        parts = dict.fromkeys(part for split in splits for part in split)
        return {part: statistics.fmean(split.get(part, 0.0) for split in splits) for part in parts}

    def _values(self, of: Callable[[RunRecord], float | None]) -> list[float]:
        return [value for run in self.counted if (value := of(run)) is not None]


def group_runs(runs: Iterable[RunRecord]) -> tuple[Group, ...]:
    """Groups the runs that differ in nothing but the seed, in the order of `METHODS`."""
    settings = [(run, _setting(run)) for run in sorted(runs, key=_order)]
    starts: dict[tuple[str, int], set[str | None]] = {}
    for run, setting in settings:
        starts.setdefault((setting, run.info.seed), set()).add(run.info.weights)
    # weights to start from may differ with the seed, but not for one seed
    compared = {setting for (setting, _), weights in starts.items() if len(weights) > 1}
    found: dict[tuple[str, str | None], list[RunRecord]] = {}
    for run, setting in settings:
        found.setdefault((setting, run.info.weights if setting in compared else None), []).append(run)
    labels = _labels([members[0] for members in found.values()])
    return tuple(Group(label=label, runs=tuple(members)) for label, members in zip(labels, found.values(), strict=True))


def mean_and_deviation(values: Sequence[float]) -> tuple[float, float | None]:
    """The mean and the sample standard deviation; a single value has none."""
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None


def differing_fields(groups: Sequence[Group]) -> dict[str, list[object]]:
    """{field of the recipe: its value in each group}, for the fields that are not the same in all."""
    recipes = [group.runs[0].recipe for group in groups]
    fields = dict.fromkeys(field for recipe in recipes for field in recipe if field != _PER_RUN)
    values = {field: [recipe.get(field) for recipe in recipes] for field in fields}
    return {field: found for field, found in values.items() if len(set(map(_text, found))) > 1}


def shared_fields(groups: Sequence[Group]) -> dict[str, object]:
    """{field of the recipe: value}, for the fields that are the same in all groups."""
    differing = differing_fields(groups)
    recipe = groups[0].runs[0].recipe
    return {field: value for field, value in recipe.items() if field not in differing and field != _PER_RUN}


def limits(groups: Sequence[Group]) -> list[str]:
    """What a comparison of these runs cannot say, a sentence each; searches are no part of it."""
    compared = [group for group in groups if group.method != "search"]
    epochs = sorted({run.epochs_done for group in compared for run in group.counted})
    single = [group.label for group in compared if group.seeds[0] == 1]
    said = []
    if len(epochs) > 1:
        said.append(
            f"The runs were trained for unequal numbers of epochs ({', '.join(map(str, epochs))}): a difference may "
            "come from that alone."
        )
    if len(compared) > 1 and single:
        of = "each method" if len(single) == len(compared) else ", ".join(single)
        said.append(
            f"There is one seed of {of}: how far seeds differ is not known, so a small difference may be chance."
        )
    return said


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None


def _order(run: RunRecord) -> tuple[str, str, int, str, int]:
    known, info = list(METHODS), run.info
    place = known.index(info.method) if info.method in known else len(known)
    return info.data, info.model, place, info.kernel, info.seed


def _setting(run: RunRecord) -> str:
    info = run.info
    recipe = {field: value for field, value in run.recipe.items() if field != _PER_RUN}
    traits = [trait(run) for trait in (*_SUBJECTS, *_SETTINGS)]
    given = [info.method, info.options, info.branches, info.parameters, info.weights is None, _given_scales(run)]
    return _text([*given, info.data_digest, info.train_images, info.val_images, traits, recipe])


def _given_scales(run: RunRecord) -> str | None:
    """A digest of the scales that a run was given; None where it found its own, or has none."""
    file = run.folder / "scales.safetensors"
    found_its_own = run.info.method == "search" or run.recipe.get("freeze_at") is not None
    return None if found_its_own or not file.exists() else seal_of(file)


def _labels(runs: Sequence[RunRecord]) -> list[str]:
    """The method of each run, and as much more as distinguishes it from the others."""
    subjects = [trait for trait in _SUBJECTS if len({trait(run) for run in runs}) > 1]
    labels = []
    for run in runs:
        traits = [*subjects, *(trait for trait in _SETTINGS if _is_unusual(trait, run, runs))]
        labels.append(", ".join([METHODS.get(run.info.method, run.info.method), *(trait(run) for trait in traits)]))
    twins = {label: [run for run, other in zip(runs, labels, strict=True) if other == label] for label in labels}
    return [f"{label}{_difference(run, twins[label])}" for run, label in zip(runs, labels, strict=True)]


def _is_unusual(trait: Trait, run: RunRecord, runs: Sequence[RunRecord]) -> bool:
    """Whether a run is unlike most others, or unlike another run of its own method."""
    alike = sum(trait(other) == trait(run) for other in runs)
    within = {trait(other) for other in runs if other.info.method == run.info.method}
    return 2 * alike <= len(runs) or len(within) > 1


def _difference(run: RunRecord, twins: Sequence[RunRecord]) -> str:
    """What distinguishes a run from others with the same label: its scales or recipe, and its folder if need be."""
    if len(twins) == 1:
        return ""
    named = _named_fields(run, twins)
    is_enough = named and [_named_fields(twin, twins) for twin in twins].count(named) == 1
    return f" ({', '.join(named if is_enough else [*named, name_among(run, twins)])})"


def name_among(run: RunRecord, runs: Sequence[RunRecord]) -> str:
    """A run's folder, without those around it where that is enough."""
    return run.folder.name if [each.folder.name for each in runs].count(run.folder.name) == 1 else str(run.folder)


def _named_fields(run: RunRecord, twins: Sequence[RunRecord]) -> list[str]:
    """Up to two fields in which a run differs from its twins; one without a value only where none has any."""
    own, *others = (
        {"scales": each.info.scales, **each.recipe, "weights": _short(each.info.weights)} for each in (run, *twins)
    )
    fields = [field for field in own if any(_text(other.get(field)) != _text(own[field]) for other in others)]
    named = {field: f"{field} {own[field]}" for field in fields if field != _PER_RUN}
    return [text for field, text in named.items() if own[field] is not None][:2] or list(named.values())[:2]


def _short(path: str | None) -> str | None:
    """A file and its folder."""
    return None if path is None else "/".join(Path(path).parts[-2:])


def _text(value: object) -> str:
    return json.dumps(value, sort_keys=True, default=str)
