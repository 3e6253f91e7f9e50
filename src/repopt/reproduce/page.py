"""docs/results.md, from the CSV files alone: what was run, on what, and what came out beside the paper's figures."""

from collections.abc import Collection, Mapping
from pathlib import Path

from repopt.reproduce.scope import Scope
from repopt.reproduce.tables import Table, read_rows, work_left

_HEAD = """<!-- made by `repopt reproduce` and `make docs` from results/*.csv: change those, not this -->

# The paper's tables, on public data

Each part is made by one command, `repopt reproduce NAME`, from the rows of `results/NAME.csv`. Every row there carries
its seed, hardware, versions, commit and date. The paper trains on ImageNet for days. We train on Imagenette (ten of its
classes, 96 pixels) and CIFAR-100 for seconds to minutes: compare differences between methods with the paper's, not
accuracies. ± behind an accuracy is the deviation over seeds; behind a difference it is the standard error, paired by
seed.
"""


def results_page(
    tables: Mapping[str, Table], results: Path, scope: Scope | None = None, *, drawings: Collection[str] = ()
) -> str:
    """The page, as text.

    Args:
        tables: by name.
        results: folder of their CSV files.
        scope: that the tables are complete within; the full one unless given.
        drawings: the files of figures that lie in the page's folder, as `write_drawings` names them.
    """
    scope = Scope() if scope is None else scope
    found = {name: read_rows(results / f"{name}.csv") for name in tables}
    parts = []
    for name, table in tables.items():
        if found[name]:
            lines = [f"## {table.title}", "", _command(table, scope, results), "", *table.part(found[name])]
            shown = [file for file in drawings if Path(file).stem.partition("-")[0] == name]
            lines += [line for file in shown for line in ("", f"![{Path(file).stem}]({file})")]
            parts.append("\n".join(lines))
    missing = [f"`{name}`" for name in tables if not found[name]]
    if missing:
        parts.append(f"## Not run yet\n\n{', '.join(missing)}.")
    return "\n\n".join([_HEAD.rstrip("\n"), *parts]) + "\n"


def write_drawings(tables: Mapping[str, Table], results: Path, folder: Path) -> list[str]:
    """Draws the figures of all tables that have some, and returns their paths from the page's folder.

    Raises:
        ImportError: matplotlib is not installed.
    """
    written = []
    for name, table in tables.items():
        rows = read_rows(results / f"{name}.csv")
        for kind, svg in (table.drawings(rows) if table.drawings and rows else {}).items():
            path = folder / "figures" / f"{name}-{kind}.svg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(svg)
            written.append(f"figures/{path.name}")
    return written


def _command(table: Table, scope: Scope, results: Path) -> str:
    """How to make the part, and what of it is still missing."""
    work = work_left(table, scope, results / f"{table.name}.csv")
    missing = f" Still to be measured: {len(work.rows)} of {len(work.rows) + work.standing} rows." if work.rows else ""
    return f"`repopt reproduce {table.name}`.{missing}"
