"""Numbers and sentences of the report, in plain words; what they say comes from the runs' files only."""

from collections.abc import Callable, Iterable, Sequence

from repopt.report.groups import Group, mean_and_deviation, method_name
from repopt.report.runs import Run
from repopt.report.searched import IMAGENET_EPOCHS, IMAGENET_IMAGES, IMAGENET_SIZE

ABSENT = "–"


def percent_of(fraction: float) -> str:
    """A small share with two digits that count: 0.16%, 0.00029%."""
    if fraction <= 0:
        return "0%"
    digits = 1
    while round(100 * fraction, digits) < 10 ** (1 - digits) and digits < 12:
        digits += 1
    return f"{100 * fraction:.{digits}f}%"


def duration(seconds: float) -> str:
    """9.4 s, 3 min 5 s, 2 h 7 min."""
    if seconds < 59.5:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes_left = divmod(minutes, 60)
    return f"{hours} h {minutes_left} min" if hours else f"{minutes} min {rest} s"


def memory(size: float) -> str:
    """512 MiB, 3.4 GiB."""
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"


def count(number: float) -> str:
    """Thousands apart: 1,437; below ten with a decimal."""
    return f"{number:,.0f}" if number >= 10 else f"{number:.1f}"


def accuracy(group: Group) -> str:
    """Mean and deviation over the runs, or the value of a single one."""
    values = group.values(lambda run: run.val_accuracy)
    if not values:
        return ABSENT
    mean, deviation = mean_and_deviation(values)
    return f"{mean:.2f}" if deviation is None else f"{mean:.2f} ± {deviation:.2f}"


def mean(group: Group, of: Callable[[Run], float | None], form: Callable[[float], str]) -> str:
    """The mean over a group's runs in a form; a dash where nothing was measured."""
    values = group.values(of)
    return form(mean_and_deviation(values)[0]) if values else ABSENT


def progress(run: Run) -> str:
    """Finished, or how far the run came."""
    if run.finished:
        return "finished"
    planned = run.recipe.get("epochs")
    of = f" of {planned}" if isinstance(planned, int | float) else ""
    return f"unfinished, {run.epochs_done}{of} epochs"


def listed(words: Iterable[str]) -> str:
    """a, b and c; each once."""
    unique = list(dict.fromkeys(words))
    return " and ".join([", ".join(unique[:-1]), unique[-1]] if len(unique) > 1 else unique)


def headline(groups: Sequence[Group]) -> str:
    """What was run on what."""
    runs = [group.runs[0] for group in groups]
    methods = listed(method_name(run.method) for run in runs)
    return f"{methods}: {listed(run.model for run in runs)} on {listed(run.data for run in runs)}"


def summary(groups: Sequence[Group]) -> str:
    """The page in one paragraph."""
    runs = [run for group in groups for run in group.runs]
    data = listed(
        f"{run.data} ({run.train_images:,} training and {run.val_images:,} validation images at {run.image_size} px)"
        for run in runs
    )
    sentences = [f"{_plural(len(runs), 'run')} of {listed(run.model for run in runs)} on {data}{_epochs(runs)}."]
    sentences += _result(groups)
    unfinished = sum(not run.finished for run in runs)
    if unfinished:
        verb = "is" if unfinished == 1 else "are"
        sentences.append(
            f"{_plural(unfinished, 'run')} {verb} not finished and marked so; means are taken over the finished ones "
            "where there are any."
        )
    return " ".join(sentences)


def search_cost(run: Run) -> str:
    """How the search's share of the cost of the paper's ImageNet training is counted."""
    formula = (
        f"{run.train_images:,} / {IMAGENET_IMAGES:,} images × {run.epochs_done} / {IMAGENET_EPOCHS} epochs × "
        f"({run.image_size} / {IMAGENET_SIZE} px)²"
    ).replace(" / ", "\N{NO-BREAK SPACE}/\N{NO-BREAK SPACE}")
    return (
        "The share counts images times epochs times pixels, against the paper's training of the same model: "
        f"{formula}. The paper's figure holds another 10/9, as its search convolves with 3x3 and 1x1 "
        "kernels apart; here the kernels are added first and convolve once."
    )


def _epochs(runs: Sequence[Run]) -> str:
    planned = sorted({run.recipe["epochs"] for run in runs if isinstance(run.recipe.get("epochs"), int)})
    each = " each" if len(runs) > 1 else ""
    return f", {' or '.join(map(str, planned))} epochs{each}" if planned else ""


def _result(groups: Sequence[Group]) -> list[str]:
    """Who came out highest; searches aside, which are not there for their accuracy."""
    scored = [group for group in groups if group.values(lambda run: run.val_accuracy)]
    scored = [group for group in scored if group.method != "search"] or scored
    if not scored:
        return ["Nothing was evaluated yet."]
    if len({(group.runs[0].data, group.runs[0].image_size) for group in scored}) > 1:
        return []  # accuracies on different data do not compare
    if len(scored) == 1:
        return [f"Validation accuracy: {_scored(scored[0])}."]
    ranked = sorted(scored, key=lambda group: -mean_and_deviation(group.values(lambda run: run.val_accuracy))[0])
    return [
        f"Validation accuracy is highest with {ranked[0].label}, {_scored(ranked[0])}; then "
        f"{listed(f'{group.label} ({accuracy(group)}%)' for group in ranked[1:])}."
    ]


def _scored(group: Group) -> str:
    seeds = len(group.values(lambda run: run.val_accuracy))
    over = f" over {seeds} seeds" if seeds > 1 else ""
    return f"{accuracy(group)}%{over}" + ("" if group.finished else ", unfinished")


def _plural(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
