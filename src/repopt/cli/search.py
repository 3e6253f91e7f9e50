"""`repopt search`: a model's scales, found on a small data set."""

from pathlib import Path
from typing import Literal

from repopt.cli.output import Device, Fields, Strides, conclude, say_before
from repopt.train.distributed import is_first_process
from repopt.train.training import Job, train_run


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
        method="search",
        model=model,
        data=data,
        recipe=fields,
        limit=limit,
        broken=broken,
        options={} if strides is None else {"strides": strides},
    )
    say_before(job, out, resume=resume, quiet=quiet)
    summary = train_run(job, out, resume=resume, device=device, quiet=quiet)
    if not is_first_process():
        return 0
    written = out / "scales.safetensors"
    if scales_out is not None:
        scales_out.parent.mkdir(parents=True, exist_ok=True)
        scales_out.write_bytes(written.read_bytes())
    conclude(out, summary)
    print(f"scales: {scales_out or written}")
    return 0
