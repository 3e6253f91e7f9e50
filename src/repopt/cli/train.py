"""`repopt train`: train a model by repopt, or by what it is compared with."""

from pathlib import Path
from typing import Annotated

import tyro

from repopt.cli.around_a_run import conclude, notes_before
from repopt.cli.output import Device, Strides, model_options
from repopt.compare.ways import shipped_scales
from repopt.data.images import Broken
from repopt.train.branch_choice import read_choice
from repopt.train.distributed import is_first_process
from repopt.train.job import Job
from repopt.train.methods import Method
from repopt.train.recipe import Recipe
from repopt.train.training import train_run


def train(
    *,
    model: str = "repopt_vgg_nano",
    model_args: tuple[str, ...] = (),
    branches: str | None = None,
    method: Method = "repopt",
    data: str = "digits",
    scales: str | None = None,
    out: Path = Path("runs/train"),
    weights: Path | None = None,
    strides: Strides | None = None,
    se: bool = False,
    limit: int | None = None,
    broken: Broken = "raise",
    device: Device = "auto",
    resume: bool = False,
    trust: bool = False,
    quiet: bool = False,
    recipe: str = "auto",
    fields: Annotated[Recipe, tyro.conf.arg(name="")],
) -> int:
    """Train a model with one of the methods.

    Example: repopt train --model timm:vgg16_bn --data photos --out runs/vgg

    Args:
        model: the plain model: a name of `repopt list`, timm:NAME, torchvision:NAME, or package.module:factory for
            one of your own; the multi-branch methods take its counterpart.
        model_args: arguments of the model, as key=value: numbers, true, false or text.
        branches: the branches of the imagined blocks: repvgg, acnet, or a .toml file of regular expressions and
            branches (see docs/models.md); those that the model declares unless given, and else repvgg.
        method: repopt, or what it is compared with.
        data: the path of a folder, digits, cifar10:PATH, cifar100:PATH or fake:N,C,SIZE.
        scales: for repopt and csla: a .safetensors file, the authors' .pth, a shipped name, ones, or depth; learn
            searches them in the first part of the training, see --freeze-at; those that ship for the model unless
            given, else depth.
        out: the run folder.
        weights: a checkpoint to start from; nothing is drawn then.
        strides: of the stem and the four stages.
        se: squeeze and excitation after each ReLU of a VGG.
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
    if scales is not None and method not in ("repopt", "csla") and not resume:
        raise ValueError(f"the method {method} has no scales: leave --scales out, or give --method repopt")
    planned, options = read_choice(branches), model_options(model_args, strides)
    shipped = shipped_scales(model, changed=bool(options.keys() - {"se"}) or planned is not None)
    default = shipped or "depth" if method in ("repopt", "csla") else None
    job = Job(
        method=method,
        model=model,
        data=data,
        recipe=fields,
        scales=scales or default,
        weights=weights,
        limit=limit,
        broken=broken,
        options={**options, **({"se": True} if se else {})},
        branches=planned,
    )
    notes = notes_before(job, out, auto=recipe == "auto", resume=resume, chosen=scales is None)
    ends = fields.epochs if resume else None
    summary = train_run(job, out, resume=resume, epochs=ends, device=device, quiet=quiet, trust=trust, notes=notes)
    if is_first_process():
        conclude(out, summary)
    return 0
