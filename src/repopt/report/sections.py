"""The sections of the report, one function each; a section with nothing to show is empty."""

from collections.abc import Sequence
from html import escape

from repopt.report import figures
from repopt.report.drawing import SERIES, legend
from repopt.report.groups import METHODS, PER_RUN, Group, differing_fields
from repopt.report.markup import cell, fields, figure, grid, section, table
from repopt.report.runs import Run
from repopt.report.searched import PAPERS_SHARE, cost_share
from repopt.report.searches import over_epochs, sampled_operator
from repopt.report.wording import (
    ABSENT,
    accuracy,
    count,
    duration,
    listed,
    mean,
    memory,
    percent_of,
    progress,
    search_cost,
)

# what run.json says of where a run was made, in this order; the rest follows under its own name
_PLACE = {"hardware": "hardware", "threads": "threads", "precision": "precision", "python": "Python"}
_PLACE |= {"torch": "PyTorch", "repopt": "repopt", "date": "date", "data_digest": "digest of the data"}
_DIGEST_LENGTH = 12


def methods_section(groups: Sequence[Group]) -> str:
    rows = [
        [
            cell(escape(group.label) + _mark(group), head=True),
            cell(_seeds(group), number=True),
            cell(accuracy(group), number=True, strong=True),
            cell(mean(group, lambda run: run.images_per_second, count), number=True),
            cell(mean(group, _peak_memory, memory), number=True),
            cell(f"{group.runs[0].parameters:,}", number=True),
            cell(mean(group, lambda run: run.seconds, duration), number=True),
        ]
        for group in groups
    ]
    names = ["method", "seeds", "val. accuracy, %", "images/s", "peak memory", "parameters in training", "time"]
    known = dict.fromkeys(group.method for group in groups if group.method in METHODS)
    meanings = "".join(f"<li><b>{METHODS[method].name}</b>: {METHODS[method].meaning}.</li>" for method in known)
    note = (
        "Means over seeds, ± the sample standard deviation. Accuracy is the one after the last epoch, not the best. "
        f"{ABSENT} stands where nothing was measured."
    )
    return section("Methods", table(names, rows, numbers_from=1) + f'<ul class="meanings">{meanings}</ul>', note=note)


def curves_section(groups: Sequence[Group]) -> str:
    drawn = [
        ("Training loss", figures.loss_curves(groups)),
        ("Validation accuracy", figures.accuracy_curves(groups)),
        ("Final validation accuracy", figures.final_accuracies(groups)),
    ]
    cards = [figure(caption, svg) for caption, svg in drawn if svg]
    if not cards:
        return ""
    several = any(len(group.runs) > 1 for group in groups)
    broken = several and not all(run.finished for run in _all(groups))
    note = "Thin lines are single seeds, the bold line is their mean." if several else ""
    note += " Dashed, runs that are not finished." if broken else ""
    keys = legend([group.label for group in groups])
    return section("Curves", keys + grid(cards), note=note)


def search_section(run: Run, several: bool) -> str:
    means = run.scales[max(run.scales)]
    if not means:
        return ""
    operator = sampled_operator(means)
    history = over_epochs(run.scales, operator)
    cards = [
        figure(
            f"Scales of {operator} over epochs", figures.scales_over_epochs(history, f"{operator} of {run.folder.name}")
        ),
        figure(f"Scales by depth after epoch {max(run.scales)}", figures.scales_by_depth(means, run.folder.name)),
    ]
    note = (
        "Means over channels, as in the paper's appendix E. The first figure follows the last operator with an "
        "identity of the longest stage, from the start (epoch 0) on. The second shows all operators; its curves "
        "break where a stage starts, as an operator that changes the shape has no identity."
    )
    which = f" ({escape(run.folder.name)})" if several else ""
    keys = legend(list(history))
    return section(f"Searched scales{which}", _cost(run) + keys + grid(cards) + f'<p class="note">{note}</p>')


def _cost(run: Run) -> str:
    share = percent_of(cost_share(run.train_images, run.epochs_done, run.image_size))
    so_far = "" if run.finished else f" so far ({progress(run)})"
    tiles = [
        (share, f"of the paper's ImageNet training is what this search cost{so_far}"),
        (percent_of(PAPERS_SHARE), "is what the paper's own search cost, 240 epochs of CIFAR-100"),
    ]
    shown = "".join(f"<div><b>{number}</b><span>{escape(text)}</span></div>" for number, text in tiles)
    return f'<div class="tiles">{shown}</div><p>{escape(search_cost(run))}</p>'


