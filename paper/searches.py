"""What tables share that train one model with what searches of several kinds have found."""

from collections.abc import Iterable, Mapping, Sequence

from paper.jobs import AGAIN, scales_from, training_job
from paper.scope import Scope
from paper.summaries import Difference, difference, markdown, matching, mean_cell, spread
from paper.tables import Record, Row, training_row
from paper.workshop import Workshop
from repopt.train.training import Job

SIZE = "a0"  # of Table 5, Table 6 and Appendix B; the paper has B1
_CHOSEN_BY = (0, 1, 2)  # seeds with which A0's accuracy told constants apart, and B1's did not: see `constants`
NOT_SEARCHED = "not searched"
EXPLAINED = (
    f"{AGAIN}: by a second search on CIFAR-100, like the first but for its seed. {NOT_SEARCHED}: the constants that a "
    "search starts from."
)
GAP_COLUMNS = {f"to {AGAIN}": ">", f"to {NOT_SEARCHED}": ">"}


def unsearched_row(column: str, scope: Scope, seed: int) -> Row:
    """A training on Imagenette with the constants that a search starts from; a column says so."""
    model = scope.model(SIZE)

    def job(workshop: Workshop) -> Job:
        return training_job(scope, model, "repopt", seed, scales_from("depth", scope, workshop, model))

    return training_row({column: NOT_SEARCHED, "model": model, "seed": seed}, job, minutes=0.3)


def gaps_to(its: Sequence[Record], *others: Sequence[Record]) -> list[Difference | None]:
    """Cells: how far rows are from others; None where they are the same, or one has no figure."""
    return [None if its == other else difference(its, other) for other in others]


def compared_searches(
    rows: Sequence[Record], column: str, heading: str, usual: str, papers: Mapping[str, tuple[float, float]]
) -> list[str]:
    """Kinds of search as lines of Markdown: accuracy of the search, and of what was trained with its scales.

    Args:
        rows: of all kinds.
        column: that tells them apart.
        heading: of that column.
        usual: the kind that others are compared with.
        papers: the paper's two accuracies of each.
    """
    others = [matching(rows, **{column: name}) for name in (usual, AGAIN, NOT_SEARCHED)]
    there = {name: tuple(map("{:.2f}".format, paper)) for name, paper in papers.items()}
    cells = [
        (name, mean_cell(its, "search_accuracy"), len(its), spread(its), *gaps_to(its, *others), *paper)
        for name, paper in {**there, **dict.fromkeys((AGAIN, NOT_SEARCHED), ("", ""))}.items()
        if (its := matching(rows, **{column: name}))
    ]
    columns = {heading: "<", "search accuracy": ">", "seeds": ">", "accuracy": ">", f"to {usual}": ">"}
    return markdown({**columns, **GAP_COLUMNS, "paper, search": ">", "paper, ImageNet": ">"}, cells)


def later_seeds(rows: Iterable[Record]) -> list[Record]:
    """Rows of one model that did not choose it: of A0, those of later seeds where there are some."""
    rows = list(rows)
    later = [row for row in rows if row["model"].endswith(SIZE) and int(row["seed"]) not in _CHOSEN_BY]
    return later or rows


def whose(rows: Sequence[Record]) -> str:
    """The model of the rows, with the seeds where they are the later ones alone."""
    seeds = sorted({int(row["seed"]) for row in rows})
    model = rows[0]["model"]
    return model if set(seeds) & set(_CHOSEN_BY) else f"{model}, seeds {', '.join(map(str, seeds))}"
