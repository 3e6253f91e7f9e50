"""`repopt compare`: which way to train a network is best."""

import hashlib
import math
import time
from dataclasses import asdict, replace
from pathlib import Path

from repopt.cli.output import Device, model_options, print_json, table
from repopt.cli.screen import Screen
from repopt.compare.budget import shortened
from repopt.compare.comparing import Say, measured, prepared, run_folder, within
from repopt.compare.overview import as_record, command_of, notes_of, table_of
from repopt.compare.settings import Chosen, read_chosen, write_chosen
from repopt.compare.study import Study, rates_around, rates_beyond
from repopt.compare.verdict import Measured, sentences
from repopt.compare.ways import chosen_ways, shipped_scales
from repopt.data import load_data
from repopt.device import chosen_device, environment
from repopt.files import write_json
from repopt.models.references import source_of
from repopt.plans.wording import counted
from repopt.train.auto_recipe import auto_recipe
from repopt.train.branch_choice import read_choice
from repopt.train.notes import about_auto, about_batch, about_data, accuracy_of_guessing
from repopt.train.recipe import Precision, load_recipe, usual_precision, with_batch_for

_MINUTES = 10.0  # where neither minutes nor epochs are given


def compare(
    *,
    model: str = "repopt_vgg_nano",
    model_args: tuple[str, ...] = (),
    branches: str | None = None,
    data: str = "digits",
    methods: tuple[str, ...] = (),
    scales: str | None = None,
    seeds: int = 3,
    epochs: int | None = None,
    minutes: float | None = None,
    lr: tuple[float, ...] = (),
    precision: Precision | None = None,
    recipe: str = "auto",
    out: Path = Path("runs/compare"),
    limit: int | None = None,
    device: Device = "auto",
    quiet: bool = False,
    json: bool = False,
) -> int:
    """Train a network with several methods: which is best, and what does INT8 cost?

    Example: repopt compare --model timm:vgg16_bn --data photos --minutes 30

    It says first how long it will take. If it is interrupted, run it again.

    Args:
        model: the plain model: a name of `repopt list`, timm:NAME, torchvision:NAME, or package.module:factory for
            one of your own.
        model_args: arguments of the model, as key=value: numbers, true, false or text.
        branches: the branches of the imagined and the real blocks: repvgg, acnet, or a .toml file, see docs/models.md.
        data: the path of a folder, digits, cifar10:PATH, cifar100:PATH or fake:N,C,SIZE.
        methods: which to compare; the defaults for the model unless given. Choices: sgd, dirac, repopt, repopt:depth,
            repopt:ones, repopt:learn, branches, qarepvgg (for any model), repvgg (for models of repopt).
        scales: of the method repopt: a file, a shipped name, ones, depth or learn; those that ship for the model unless
            given, else depth.
        seeds: how many for each method.
        epochs: of each training; the recipe's unless given.
        minutes: the time for everything: epochs are lowered to fit, then seeds. 10 unless these or --epochs are given.
        lr: learning rates to try, of which each method goes on with its best. Unless given, these are three, and lower
            or higher ones while these are better.
        precision: of the forward and backward pass; the recipe's unless given, and with auto bf16 on CUDA.
        recipe: auto (follows the number and size of the images), a name, or a .toml file.
        out: the folder of runs, page and numbers; a comparison that was interrupted goes on.
        limit: use only that many images, for a quick try.
        device: auto is CUDA if there is one.
        quiet: print the result alone.
        json: print JSON instead of the table.
    """
    check_request(seeds=seeds, minutes=minutes)
    options, planned = model_options(model_args), read_choice(branches)
    base = auto_recipe(data, limit=limit) if recipe == "auto" else load_recipe(recipe)
    base, own = base if epochs is None else shortened(base, epochs), base.precision
    if precision is None and recipe == "auto":
        precision = usual_precision(chosen_device(device))
    base = replace(base, precision=precision or own)
    given = [replace(base, lr=rate) for rate in sorted({float(f"{rate:.6g}") for rate in lr})]  # checked
    shipped = shipped_scales(model, changed=bool(options) or planned is not None)
    study = Study(
        model=model,
        data=data,
        ways=chosen_ways(model, methods, scales, shipped or "depth"),
        recipe=given[0] if given else base,
        rates=tuple(each.lr for each in given) or rates_around(base.lr),
        further=() if given else rates_beyond(base.lr),
        seeds=seeds,
        limit=limit,
        options=options,
        branches=planned,
    )
    where = None if device == "auto" else device
    other = None if base.precision == own else base.precision
    others = {"--epochs": epochs, "--limit": limit, "--device": where, "--precision": other}
    flags = [word for flag, value in others.items() if value is not None for word in (flag, str(value))]
    flags += ["--warmup-epochs", f"{base.warmup_epochs:g}"] if epochs is not None else []
    flags += ["--model-args", *model_args] if model_args else []
    budget = _MINUTES if minutes is None and epochs is None else minutes
    return run_study(
        study,
        out,
        minutes=budget,
        fixed=bool(methods),
        named=recipe,
        flags=flags,
        branches=branches,
        device=device,
        quiet=quiet,
        as_json=json,
    )


