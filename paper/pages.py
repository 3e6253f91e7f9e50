"""The pages of docs/ are both source and output: what stands between a placeholder's marks is filled from the rows.

    <!--= table("table4", model="repopt_vgg_b1") -->  ...  <!--/-->
    <!--= gap("table4", "RepOptimizer", "SGD", model="repopt_vgg_b1") -->+2.90 ± 0.62<!--/-->

A placeholder is a call of one of `FUNCTIONS` with literal arguments. `python -m paper docs` fills all pages.
"""

import ast
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path

from paper import compared, evidence, front_figures, library, mapped, measured, worth_figures
from paper.claims import Which, read_claims
from paper.conclusions import read_conclusions
from paper.jobs import Scope
from paper.panels import step_costs
from paper.scale_figures import drawings, rank_correlations_by_depth
from paper.tables import NAMES, rows_missing, table_named
from paper.view import (
    Gap,
    Record,
    View,
    Wanted,
    difference,
    groups,
    matching,
    mean,
    number,
    read_rows,
    render,
    spread,
    values,
)
from repopt.files import write_text
from repopt.report.figures import standing_alone

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "paper" / "results"
_PLACEHOLDER = re.compile(r"<!--= (.+?) -->.*?<!--/-->", re.DOTALL)
_MISSING = "(not measured yet)"


def fill(page: str, results: Path = RESULTS) -> str:
    """A page with all its placeholders filled from the CSV files of a folder."""

    def filled(found: re.Match[str]) -> str:
        value = _value(found[1], results)
        if not value.startswith("```"):
            value = escape(value, quote=False)  # Markdown is HTML, and rows hold names of folders
        return f"<!--= {found[1]} -->" + (f"\n{value}\n" if value.startswith(("|", "```")) else value) + "<!--/-->"

    return _PLACEHOLDER.sub(filled, page)


