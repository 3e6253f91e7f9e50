"""What Table 5, Table 6 and Appendix B share: one model, trained with what searches of several kinds have found."""

from collections.abc import Sequence

from repopt.reproduce.jobs import AGAIN, scales_from, training_job
from repopt.reproduce.scope import Scope
from repopt.reproduce.summaries import Difference, difference
from repopt.reproduce.tables import Record, Row, training_row
from repopt.reproduce.workshop import Workshop
from repopt.train.launch import Job

SIZE = "a0"  # the paper has B1, whose accuracy here does not tell constants apart: see `constants`
NOT_SEARCHED = "not searched"
EXPLAINED = (
    f"{AGAIN}: by a second search, like the first but for its seed. {NOT_SEARCHED}: the constants that a search starts "
    "from."
)


def unsearched_row(column: str, scope: Scope, seed: int) -> Row:
    """A training on Imagenette with the constants that a search starts from; a column says so."""
    model = scope.model(SIZE)

    def job(workshop: Workshop) -> Job:
        return training_job(scope, model, "repopt", seed, scales_from("depth", scope, workshop, model))

    return training_row({column: NOT_SEARCHED, "model": model, "seed": seed}, job, minutes=0.3)


def gaps_to(its: Sequence[Record], *others: Sequence[Record]) -> list[Difference | None]:
    """Cells: how far rows are from others; None where they are the same, or one has no figure."""
    return [None if its == other else difference(its, other) for other in others]
