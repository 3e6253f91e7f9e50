"""The paper's tables on public data: a file a table, one command each."""

from collections.abc import Callable, Mapping
from pathlib import Path

from paper import (
    a0,
    constants,
    conventions,
    figure_e,
    multipliers,
    table2,
    table3,
    table4,
    table5,
    table6,
    table8,
    table_b,
    table_c,
    table_d,
    zoo,
)
from paper.page import drawings_in, results_page, write_drawings
from paper.scope import Scope
from paper.tables import Row, Table, check_columns, measure_rows, work_left
from paper.workshop import Workshop

__all__ = ["TABLES", "Scope", "Workshop", "drawings_in", "reproduce", "results_page", "write_drawings"]

TABLES: Mapping[str, Table] = {
    module.TABLE.name: module.TABLE
    for module in (  # in the order of the page: the method, its constants, INT8, other models, what was decided first
        table2,
        table3,
        table4,
        constants,
        multipliers,
        a0,
        table5,
        table6,
        table_b,
        figure_e,
        table8,
        table_c,
        table_d,
        conventions,
        zoo,
    )
}


def reproduce(
    name: str,
    scope: Scope,
    workshop: Workshop,
    results: Path,
    *,
    only: str = "*",
    tell: Callable[[str], None] = print,
) -> list[Row]:
    """Measures what is missing of a table, and writes its CSV file.

    Args:
        name: of the table.
        scope: on what.
        workshop: where.
        results: folder of the CSV files.
        only: a pattern for the names of the rows.
        tell: hears what is going on.

    Returns:
        The rows that other processes are at.
    """
    if name not in TABLES:
        raise ValueError(f"there is no table {name!r}; there is {', '.join(TABLES)}")
    table, path = TABLES[name], results / f"{name}.csv"
    scope.check(table.data)
    check_columns(table, path)
    work = work_left(table, scope, path, only)
    tell(
        f"{table.title}: {work.standing} rows stand in {path}, {len(work.rows)} to go"
        + ("" if scope.quick or not work.rows else f", about {max(1, round(work.minutes))} minutes on one H200")
    )
    rows = [row for row in work.rows if scope.authors is not None or not row.authors]
    if len(rows) < len(work.rows):
        tell(f"left out without --authors: {len(work.rows) - len(rows)} rows")
    return measure_rows(table, rows, path, workshop, tell)
