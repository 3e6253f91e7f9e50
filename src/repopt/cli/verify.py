"""`repopt verify`: real blocks and re-parameterized operators, trained side by side."""

import sys
from typing import Any

from rich import box
from rich.table import Table

from repopt.cli.output import check_seed, print_json
from repopt.cli.screen import Screen
from repopt.plans.wording import counted
from repopt.verification.cases import CaseResult, run_matrix


def verify(steps: int = 50, seed: int = 0, json: bool = False) -> int:
    """Train real blocks and re-parameterized operators side by side, and compare.

    Both see the same data in float64.

    The exit code is 1 if a row that claims to be exact is not.

    Args:
        steps: training steps for each row.
        seed: of scales, kernels and data.
        json: print JSON instead of a table.
    """
    check_seed(seed)
    rows = list(run_matrix(steps, seed))
    code = 0 if all(row.passed for row in rows) else 1
    try:
        if json:
            print_json([_row_record(row) for row in rows])
        else:
            _print_table(rows, steps)
    except BrokenPipeError:  # nobody reads to the end; a row that is broken is not lost on those who ask for the code
        if not code:
            raise
        sys.exit(code)
    return code


def _print_table(rows: list[CaseResult], steps: int) -> None:
    console = Screen()
    console.print(_table(rows, steps))
    exact = [row for row in rows if row.report.exact]
    broken = [row for row in exact if not row.passed]
    worst = max(row.report.worst for row in exact)
    verdict = f"[red]{len(broken)} broken[/red]" if broken else "[green]all equal[/green]"
    console.print(f"{len(exact)} exact rows: {verdict}, worst {worst:.1e}")


def _table(rows: list[CaseResult], steps: int) -> Table:
    table = Table(
        title=f"Real block beside re-parameterized operator: {counted(steps, 'step')} in float64, scales of both signs",
        caption=f"outputs, kernels: worst relative difference; up to {rows[0].report.tolerance:.0e} is rounding",
        title_justify="left",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    table.add_column("rule", no_wrap=True)
    table.add_column("route", no_wrap=True)
    table.add_column("operator and branches", overflow="fold")
    for column in ("outputs", "kernels"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("exact", no_wrap=True)
    described = set[str]()
    for row in rows:
        record = _row_record(row)
        figures = [f"{record[key]:.0e}" for key in ("outputs", "kernels")]
        exact = "[green]yes[/green]" if row.report.exact else "[yellow]no[/yellow]"
        branches = "" if row.branch_set in described else f": [dim]{record['branches']}[/dim]"
        described.add(row.branch_set)
        shown = exact if row.passed else "[red]BROKEN[/red]"
        table.add_row(row.rule, row.report.route, f"{row.branch_set}{branches}", *figures, shown)
    return table


def _row_record(row: CaseResult) -> dict[str, Any]:
    difference = row.report.differences[0]
    return {
        "rule": row.rule,
        "route": row.report.route,
        "operator": row.branch_set,
        "branches": difference.branches,
        "outputs": difference.outputs,
        "kernels": difference.kernels,
        "exact": row.report.exact,
        "passed": row.passed,
    }
