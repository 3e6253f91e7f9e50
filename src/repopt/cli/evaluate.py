"""`repopt eval`: the accuracy of a finished run."""

from pathlib import Path

import tyro

from repopt.cli.output import Device, print_json, table
from repopt.cli.screen import Screen
from repopt.train.distributed import is_first_process
from repopt.train.runs import evaluate_run


def evaluate(
    run: tyro.conf.Positional[Path],
    *,
    data: str | None = None,
    sizes: tuple[int, ...] = (),
    limit: int | None = None,
    trust: bool = False,
    device: Device = "auto",
    best: bool = False,
    json: bool = False,
) -> int:
    """Evaluate a finished run, also on other data or at other resolutions.

    Example: repopt eval runs/b1 --sizes 224 256 320

    Args:
        run: the run folder.
        data: the run's own unless given.
        sizes: sides of the images; the run's own unless given.
        limit: keep that many images.
        trust: load from the run what can execute code, a model's package.module:factory: trust the one who wrote it.
        device: auto is CUDA if there is one.
        best: evaluate best.safetensors, the weights of the epoch with the highest validation accuracy.
        json: print JSON instead of a table.
    """
    scores = evaluate_run(run, data, sizes=sizes, device=device, limit=limit, best=best, trust=trust)
    if not is_first_process():
        return 0
    if json:
        print_json([{"size": size, **vars(score)} for size, score in scores.items()])
        return 0
    shown = table("size", "images", "loss", "accuracy", title=f"{run}")
    for size, score in scores.items():
        shown.add_row(str(size), f"{score.images:,}", f"{score.loss:.4f}", f"{score.accuracy:.2f}")
    Screen().print(shown)
    return 0
