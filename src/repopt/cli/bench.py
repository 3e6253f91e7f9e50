"""`repopt bench`: what repopt costs, and what it saves, as ratios in one run."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import tyro

import repopt
from repopt.bench.data_speed import measure_data
from repopt.bench.step_cost import Implementation, Rule, measure_step
from repopt.bench.train_cost import measure_training
from repopt.cli.output import Device, check_seed, model_options, print_json, table
from repopt.cli.screen import Screen
from repopt.device import chosen_device, environment
from repopt.files import append_csv
from repopt.models import check_name
from repopt.models.references import is_reference
from repopt.train.branch_choice import as_branches, read_choice
from repopt.train.branch_choice import chosen as chosen_branches
from repopt.train.methods import Method, counterpart
from repopt.train.recipe import Precision, Recipe, usual_precision


def bench_step(
    model: str = "repopt_vgg_b1",
    model_args: tuple[str, ...] = (),
    branches: str | None = None,
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
        model: the model whose convolutions are stepped: a name of `repopt list`, timm:NAME, torchvision:NAME or
            package.module:factory.
        model_args: arguments of the model, as key=value: numbers, true, false or text.
        branches: of the imagined blocks: repvgg, acnet or a .toml file; those that the model declares unless given, and
            else repvgg.
        rules: each is compared with its closed form, sgd also attached, adamw also on the branch route.
        device: auto is CUDA if there is one.
        implementations: torch's implementations to compare with; on CUDA each also as a CUDA graph.
        memory_format: of the weights and gradients.
        threads: CPU threads, torch's default unless given.
        repeats: timed steps of each optimizer.
        seed: of weights and gradients.
        out: a CSV file to append the figures to.
        json: print JSON instead of a table.
    """
    _check_given(out, rules=rules, implementations=implementations)
    check_seed(seed)
    if threads is not None:
        torch.set_num_threads(threads)
    chosen = chosen_device(device)
    torch.manual_seed(seed)
    layout = torch.channels_last if memory_format == "channels_last" else torch.contiguous_format
    net = repopt.create_model(model, **model_options(model_args))
    net = net.to(device=chosen, memory_format=layout)  # type: ignore[call-overload]
    plan = repopt.plan(net, as_branches(chosen_branches(read_choice(branches), net)), "ones")
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
    _give(records, _print_step_table, out=out, json=json)
    return 0


def bench_train(
    models: tuple[str, ...] = ("repopt_vgg_b1",),
    model_args: tuple[str, ...] = (),
    branches: str | None = None,
    methods: tuple[Method, ...] | None = None,
    batch_size: int = 256,
    size: int = 224,
    classes: int = 1000,
    steps: int = 50,
    precision: Precision | None = None,
    tune: bool = True,
    device: Device = "auto",
    seed: int = 0,
    out: Path | None = None,
    json: bool = False,
) -> int:
    """Measure images per second and peak memory of training by several methods.

    Example: repopt bench train --models repopt_vgg_b1 --methods repopt sgd

    All run on the same noise, held on the device.

    Args:
        models: plain models: names of `repopt list`, timm:NAME, torchvision:NAME or package.module:factory.
        model_args: arguments of each model, as key=value: numbers, true, false or text.
        branches: of the imagined blocks: repvgg, acnet or a .toml file; those that the model declares unless given, and
            else repvgg.
        methods: the first is what the others are compared with; repopt and repvgg unless given, for a
            network of other code repopt and branches.
        batch_size: images per step.
        size: side of the images.
        classes: how many.
        steps: timed ones, after compilation and capture.
        precision: of the forward and backward pass; bf16 on CUDA and fp32 elsewhere unless given.
        tune: let the compiler try kernels on the device, as in a long training.
        device: auto is CUDA if there is one.
        seed: of weights and data.
        out: a CSV file to append the figures to.
        json: print JSON instead of a table.
    """
    _check_given(out, models=models, methods=methods)
    chosen = chosen_device(device)
    precision = precision or usual_precision(chosen)
    recipe = Recipe(batch_size=batch_size, precision=precision, seed=seed, flip=False, tune=tune)
    wanted = {model: methods or ("repopt", "branches" if is_reference(model) else "repvgg") for model in models}
    for model, each in wanted.items():
        for method in each:
            check_name(counterpart(model, method))  # said now, rather than after others were measured
    setting = {"batch_size": batch_size, "size": size, "precision": precision, "seed": seed, **environment(chosen)}
    records: list[dict[str, Any]] = []
    try:
        for model in wanted:
            costs = measure_training(
                model,
                wanted[model],
                recipe,
                size=size,
                classes=classes,
                steps=steps,
                device=chosen,
                options=model_options(model_args),
                branches=read_choice(branches),
            )
            for cost in costs:
                records.append({**asdict(cost), **setting})
    except Exception:
        with suppress(BrokenPipeError):
            _give(records, _print_train_table, out=out, json=json)
        raise
    _give(records, _print_train_table, out=out, json=json)
    return 0