def _value(expression: str, results: Path) -> str:
    try:
        call = ast.parse(expression, mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            raise ValueError("it is no call")
        args = [ast.literal_eval(arg) for arg in call.args]
        named = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
        return FUNCTIONS[call.func.id](results, *args, **named)
    except (SyntaxError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"the placeholder {expression!r} cannot be filled: {error}") from error


def _source(name: str, results: Path) -> tuple[View, Sequence[Record]]:
    """How a table is shown, and its rows."""
    if name in library.VIEWS:
        make, view = library.VIEWS[name]
        return view, make()
    if name in _MADE:
        made, view = _MADE[name]
        return view, list(made(results))
    view = measured.VIEWS[name] if name in measured.VIEWS else table_named(name)
    return view, read_rows(results / f"{view.csv or name}.csv")


def _chosen(results: Path, name: str, which: Which, where: Mapping[str, Wanted]) -> Sequence[Record]:
    """The rows of a line by its name in the table's last key, or by what its columns hold, at their best setting."""
    view, rows = _source(name, results)
    wanted = {view.by[-1]: which} if isinstance(which, str) else which
    found = view.at_best(matching(rows, **{**where, **wanted}))
    if view.by and len(groups(found, *view.by)) > 1:
        raise ValueError(f"{which!r} names several lines of {name!r}: say which, by {', '.join(view.by)}")
    return found


def _gap(
    results: Path, name: str, first: Which, second: Which, column: str = "val_accuracy", **where: Wanted
) -> Gap | None:
    one, other = (_chosen(results, name, which, where) for which in (first, second))
    return difference(one, other, column)


def table(results: Path, name: str, **where: Wanted) -> str:
    """A whole table, or the part whose columns hold these texts."""
    view, rows = _source(name, results)
    return render(view, matching(rows, **where))


def accuracy(results: Path, name: str, which: Which, column: str = "val_accuracy", **where: Wanted) -> str:
    """Mean ± deviation over the seeds."""
    return spread(_chosen(results, name, which, where), column) or _MISSING


def gap(results: Path, name: str, first: Which, second: Which, column: str = "val_accuracy", **where: Wanted) -> str:
    """The difference of two means with its standard error."""
    return str(_gap(results, name, first, second, column, **where) or _MISSING)


def ratio(results: Path, name: str, column: str, first: Which, second: Which, **where: Wanted) -> str:
    """How many times as much the first has of a column."""
    one, other = (mean(_chosen(results, name, which, where), column) for which in (first, second))
    return f"{one / other:.2f}" if one == one and other == other else _MISSING


def value(results: Path, name: str, column: str, **where: Wanted) -> str:
    """What a column holds."""
    found = dict.fromkeys(row[column] for row in matching(_source(name, results)[1], **where) if row[column])
    return " or ".join(f"{int(each):,}" if each.isdigit() else each for each in found) or _MISSING


def help(results: Path, name: str) -> str:
    """What a command says of itself."""
    return f"```text\n{library.command_help(name)}\n```"


FUNCTIONS: Mapping[str, Callable[..., str]] = {
    function.__name__: function for function in (table, accuracy, gap, ratio, value, help)
}


def _claims(results: Path) -> Iterator[Record]:
    for claim in read_claims():
        to = [claim.to] if claim.again is None else [claim.to, claim.again]
        gaps = [_gap(results, claim.table, claim.ours, each, claim.column, **claim.where) for each in to]
        known = [each for each in gaps if each is not None]
        if len(known) == len(to):
            about = {
                "the paper says": claim.text,
                "paper": str(claim.paper[0] - claim.paper[1]),
                "our model": claim.about,
            }
            ours, again = [*map(str, known), ""][:2]
            yield {**about, "ours": ours, "with another search": again, "finding": claim.finding(known)}


def _conclusions(results: Path) -> Iterator[Record]:
    for each in read_conclusions():
        one, other = (_chosen(results, each.table, which, each.where) for which in (each.first, each.second))
        if gap := difference(one, other, each.column):
            seeds = [len(values(rows, each.column)) for rows in (one, other)]
            about = {"question": each.question, "conclusion": each.text, "difference": str(gap)}
            finding = "" if each.is_settled(gap, sum(seeds)) else "open"
            yield {**about, "seeds": " and ".join(map(str, seeds)), "finding": finding}


_SETTINGS = ("images", "test images", "pixels", "epochs", "batch", "precision", "seeds", "hardware", "torch", "date")
_COLUMNS = {"images": "train_images", "test images": "val_images", "pixels": "size", "batch": "batch_size"}


def _settings(results: Path) -> Iterator[Record]:
    """What the rows of each table were measured on."""
    for name in NAMES:
        rows = read_rows(results / f"{name}.csv")
        if rows:
            trained = [row for row in rows if row.get("val_accuracy")] or rows
            missing = rows_missing(table_named(name), Scope(), results / f"{name}.csv")
            found = {setting: _distinct(trained, _COLUMNS.get(setting, setting)) for setting in _SETTINGS}
            seeds = sorted({int(row["seed"]) for row in trained})
            found["seeds"] = f"{seeds[0]} to {seeds[-1]}" if seeds[1:] else str(seeds[0])
            yield {"table": f"`{name}`", "rows": str(len(rows)), "missing": str(len(missing) or ""), **found}


def _distinct(rows: Sequence[Record], column: str) -> str:
    texts = {row[column] for row in rows if row.get(column)}
    return ", ".join(sorted(texts, key=lambda text: (int(text) if text.isdigit() else 0, text)))


def _ranks(results: Path) -> Iterator[Record]:
    for branch, found in rank_correlations_by_depth(read_rows(results / "figureE.csv")).items():
        means, change = ("" if each is None else str(each) for each in found)
        yield {"branch": branch, "means": means, "change": change}


_CLAIMS = ("the paper says", number("paper", form="{:+.2f}"), "our model", "ours", "with another search", "finding")
_CONCLUSIONS = ("question", "conclusion", "difference", "seeds", "finding")
_RANKS = ("branch", number("means", "final means", "{:.2f}"), number("change", "change from start", "{:.2f}"))
# tables whose rows are made from those of others
_MADE: Mapping[str, tuple[Callable[[Path], Iterator[Record]], View]] = {
    "claims": (_claims, View(columns=_CLAIMS)),
    "conclusions": (_conclusions, View(columns=_CONCLUSIONS)),
    "settings": (_settings, View(columns=("table", "rows", "missing", *_SETTINGS))),
    "ranks": (_ranks, View(columns=_RANKS)),
    "one_run": (mapped.in_one_run, mapped.IN_ONE_RUN),
    "decay": (mapped.decayed, evidence.DECAY),
    "tuned": (mapped.decayed, mapped.TUNED),
    "decay_cpu": (mapped.decayed_on_a_cpu, mapped.DECAYED_ON_A_CPU),
    "best_decay": (mapped.elsewhere, mapped.ELSEWHERE),
    "compare": (compared.rows, compared.VIEW),
}


def pages() -> list[Path]:
    """The README and all pages of docs/."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def draw_figures() -> None:
    """Draws all figures of docs/figures.

    Raises:
        ImportError: matplotlib is not installed.
    """
    for name, svg in _figures(RESULTS):
        write_text(ROOT / "docs" / "figures" / f"{name}.svg", standing_alone(svg))


def _figures(results: Path) -> Iterator[tuple[str, str]]:
    """Names and figures of those whose rows are there."""
    yield "multiplier", front_figures.multiplier()
    study = compared.studies(results).get("imagenette")
    if study:
        yield "compare-imagenette", front_figures.compared(study)
    if found := read_rows(results / "figureE.csv"):
        yield from ((f"figureE-{kind}", svg) for kind, svg in drawings(found).items())
    if found := read_rows(results / "where.csv"):
        yield "worth-where", worth_figures.over_the_map(found)
        yield "worth-decay", worth_figures.over_decay(list(mapped.decayed(results)))
    if quantized := read_rows(results / "int8_mini.csv"):
        shown = matching(quantized, weight_decay="4e-05")
        yield "int8", front_figures.int8_bars(shown, table_named("int8_mini").order["way"])
        if study:
            yield "front", front_figures.front(matching(quantized, weight_decay="0.001"), study)
    if found := read_rows(results / "histograms.csv"):
        yield "kernels", front_figures.kernel_steps(found)
    if found := read_rows(results / "imagenette.csv"):
        rows = {
            name: _chosen(results, "readme", optimizer, {"model": "repopt_vgg_b1"})
            for optimizer, (name, _) in _METHODS.items()
        }
        speeds = {name: mean(matching(found, method=method), "images_per_second") for name, method in _METHODS.values()}
        yield "speed", front_figures.accuracy_against_speed({name: (speeds[name], values(rows[name])) for name in rows})
    if shown := matching(read_rows(results / "bench_step.csv"), model="repopt_vgg_b1", **_SHOWN_STEPS):
        yield "step-cost", step_costs(_step_ratios(shown))


_METHODS = {"RepOptimizer": ("RepOpt", "repopt"), "SGD, RepVGG": ("RepVGG", "repvgg"), "SGD": ("plain SGD", "sgd")}
_SHOWN_STEPS = {"hardware": "NVIDIA H200", "memory_format": "channels_last", "date": "2026-11-17"}
_STEPS = {
    "SGD, attached": ("sgd", "grad"),
    "repopt.optim.SGD": ("sgd", "closed"),
    "repopt.optim.AdamW": ("adamw", "closed"),
    "repopt.optim.Adam": ("adam", "closed"),
    "AdamW, attached": ("adamw", "branch"),
}


def _step_ratios(rows: Sequence[Record]) -> dict[str, dict[str, float]]:
    return {
        name: {
            "in a loop": mean(matching(rows, rule=rule, way=way, implementation="fused"), "queued_ratio"),
            "as a CUDA graph": mean(matching(rows, rule=rule, way=way, implementation="fused, graph"), "ratio"),
        }
        for name, (rule, way) in _STEPS.items()
    }


def write_pages() -> list[Path]:
    """Fills all pages; returns those that changed."""
    changed = []
    for path in pages():
        before = path.read_text()
        after = fill(before)
        if after != before:
            write_text(path, after)
            changed.append(path)
    return changed
