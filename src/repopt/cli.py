"""The command line: a function a command, its flags from the function's signature."""

import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import torch
import tyro
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import repopt
from repopt.bench.step import Implementation, Rule, measure_step
from repopt.matrix import EXACT_TO, Row, run_matrix
from repopt.results import append_csv, environment

Device = Literal["auto", "cpu", "cuda"]


def verify(steps: int = 50, seed: int = 0, json: bool = False) -> int:
    """Train real multi-branch blocks and re-parameterized operators side by side, and compare.

    Both see the same data in float64. The exit code is 1 if a row that claims to be exact is not.

    Args:
        steps: training steps for each row.
        seed: of scales, kernels and data.
        json: print JSON instead of a table.
    """
    if json:
        rows = list(run_matrix(steps, seed))
        _print_json([_row_record(row) for row in rows])
    else:
        rows = _verify_table(steps, seed)
    return 0 if all(row.passed for row in rows) else 1


def bench_step(
    model: str = "repopt_vgg_b1",
    rules: tuple[Rule, ...] = ("sgd",),
    device: Device = "auto",
    implementations: tuple[Implementation, ...] = ("fused",),
    memory_format: Literal["contiguous", "channels_last"] = "contiguous",
    threads: int | None = None,
    repeats: int = 20,
    seed: int = 0,
    out: Path | None = None,
    json: bool = False,
) -> int:
    """Time an optimizer step with and without repopt, in one run.

    Args:
        model: the model whose convolutions are stepped; `repopt list` names them.
        rules: sgd is compared with the grad route, adamw with the closed form and the branch route.
        device: auto takes CUDA where there is one.
        implementations: torch's implementations to compare with; on CUDA each also as a CUDA graph.
        memory_format: of the weights and gradients.
        threads: CPU threads, torch's default unless given.
        repeats: timed steps of each optimizer.
        seed: of weights and gradients.
        out: a CSV file to append the figures to.
        json: print JSON instead of a table.
    """
    if threads is not None:
        torch.set_num_threads(threads)
    chosen = _chosen(device)
    torch.manual_seed(seed)
    layout = torch.channels_last if memory_format == "channels_last" else torch.contiguous_format
    net = repopt.create_model(model).to(device=chosen, memory_format=layout)  # type: ignore[call-overload]
    plan = repopt.plan(net, scales="ones")
    costs = [
        cost
        for rule in rules
        for implementation in implementations
        for graph in ([False, True] if chosen.type == "cuda" else [False])
        for cost in measure_step(
            plan, rule=rule, implementation=implementation, graph=graph, repeats=repeats, seed=seed
        )
    ]
    setting = {"model": model, "memory_format": memory_format, "seed": seed, **environment(chosen)}
    records = [{**asdict(cost), **setting} for cost in costs]
    if json:
        _print_json(records)
    else:
        _print_step_table(records)
    if out is not None:
        append_csv(out, records)
    return 0


def list_models(json: bool = False) -> int:
    """List the models by name.

    Args:
        json: print JSON instead of lines.
    """
    names = repopt.list_models()
    if json:
        _print_json(names)
    else:
        print("\n".join(names))
    return 0


def bench() -> int:
    """Measure what repopt costs: `repopt bench step`."""
    raise AssertionError("a group is never called")


COMMANDS: dict[str, Callable[..., int]] = {"verify": verify, "bench": bench, "list": list_models}
GROUPS: dict[str, dict[str, Callable[..., int]]] = {"bench": {"step": bench_step}}


def main(args: list[str] | None = None) -> None:
    """Runs the command; an error that a user can mend is one sentence and exit code 2."""
    given = sys.argv[1:] if args is None else args
    if given == ["--version"]:
        print(f"repopt {repopt.__version__}")
        return
    commands, prog = COMMANDS, "repopt"
    about = "Train a plain network as if it had branches, by changing the optimizer instead of the model."
    if given and given[0] in GROUPS:
        prog, about = f"repopt {given[0]}", COMMANDS[given[0]].__doc__ or ""
        commands, given = GROUPS[given[0]], given[1:]
    if not given:
        given = ["--help"]
    try:
        code = tyro.extras.subcommand_cli_from_dict(commands, prog=prog, description=about, args=given)
    except (ValueError, OSError, RuntimeError) as error:
        Console(stderr=True, highlight=False).print(f"[red]repopt:[/red] {escape(str(error))}", soft_wrap=True)
        sys.exit(2)
    sys.exit(code)


def _chosen(device: Device) -> torch.device:
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("there is no CUDA device here, or torch was built without CUDA: use --device cpu")
    return torch.device(("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device)


def _verify_table(steps: int, seed: int) -> list[Row]:
    """Runs the matrix and shows it row by row as it grows."""
    console = Console()
    table = Table(
        title=f"Real block beside re-parameterized operator: {steps} steps in float64, scales of both signs",
        caption=f"outputs, kernels: worst relative difference; an exact row must stay below {EXACT_TO:.0e}",
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
    rows = []
    with console.status("training") as status:
        for row in run_matrix(steps, seed):
            rows.append(row)
            record = _row_record(row)
            figures = [f"{record[key]:.0e}" for key in ("outputs", "kernels")]
            verdict = "[green]yes[/green]" if row.report.exact else "[yellow]no[/yellow]"
            known = any(row.branch_set == other.branch_set for other in rows[:-1])
            operator = row.branch_set if known else f"{row.branch_set}: [dim]{record['branches']}[/dim]"
            shown = verdict if row.passed else "[red]BROKEN[/red]"
            table.add_row(row.rule, row.report.route, operator, *figures, shown)
            status.update(f"training: {len(rows)} rows, last {row.rule} on {row.branch_set}")
    console.print(table)
    exact = [row for row in rows if row.report.exact]
    broken = [row for row in exact if not row.passed]
    worst = max(row.report.worst for row in exact)
    verdict = f"[red]{len(broken)} broken[/red]" if broken else "[green]all equal[/green]"
    console.print(f"{len(exact)} exact rows: {verdict}, worst {worst:.1e}")
    return rows


def _row_record(row: Row) -> dict[str, Any]:
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


def _print_step_table(records: list[dict[str, Any]]) -> None:
    first = records[0]
    table = Table(
        title=f"A step of {first['model']}, {first['memory_format']}, on {first['hardware']}",
        title_justify="left",
    )
    table.add_column("optimizer")
    for column in ("ms", "ratio", "state MB", "repopt MB", "peak MB"):
        table.add_column(column, justify="right")
    for record in records:
        peak = record["peak_bytes"]
        table.add_row(
            f"{record['rule']}, {record['implementation']}: {record['way']}",
            f"{record['milliseconds']:.3f}",
            f"{record['ratio']:.2f}",
            f"{record['state_bytes'] / 1e6:.2f}",
            f"{record['repopt_bytes'] / 1e6:.2f}",
            "" if peak is None else f"{peak / 1e6:.2f}",
        )
    Console().print(table)


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=2))