def bench_data(
    *,
    data: str = "digits",
    model: str | None = None,
    model_args: tuple[str, ...] = (),
    branches: str | None = None,
    method: Method = "repopt",
    limit: int | None = None,
    steps: int = 50,
    device: Device = "auto",
    out: Path | None = None,
    json: bool = False,
    recipe: str = "auto",
    fields: Annotated[Recipe, tyro.conf.arg(name="")],
) -> int:
    """Measure images per second of a data set: decoded, as batches, in training.

    Example: repopt bench data --data PATH --recipe small --model repopt_vgg_b1

    Args:
        data: a folder of images, digits, cifar10:PATH, cifar100:PATH or fake:N,C,SIZE.
        model: a plain model to time beside the data, on noise held on the device; none unless given.
        model_args: arguments of the model, as key=value: numbers, true, false or text.
        branches: of the imagined blocks: repvgg, acnet or a .toml file; those that the model declares unless given, and
            else repvgg.
        method: how that model is trained.
        limit: use only that many images.
        steps: timed batches; of images held in memory, whole epochs.
        device: auto is CUDA if there is one.
        out: a CSV file to append the figures to.
        json: print JSON instead of a table.
        recipe: auto (follows the number and size of the images), a name, or a .toml file; every flag below is one of
            its fields, with its default.
        fields: the recipe's fields.
    """
    _check_given(out)
    chosen = chosen_device(device)
    speeds = measure_data(
        data,
        fields,
        device=chosen,
        steps=steps,
        limit=limit,
        model=model,
        method=method,
        options=model_options(model_args),
        branches=read_choice(branches),
    )
    setting = {"data": data, "recipe": recipe, "batch_size": fields.batch_size, "workers": fields.workers}
    trained = {"model": model or "", "method": method if model else "", "precision": fields.precision}
    records = [{**asdict(speed), **setting, **trained, **environment(chosen)} for speed in speeds]
    _give(records, _print_data_table, out=out, json=json)
    return 0


def _check_given(out: Path | None, **lists: Sequence[str] | None) -> None:
    """Raises, before anything is measured, for an empty list or a folder in place of a file."""
    for name, given in lists.items():
        if given is not None and not given:
            raise ValueError(f"--{name} names nothing: give at least one")
    if out is not None and out.is_dir():
        raise ValueError(f"{str(out)!r} is a folder: give --out a CSV file")


def _give(
    records: list[dict[str, Any]],
    print_table: Callable[[list[dict[str, Any]]], None],
    *,
    out: Path | None,
    json: bool,
) -> None:
    """Appends the figures, if there are any, to a CSV file where one is given, and prints them."""
    if not records:
        return
    try:
        if out is not None:
            append_csv(out, records)
    finally:
        if json:
            print_json(records)
        else:
            print_table(records)


def _print_train_table(records: list[dict[str, Any]]) -> None:
    first = records[0]
    shown = table(
        "model: method",
        *("images/s", "ratio", "peak GB", "compile s", "parameters, M"),
        title=f"Training at {first['size']}, batch {first['batch_size']}, {first['precision']}, on {first['hardware']}",
    )
    for record in records:
        peak = record["peak_bytes"]
        shown.add_row(
            f"{record['model']}: {record['method']}",
            f"{record['images_per_second']:,.0f}",
            f"{record['ratio']:.2f}",
            "" if peak is None else f"{peak / 1e9:.2f}",
            f"{record['compile_seconds']:.1f}",
            f"{record['parameters'] / 1e6:.1f}",
        )
    Screen().print(shown)


def _print_data_table(records: list[dict[str, Any]]) -> None:
    first = records[0]
    shown = table(
        "stage",
        *("images", "images/s"),
        title=f"{first['data']} at {first['size']}, batch {first['batch_size']}, decoded by {first['cores']} cores, on "
        f"{first['hardware']}",
    )
    stages = {
        "decoding": "decoding the files",
        "batches": "batches as in training",
        "training": f"{first['model']} by {first['method']}, without its data",
    }
    for record in records:
        shown.add_row(stages[record["stage"]], f"{record['images']:,}", f"{record['images_per_second']:,.0f}")
    Screen().print(shown)


def _print_step_table(records: list[dict[str, Any]]) -> None:
    first = records[0]
    shown = table(
        "optimizer",
        *("ms", "ratio", "in a loop", "state MB", "repopt MB", "peak MB"),
        title=f"A step of {first['model']}, {first['memory_format']}, on {first['hardware']}",
    )
    for record in records:
        peak = record["peak_bytes"]
        shown.add_row(
            f"{record['rule']}, {record['implementation']}: {record['way']}",
            f"{record['milliseconds']:.3f}",
            f"{record['ratio']:.2f}",
            f"{record['queued_ratio']:.2f}",
            f"{record['state_bytes'] / 1e6:.2f}",
            f"{record['repopt_bytes'] / 1e6:.2f}",
            "" if peak is None else f"{peak / 1e6:.2f}",
        )
    Screen().print(shown)