def _contents(study: Study) -> dict[str, str]:
    """Digests of the files that a study names, which may change while their names stay."""
    scales = next((Path(way.scales) for way in study.ways if way.scales and Path(way.scales).is_file()), None)
    files = {"scales_file": scales, "model_code": source_of(study.model)}
    return {name: hashlib.sha256(file.read_bytes()).hexdigest()[:12] for name, file in files.items() if file}


def run_study(
    study: Study,
    out: Path,
    *,
    minutes: float | None,
    fixed: bool,
    device: Device,
    named: str = "auto",
    flags: list[str] | None = None,
    branches: str | None = None,
    quiet: bool = False,
    as_json: bool = False,
) -> int:
    """Estimates, trains, measures and prints; `repopt demo` does the same on digits."""
    chosen_on = chosen_device(device)
    read_chosen(out, {})  # before anything is loaded
    data = load_data(study.data, size=study.recipe.size, limit=study.limit, eval_size=study.recipe.eval_size)
    say = _speaker(quiet=quiet or as_json)
    request = {**asdict(study), "minutes": minutes, "data_digest": data.digest, **_contents(study)}
    asked, study = study, replace(study, recipe=with_batch_for(study.recipe, len(data.train)))
    chosen = read_chosen(out, request)
    if chosen is None:
        say("timing a few steps of each method")
        notes = [
            about_auto(study.recipe) if named == "auto" else None,
            *about_data(data, study.limit),
            about_batch(asked.recipe.batch_size, study.recipe, data),
        ]
        found = prepared(study, data, minutes=minutes, fixed=fixed, device=chosen_on, say=notes.append)
        for note in filter(None, notes):  # now that no error can make them moot
            say(f"note: {note}")
        chosen = read_chosen(out, request) or found  # where the same command was started twice, the first one's
        write_chosen(out, request, chosen)
    else:
        say(f"going on with the comparison in {out}")
    study = within(study, chosen)
    say(_estimate(study, chosen))
    began = time.perf_counter()
    results = measured(study, data, out, int8=chosen.int8, device=chosen_on, say=say)
    spent = {"estimate": chosen.minutes, "this_time": (time.perf_counter() - began) / 60}
    command = command_of(asked, named, flags or [], results, branches)
    said = sentences(
        results, guessing=accuracy_of_guessing(data.val.labels), epochs=study.recipe.epochs, wanted=asked.recipe.epochs
    )
    record = {**as_record(study, spent, results, said, command), "environment": environment(chosen_on)}
    write_json(out / "compare.json", record)
    page = (
        _write_page(study, out, results, said, command, chosen.no_int8)
        if command
        else "no page: every training diverged"
    )
    if as_json:
        print_json(record)
    else:
        _print(results, said, command)
        print(f"time: {spent['this_time']:.1f} minutes, estimated {spent['estimate']:.1f}")
        print(f"numbers: {out / 'compare.json'}\n{page}")
    return 0


def check_request(*, seeds: int, minutes: float | None) -> None:
    if seeds < 1:
        raise ValueError(f"--seeds must be at least 1, not {seeds}")
    if minutes is not None and not 0 < minutes < math.inf:
        raise ValueError(f"--minutes must be more than 0, not {minutes:g}")


def _speaker(*, quiet: bool) -> Say:
    def say(line: str) -> None:
        if not quiet:
            print(line, flush=True)

    return say


def _estimate(study: Study, chosen: Chosen) -> str:
    names, seeds = ", ".join(way.name for way in study.ways), counted(study.seeds, "seed")
    rates, about = counted(len(study.rates), "learning rate"), ""
    if study.further:  # some ways take them
        rates, about = f"{rates} or more", "about "
    count = counted(len(study.ways) * study.extent.trainings, "training")
    return (
        f"{names}: {rates} and {seeds} each\n"
        f"{about}{count} of {counted(study.recipe.epochs, 'epoch')}: about {chosen.minutes:.1f} minutes in all"
    )


def _print(found: list[Measured], said: list[str], command: str) -> None:
    heads, rows = table_of(found)
    shown = table(*heads)
    for row in rows:
        shown.add_row(*row)
    console = Screen(highlight=False)
    console.print(shown)
    for sentence in said:
        console.print(sentence, markup=False)
    if command:
        print(f"\nTo train the best in full:\n{command}\n")


def _write_page(study: Study, out: Path, found: list[Measured], said: list[str], command: str, no_int8: str) -> str:
    """Writes the page, with the runs at the chosen rates below; returns what to say of it."""
    from repopt.report.page import Overview, write_report

    heads, rows = table_of(found)
    overview = Overview(sentences=said, heads=heads, rows=rows, notes=notes_of(study, found, no_int8), command=command)
    runs = [run_folder(out, each.name, each.lr, seed) for each in found for seed in study.own_seeds]
    finished = [run for run in runs if (run / "summary.json").exists()]
    title = f"{study.model} on {study.data}: which way to train it?"
    try:
        return f"page: {write_report(finished, out / 'compare.html', title=title, overview=overview)}"
    except ImportError as error:
        return f"no page: {error}"
