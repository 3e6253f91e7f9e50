"""`repopt search`, `train`, `eval` and `report`: from scales to a model to a page about it."""

from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from rich.console import Console
from rich.table import Table

from repopt.cli.output import Device, print_json
from repopt.scales import shipped
from repopt.train.distributed import is_first_process
from repopt.train.finished import evaluate_run
from repopt.train.launch import Job, train_run
from repopt.train.methods import Method
from repopt.train.recipe import Recipe

Fields = Annotated[Recipe, tyro.conf.arg(name="")]
Strides = tuple[int, int, int, int, int]


def search(
    *,
    model: str = "repopt_vgg_nano",
    data: str = "digits",
    out: Path = Path("runs/search"),
    scales_out: Path | None = None,
    strides: Strides | None = None,
    limit: int | None = None,
    broken: Literal["raise", "skip"] = "raise",
    device: Device = "auto",
    resume: bool = False,
    quiet: bool = False,
    recipe: str = "auto",
    fields: Fields,
) -> int:
    """Hyper-Search: find a model's scales on a small data set.

    Example: repopt search --model repopt_vgg_b1 --data cifar100:PATH --out runs/search-b1

    Args:
        model: the plain model; `repopt list` names them.
        data: digits, cifar10:PATH, cifar100:PATH, folder:PATH or fake:N,C,SIZE.
        out: the run folder; the scales are written to scales.safetensors in it. A path that ends in .safetensors is
            where the scales go, and the run folder is named after it.
        scales_out: another place for the scales.
        strides: of the stem and the four stages; keep those of the model you will train.
        limit: keep that many images, for a quick try.
        broken: what to do with images that cannot be decoded.
        device: auto takes CUDA where there is one.
        resume: go on with the run in the folder, with its own settings.
        quiet: show no progress.
        recipe: auto (demo for digits, else search), a name, or a .toml file; every flag below is one of its fields,
            with its default.
        fields: the recipe's fields.
    """
    if out.suffix == ".safetensors":
        scales_out, out = scales_out or out, out.with_suffix("")
    if scales_out is not None and scales_out.exists():
        raise ValueError(f"there is a file {str(scales_out)!r} already: give another --out")
    job = Job(
        method="search", model=model, data=data, recipe=fields, limit=limit, broken=broken, options=_options(strides)
    )
    _say_before(job, out, resume=resume, quiet=quiet)
    summary = train_run(job, out, resume=resume, device=device, quiet=quiet)
    if not is_first_process():
        return 0
    written = out / "scales.safetensors"
    if scales_out is not None:
        scales_out.parent.mkdir(parents=True, exist_ok=True)
        scales_out.write_bytes(written.read_bytes())
    _conclude(out, summary)
    print(f"scales: {scales_out or written}")
    return 0


def train(
    *,
    model: str = "repopt_vgg_nano",
    method: Method = "repopt",
    data: str = "digits",
    scales: str | None = None,
    out: Path = Path("runs/train"),
    weights: Path | None = None,
    strides: Strides | None = None,
    limit: int | None = None,
    broken: Literal["raise", "skip"] = "raise",
    device: Device = "auto",
    resume: bool = False,
    quiet: bool = False,
    recipe: str = "auto",
    fields: Fields,
) -> int:
    """Train a model by one of the methods.

    Example: repopt train --model repopt_vgg_b1 --data folder:PATH --scales scales.safetensors --out runs/b1

    Args:
        model: the plain model; the multi-branch methods take its counterpart.
        method: repopt, or what it is compared with.
        data: digits, cifar10:PATH, cifar100:PATH, folder:PATH or fake:N,C,SIZE.
        scales: for repopt and csla: a .safetensors file, the authors' .pth, a shipped name, or ones; those that ship
            for the model unless given.
        out: the run folder.
        weights: a checkpoint to start from; nothing is drawn then.
        strides: of the stem and the four stages.
        limit: keep that many images, for a quick try.
        broken: what to do with images that cannot be decoded.
        device: auto takes CUDA where there is one.
        resume: go on with the run in the folder, with its own settings.
        quiet: show no progress.
        recipe: auto (demo for digits, imagenet for folders, else small), a name, or a .toml file; every flag below is
            one of its fields, with its default.
        fields: the recipe's fields.
    """
    job = Job(
        method=method,
        model=model,
        data=data,
        recipe=fields,
        scales=scales or _shipped_for(model, method, strides),
        weights=weights,
        limit=limit,
        broken=broken,
        options=_options(strides),
    )
    _say_before(job, out, resume=resume, quiet=quiet)
    summary = train_run(job, out, resume=resume, device=device, quiet=quiet)
    if is_first_process():
        _conclude(out, summary)
    return 0


