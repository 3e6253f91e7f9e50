"""From a study to figures: what it will take, the trainings in their folders, and what is measured of them.

A training that is finished is not repeated, and one that was interrupted goes on: whatever happens, the same command
carries on.
"""

import gc
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from repopt.bench.inference import inference_speed
from repopt.compare.budget import Cost, Extent, fitted, seconds, shortened
from repopt.compare.settings import Chosen
from repopt.compare.study import Study
from repopt.compare.trials import INFERRED, seconds_of_int8, tried
from repopt.compare.verdict import Measured, best_rate, next_rate
from repopt.compare.ways import Way
from repopt.data import DataSet
from repopt.files import read_as
from repopt.models import as_deployed
from repopt.models.saved import CONFIG
from repopt.plans.wording import counted, first_line
from repopt.quantize import Int8, QuantizeJob, quantize_run
from repopt.quantize.ptq import check_installed
from repopt.quantize.setting import Backend
from repopt.train.checkpoint import remove_checkpoints
from repopt.train.records import Int8Record, RunConfig, RunRecord, read_run
from repopt.train.runs import image_format, load_run
from repopt.train.stopping import DivergedError, StoppedError
from repopt.train.training import train_run
from repopt.verification.waiting import paced

Say = Callable[[str], None]
_BACKENDS: tuple[Backend, ...] = ("onnxruntime", "x86")  # the first that is installed


def prepared(
    study: Study, data: DataSet, *, minutes: float | None, fixed: bool, device: torch.device, say: Say
) -> Chosen:
    """Takes a few steps each way, and chooses what fits into the minutes.

    Args:
        study: what is asked for.
        data: its data.
        minutes: that the comparison may take; as many as it takes if None.
        fixed: whether a way that does not fit the model is an error; it is left out otherwise.
        device: where.
        say: prints a note.
    """
    costs = dict[str, Cost]()
    for way in study.ways:
        try:
            costs[way.name] = tried(study.job(way, study.rates[0], study.recipe.seed), data, device)
        except (ValueError, TypeError) as error:
            if fixed or way.method == "sgd":  # which any model can be trained by: the model or the data is at fault
                raise
            say(f"{way.name} is left out, since {error}")
    int8, quantizing, trouble = _int8(study, data)
    if trouble:
        say(f"INT8 is left out: {trouble}")
    for name, cost in costs.items():
        costs[name] = replace(cost, seed=0.0 if int8 is None else cost.seed + quantizing)
    extent = study.extent if minutes is None else fitted(list(costs.values()), study.extent, minutes)
    chosen = Chosen(
        methods=tuple(costs),
        epochs=extent.epochs,
        seeds=extent.seeds,
        int8=int8,
        no_int8=trouble,
        minutes=seconds(list(costs.values()), extent) / 60,
    )
    if minutes is not None and extent != study.extent:
        say(_about_extent(study.extent, chosen, minutes))
    return chosen


def _about_extent(wanted: Extent, chosen: Chosen, minutes: float) -> str:
    less = [
        f"{getattr(chosen, name)} instead of {getattr(wanted, name)} {name}"
        for name in ("epochs", "seeds")
        if getattr(chosen, name) != getattr(wanted, name)
    ]
    fits = "to fit into" if chosen.minutes <= minutes else "and still more than"
    return f"{' and '.join(less)}, {fits} {counted(minutes, 'minute')}: --minutes gives it more"


def _int8(study: Study, data: DataSet) -> tuple[Backend | None, float, str]:
    """The backend, the seconds that it takes for a model, and why there is none where there is none."""
    trouble = ""
    for backend in _BACKENDS:
        setting = Int8(backend=backend)
        try:
            check_installed(setting)
        except ImportError as error:
            trouble = trouble or str(error)
            continue
        try:
            job = study.job(study.ways[0], study.rates[0], study.recipe.seed)
            return backend, seconds_of_int8(job, data, setting), ""
        except Exception as error:  # of exporters, which raise anything
            trouble = f"{study.model} cannot be quantized ({first_line(error)})"
    return None, 0.0, trouble


def measured(
    study: Study, data: DataSet, out: Path, *, int8: Backend | None, device: torch.device, say: Say
) -> list[Measured]:
    """Trains each way that is not trained yet, and measures it.

    Args:
        study: what is compared, in the extent that was chosen.
        data: its data.
        out: the folder of the run folders.
        int8: the backend; None to leave INT8 out.
        device: where.
        say: prints a line about each training; off a terminal not about those that are over in a few seconds.
    """
    work = _Work(study=study, data=data, out=out, device=device, say=say, progress=paced(say))
    trained = [work.trained(way) for way in study.ways]
    if int8 is None:
        return [each for each, _ in trained]
    say("measuring INT8")  # last, since it leaves the GPU idle
    return [replace(each, int8=work.int8_accuracies(runs, int8)) for each, runs in trained]


def run_folder(out: Path, name: str, rate: float, seed: int) -> Path:
    """Where a training of a way is."""
    return out / f"{name.replace(':', '-')}-lr{rate:g}-seed{seed}"


def _speed(records: list[RunRecord]) -> float | None:
    speeds = [epoch.images_per_second for record in records for epoch in record.epochs if epoch.images_per_second]
    return statistics.median(speeds) if speeds else None