def time_section(groups: Sequence[Group]) -> str:
    splits = [(group.label, group.seconds()) for group in groups]
    parts = list(dict.fromkeys(part for _, split in splits for part in split))
    longest = max(sum(split.values()) for _, split in splits)
    if not longest:
        return ""
    rows = []
    for label, split in splits:
        bars = "".join(
            f'<i style="width:{100 * split.get(part, 0.0) / longest:.2f}%;background:{_colour(index)}"></i>'
            for index, part in enumerate(parts)
        )
        numbers = [cell(duration(split[part]) if part in split else ABSENT, number=True) for part in parts]
        total = cell(duration(sum(split.values())) if split else ABSENT, number=True, strong=True)
        bar = f'<td class="split"><div class="bar">{bars}</div></td>'
        rows.append([cell(escape(label), head=True), bar, *numbers, total])
    swatches = [
        f'<i class="swatch" style="background:{_colour(i)}"></i> {escape(part)}' for i, part in enumerate(parts)
    ]
    times = table(["method", "", *swatches, "all"], rows, numbers_from=2)
    return section("Where the time went", f'<div class="times">{times}</div>', note="Means over finished runs.")


def runs_section(groups: Sequence[Group]) -> str:
    rows = []
    for group in groups:
        for run in group.runs:
            best = run.summary and run.summary.best_val_accuracy
            best_text = ABSENT if not run.summary or best is None else f"{best:.2f} (epoch {run.summary.best_epoch})"
            state = "" if run.finished else f' <span class="unfinished">{escape(progress(run))}</span>'
            value = ABSENT if run.val_accuracy is None else f"{run.val_accuracy:.2f}"
            row = [cell(escape(group.label), head=True), cell(str(run.seed), number=True), cell(value, number=True)]
            row += [cell(best_text, number=True), cell(duration(run.seconds), number=True)]
            rows.append([*row, f"<td><code>{escape(run.folder.name)}</code>{state}</td>"])
    names = ["method", "seed", "val. accuracy, %", "best on the way", "time", "folder"]
    return section("Runs", table(names, rows, numbers_from=1, numbers_to=5))


def recipe_section(groups: Sequence[Group]) -> str:
    differing = differing_fields(groups)
    recipe = groups[0].runs[0].recipe
    shared = {field: value for field, value in recipe.items() if field not in {*differing, *PER_RUN}}
    body = fields((field, escape(_value(value))) for field, value in shared.items())
    if differing:
        rows = [
            [
                cell(escape(field), head=True),
                *(cell(escape(_value(group.runs[0].recipe.get(field)))) for group in groups),
            ]
            for field in differing
        ]
        compared = table(["field", *(escape(group.label) for group in groups)], rows)
        body = f"<h3>What differs</h3>{compared}<h3>The same in all runs</h3>{body}"
    return section("Recipe", body)


def origin_section(groups: Sequence[Group]) -> str:
    runs = _all(groups)
    keys = dict.fromkeys([*_PLACE, *(key for run in runs for key in run.environment)])
    rows = [("seeds", listed(str(seed) for seed in sorted({run.seed for run in runs})))]
    rows.append(("kernels at init", escape(listed(run.kernel for run in runs))))
    for key in keys:
        values = [run.environment[key] for run in runs if key in run.environment]
        if values:
            short = [value[:_DIGEST_LENGTH] for value in values] if key == "data_digest" else values
            rows.append((_PLACE.get(key, key), escape(listed(short))))
    return section("Made with", fields(rows, columns=1))


def _all(groups: Sequence[Group]) -> list[Run]:
    return [run for group in groups for run in group.runs]


def _peak_memory(run: Run) -> float | None:
    return run.summary.peak_memory_bytes if run.summary else None


def _seeds(group: Group) -> str:
    """How many seeds the means are over, and of how many where some are not finished."""
    counted, started = (len({run.seed for run in runs}) for runs in (group.counted, group.runs))
    return str(counted) if counted == started else f"{counted} of {started}"


def _mark(group: Group) -> str:
    """How many of a group's runs are not finished, where some are."""
    missing = [run for run in group.runs if not run.finished]
    if not missing:
        return ""
    text = progress(missing[0]) if len(group.runs) == 1 else f"{len(missing)} of {len(group.runs)} unfinished"
    return f'<br><span class="unfinished">{escape(text)}</span>'


def _value(value: object) -> str:
    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    if isinstance(value, list):
        return ", ".join(_value(part) for part in value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def _colour(index: int) -> str:
    return f"var(--series-{index % len(SERIES) + 1})"
