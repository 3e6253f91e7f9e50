"""`repopt demo`: the equality, and a comparison on data that ships with the package, in minutes on two CPU cores."""

from collections.abc import Iterator
from pathlib import Path

from repopt.cli.compare import check_request, run_study
from repopt.compare.budget import shortened
from repopt.compare.study import Study, rates_around
from repopt.compare.ways import chosen_ways, shipped_scales
from repopt.train.recipe import demo
from repopt.train.stopping import StoppedError
from repopt.verification.cases import run_matrix

_COMPARED = ("sgd", "dirac", "repopt", "repvgg")


def tell(
    out: Path = Path("runs/demo"),
    model: str = "repopt_vgg_nano",
    seeds: int = 3,
    epochs: int = demo().epochs,
    minutes: float = 2.0,
    quiet: bool = False,
) -> int:
    """Check the equality, and compare four methods on digits: minutes on a CPU.

    Example: repopt demo --seeds 1

    Args:
        out: folder of the runs; if it is taken, the next free name.
        model: the plain model.
        seeds: how many for each method.
        epochs: of each training.
        minutes: the time for the comparison: epochs are lowered to fit, then seeds.
        quiet: print the result alone.
    """
    check_request(seeds=seeds, minutes=minutes)
    recipe = shortened(demo(), epochs)
    study = Study(
        model=model,
        data="digits",
        ways=chosen_ways(model, _COMPARED, default=shipped_scales(model, changed=False) or "depth"),
        recipe=recipe,
        rates=rates_around(recipe.lr),
        seeds=seeds,
    )
    equal = _show_equality()
    folder = next(path for path in _names(out) if not path.exists())
    flags = ["--epochs", str(epochs), "--warmup-epochs", f"{recipe.warmup_epochs:g}"] if recipe != demo() else []
    try:
        run_study(study, folder, minutes=minutes, fixed=True, device="auto", flags=flags, quiet=quiet)
    except StoppedError as error:
        raise StoppedError("stopped: the next demo begins anew, in another folder", error.code) from error
    return 0 if equal else 1


def _show_equality() -> bool:
    rows = [row for row in run_matrix(steps=10) if row.report.exact]
    equal = all(row.passed for row in rows)
    worst = max(row.report.worst for row in rows)
    print(f"{len(rows)} real blocks trained beside re-parameterized operators:")
    print(f"{'all equal' if equal else 'NOT EQUAL'}, worst difference {worst:.1e}")
    return equal


def _names(out: Path) -> Iterator[Path]:
    yield out
    number = 2
    while True:
        yield out.with_name(f"{out.name}-{number}")
        number += 1