def _peak(record: RunRecord) -> int:
    return (record.summary.peak_memory_bytes if record.summary else None) or 0


@dataclass(frozen=True, kw_only=True)
class _Work:
    study: Study
    data: DataSet
    out: Path
    device: torch.device
    say: Say
    progress: Say

    def trained(self, way: Way) -> tuple[Measured, list[Path]]:
        """What is measured of a way but for INT8, and its runs at the chosen rate."""
        torch.compiler.reset()  # what is compiled serves every rate and seed of a way, and no other way
        study, seeds = self.study, self.study.own_seeds
        first = {rate: self.accuracy(way, rate, seeds[0]) for rate in study.rates}
        while (rate := next_rate(first, study.further)) is not None:
            first[rate] = self.accuracy(way, rate, seeds[0])
        rate = best_rate(first)
        for other in first.keys() - {rate}:
            remove_checkpoints(run_folder(self.out, way.name, other, seeds[0]))  # most of a folder, and of no more use
        others = seeds[1:] if first[rate] is not None else ()
        accuracies = [first[rate], *(self.accuracy(way, rate, seed) for seed in others)]
        finished = [seed for seed, reached in zip(seeds, accuracies, strict=False) if reached is not None]
        runs = [run_folder(self.out, way.name, rate, seed) for seed in finished]
        records = [read_run(run) for run in runs]
        measured = Measured(
            name=way.name,
            rates=dict(sorted(first.items())),
            lr=rate,
            accuracies=tuple(accuracy for accuracy in accuracies if accuracy is not None),
            diverged=accuracies.count(None),
            images_per_second=_speed(records),
            peak_bytes=max((_peak(record) for record in records), default=0) or None,
            inference=self.tried_to(self.inference, "its speed in inference", runs[0]) if runs else None,
            val_images=len(self.data.val),
        )
        return measured, runs

    def accuracy(self, way: Way, rate: float, seed: int) -> float | None:
        """Trains unless that is done already, and returns the accuracy; None if it diverged."""
        folder = run_folder(self.out, way.name, rate, seed)
        lost = folder.with_name(f"{folder.name}.diverged")
        if lost.exists():
            return None
        if (folder / "summary.json").exists():
            return read_run(folder).val_accuracy
        gc.collect()  # an optimizer and what is attached to it hold each other, and would count into the next peak
        start = time.perf_counter()
        try:
            job = self.study.job(way, rate, seed)
            resume = (folder / "recipe.json").exists()
            summary = train_run(job, folder, resume=resume, device=self.device.type, quiet=True, data=self.data)
        except DivergedError as error:
            self.say(f"{way.name}, lr {rate:g}, seed {seed}: {error}")
            lost.touch()
            return None
        except StoppedError as error:
            raise StoppedError(
                f"stopped in {folder.name!r}: the same command goes on from there", error.code
            ) from error
        passed = time.perf_counter() - start
        accuracy = float(summary["val_accuracy"])
        self.progress(f"{way.name}, lr {rate:g}, seed {seed}: accuracy {accuracy:.2f} in {passed:.0f} s")
        return accuracy

    def int8_accuracies(self, runs: Sequence[Path], backend: Backend) -> tuple[float, ...]:
        """The INT8 accuracies of a way's runs; none if one of them cannot be quantized."""
        found = [self.tried_to(partial(self.int8_accuracy, backend=backend), "INT8", run) for run in runs]
        known = tuple(accuracy for accuracy in found if accuracy is not None)
        return known if len(known) == len(runs) else ()

    def int8_accuracy(self, run: Path, backend: Backend) -> float:
        file = run / "int8" / "quantized.json"
        if not file.exists():
            job = QuantizeJob(setting=Int8(backend=backend))
            quantize_run(run, job, device=self.device, quiet=True, trust=self._is_own(run), loaded=self.data)
        return read_as(file, Int8Record).int8_accuracy

    def tried_to(self, measure: Callable[[Path], float], what: str, run: Path) -> float | None:
        """A figure beside the accuracy, for which no comparison is given up: None, and said, if it fails."""
        try:
            return measure(run)
        except Exception as error:  # of exporters and of devices, which raise anything
            self.say(f"{run.name}: {what} is missing, since {first_line(error)}")
            return None

    def inference(self, run: Path) -> float:
        """Images per second of the model as it is deployed."""
        trained = load_run(run, trust=self._is_own(run))
        precision = self.study.recipe.precision
        return inference_speed(
            as_deployed(trained.model),
            batch_size=INFERRED[self.device.type],
            size=image_format(trained)["size"],
            precision="fp32" if precision == "fp16" else precision,
            device=self.device,
            channels=len(trained.config["mean"]),
        )

    def _is_own(self, run: Path) -> bool:
        """Whether the run's model is the one that the user named: then its code may be imported."""
        return read_as(run / CONFIG, RunConfig).model == self.study.model


def within(study: Study, chosen: Chosen) -> Study:
    """The study with the ways, epochs and seeds that were chosen."""
    ways = tuple(way for way in study.ways if way.name in chosen.methods)
    return replace(study, ways=ways, recipe=shortened(study.recipe, chosen.epochs), seeds=chosen.seeds)