def evaluate(
    run: tyro.conf.Positional[Path],
    *,
    data: str | None = None,
    sizes: tuple[int, ...] = (),
    limit: int | None = None,
    device: Device = "auto",
    json: bool = False,
) -> int:
    """Evaluate a finished run, also on other data or at other resolutions.

    Example: repopt eval runs/b1 --sizes 224 256 320

    Args:
        run: the run folder.
        data: the run's own unless given.
        sizes: sides of the images; the run's own unless given.
        limit: keep that many images.
        device: auto takes CUDA where there is one.
        json: print JSON instead of a table.
    """
    scores = evaluate_run(run, data, sizes=sizes, device=device, limit=limit)
    if json:
        print_json([{"size": size, **vars(score)} for size, score in scores.items()])
        return 0
    table = Table(title=f"{run}", title_justify="left")
    for column in ("size", "images", "loss", "accuracy"):
        table.add_column(column, justify="right")
    for size, score in scores.items():
        table.add_row(str(size), f"{score.images:,}", f"{score.loss:.4f}", f"{score.accuracy:.2f}")
    Console().print(table)
    return 0


def report(
    runs: tyro.conf.Positional[tuple[Path, ...]], *, out: Path = Path("report.html"), title: str | None = None
) -> int:
    """Write one HTML page about a run, or about several side by side.

    Example: repopt report runs/demo/* --out report.html

    Args:
        runs: run folders.
        out: the page.
        title: its headline.
    """
    from repopt.report import write_report

    print(write_report(runs, out, title=title))
    return 0


def _shipped_for(model: str, method: Method, strides: Strides | None) -> str | None:
    """The model's own scales; with other strides they are not, and want to be asked for."""
    return model if method in ("repopt", "csla") and strides is None and model in shipped() else None


def _say_before(job: Job, out: Path, *, resume: bool, quiet: bool) -> None:
    """What a user may not expect of what is about to happen."""
    if quiet or not is_first_process():
        return
    if not resume and job.scales == job.model:
        print(f"note: the scales are those that ship for {job.model}")
    if resume and (out / "summary.json").exists():
        print(f"note: the run in {out} is finished, and nothing more is trained: for other settings give another --out")
    elif resume and (out / "recipe.json").exists():
        print("note: the run goes on with its own settings, and other flags are left aside")
    elif not resume and job.recipe.warmup_epochs >= job.recipe.epochs:
        print(
            f"note: the warm-up of {job.recipe.warmup_epochs:g} epochs does not end within {job.recipe.epochs}: for a "
            "quick try give --warmup-epochs 0"
        )


def _options(strides: Strides | None) -> dict[str, Any]:
    return {} if strides is None else {"strides": strides}


def _conclude(out: Path, summary: dict[str, Any]) -> None:
    """Says what came out, where the time went, and where the page is."""
    seconds = "  ".join(f"{name} {value:.1f} s" for name, value in summary["seconds"].items())
    print(
        f"accuracy {summary['val_accuracy']:.2f} (best {summary['best_val_accuracy']:.2f} after epoch "
        f"{summary['best_epoch']}), {summary['images_per_second']:,.0f} images/s"
    )
    print(f"time: {seconds}")
    try:
        from repopt.report import write_report

        print(f"report: {write_report([out], out / 'report.html')}")
    except ImportError as error:
        print(f"no report: {error}")
    print(f"run: {out}")
