"""`repopt search`: a model's scales, found on a small data set."""

from pathlib import Path
from typing import Annotated

import tyro

from repopt.cli.around_a_run import conclude, notes_before
from repopt.cli.output import Device, Strides, model_options
from repopt.data.images import Broken
from repopt.files import replacing
from repopt.train.branch_choice import read_choice
from repopt.train.distributed import is_first_process
from repopt.train.job import Job
from repopt.train.recipe import Recipe
from repopt.train.stopping import StoppedError
from repopt.train.training import train_run


def search(
    *,
    model: str = "repopt_vgg_nano",
    model_args: tuple[str, ...] = (),
    branches: str | None = None,
    data: str = "digits",
    out: Path = Path("runs/search"),
    scales_out: Path | None = None,
    strides: Strides | None = None,
    limit: int | None = None,
    broken: Broken = "raise",
    device: Device = "auto",
    resume: bool = False,
    trust: bool = False,
    quiet: bool = False,
    recipe: str = "auto",
    fields: Annotated[Recipe, tyro.conf.arg(name="")],
) -> int:
    """Hyper-Search: find a model's scales on a small data set.

    Example: repopt search --model repopt_vgg_b1 --data cifar100:PATH --out runs/b1

    Args:
        model: the plain model: a name of `repopt list`, timm:NAME, torchvision:NAME, or package.module:factory for
            one of your own.
        model_args: arguments of the model, as key=value: numbers, true, false or text.
        branches: the branches of the imagined blocks: repvgg, acnet, or a .toml file of regular expressions and
            branches (see docs/models.md); those that the model declares unless given, and else repvgg.
        data: the path of a folder, digits, cifar10:PATH, cifar100:PATH or fake:N,C,SIZE.
        out: the run folder; the scales are written to scales.safetensors in it. A path that ends in .safetensors is
            where the scales go, and the run folder is named after it.
        scales_out: another place for the scales.
        strides: of the stem and the four stages; keep those of the model you will train.
        limit: use only that many images, for a quick try.
        broken: what to do with images that cannot be decoded.
        device: auto is CUDA if there is one.
        resume: continue the run in the folder, with its own settings; --epochs changes where it ends.
        trust: load from the run what can execute code, a model's package.module:factory: trust the one who wrote it.
        quiet: show no progress.
        recipe: auto (follows the number and size of the images), a name, or a .toml file; every flag below is one of
            its fields, with its default.
        fields: the recipe's fields.
    """
    if out.suffix == ".safetensors":
        scales_out, out = scales_out or out, out.with_suffix("")
    if scales_out is not None:
        _check_place(scales_out, resume=resume)
    job = Job(
        method="search",
        model=model,
        data=data,
        recipe=fields,
        limit=limit,
        broken=broken,
        options=model_options(model_args, strides),
        branches=read_choice(branches),
    )
    notes = notes_before(job, out, auto=recipe == "auto", resume=resume)
    ends = fields.epochs if resume else None
    try:
        summary = train_run(job, out, resume=resume, epochs=ends, device=device, quiet=quiet, trust=trust, notes=notes)
    except StoppedError as error:
        place = "" if scales_out is None else f" --scales-out {scales_out}"
        raise StoppedError(str(error).replace(f"--out {out}", f"--out {out}{place}"), error.code) from error
    if is_first_process():
        scales = _placed(out / "scales.safetensors", scales_out)
        conclude(out, summary)
        print(f"scales: {scales}")
    return 0


def _check_place(scales_out: Path, *, resume: bool) -> None:
    """Now, rather than after the search."""
    if scales_out.suffix != ".safetensors":
        raise ValueError(f"--scales-out {str(scales_out)!r} could not be loaded: give a name that ends in .safetensors")
    if scales_out.exists() and not resume:
        raise ValueError(f"there is a file {str(scales_out)!r} already: give another --out")
    blocked = next((parent for parent in scales_out.parents if parent.is_file()), None)
    if blocked is not None:
        raise ValueError(f"{str(blocked)!r} is a file: give --scales-out a place in a folder")


def _placed(scales: Path, wanted: Path | None) -> Path:
    """Copies the scales to where they are wanted, and returns where they are."""
    if wanted is None:
        return scales
    wanted.parent.mkdir(parents=True, exist_ok=True)
    with replacing(wanted) as unfinished:
        unfinished.write_bytes(scales.read_bytes())
    return wanted
