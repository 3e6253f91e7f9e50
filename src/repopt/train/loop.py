"""The loop, for search and training alike.

Everything that happens at a step is a function of the recipe and of the step's number: the order of the images, their
augmentation, the learning rate. So a run that goes on from a checkpoint takes the steps that it would have taken.
"""

import math
import time
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from repopt.data import DataSet, EvalBatches, ImageFiles, TrainBatches
from repopt.device import allow_tf32
from repopt.surgery.conversion import search_blocks
from repopt.train.checkpoint import load_checkpoint, random_state, save_checkpoint, set_random_state
from repopt.train.clock import Clock
from repopt.train.distributed import World
from repopt.train.evaluation import evaluate
from repopt.train.methods import Subject, can_be_captured, clip_, make_optimizer
from repopt.train.progress import RunProgress
from repopt.train.recipe import Recipe
from repopt.train.runs import RunFolder
from repopt.train.schedule import lr_at
from repopt.train.signals import StopOnSignal, StoppedError
from repopt.train.step import TrainStep
from repopt.train.tensorboard import scalar_writer

_LOOK_EVERY = 100  # steps between looks at the device, for a loss that is not finite
_SAVE_SHARE = 0.01  # of the time, at the most, goes into checkpoints; the last epoch's is always written


class DivergedError(RuntimeError):
    """A loss or weights that are not finite ended the run."""


@dataclass
class Position:
    """How far a run is: whole epochs, steps of the next one, and the seconds that these took."""

    epoch: int = 0
    step: int = 0
    seconds: float = 0.0
    best_accuracy: float = -1.0
    best_epoch: int = 0


class Run:
    """A subject in training: the model as it is called, the optimizer, the step, the average.

    Args:
        subject: what is trained, on its device already.
        data: on what.
        recipe: how.
        folder: where to; None on the ranks that write nothing.
        device: of the subject.
        world: the processes.
        clock: where the time went so far.
        quiet: show no progress.
    """

    def __init__(
        self,
        subject: Subject,
        data: DataSet,
        recipe: Recipe,
        folder: RunFolder | None,
        *,
        device: torch.device,
        world: World | None = None,
        clock: Clock | None = None,
        quiet: bool = False,
    ) -> None:
        self.subject, self.recipe, self.folder, self.device = subject, recipe, folder, device
        self.world, self.clock, self._quiet = world or World(), clock or Clock(), quiet
        self.position = Position()
        self._saved_at, self._save_seconds = time.monotonic(), 0.0
        self._warm, self._last_saved = False, "none yet"
        self._write_scalars = scalar_writer(None if folder is None else folder.path)
        if recipe.batch_size % (self.world.size * recipe.accumulate):
            raise ValueError(
                f"a batch of {recipe.batch_size} cannot be computed by {self.world.size} processes in "
                f"{recipe.accumulate} equal parts each"
            )
        size = recipe.size or data.size
        shared: dict[str, Any] = {"mean": data.mean, "std": data.std, "device": device, "workers": recipe.workers}
        shared |= {"rank": self.world.rank, "world_size": self.world.size}
        with self.clock.measure("data"):
            self.batches = TrainBatches(
                data.train,
                recipe.augmentation,
                batch_size=recipe.batch_size,
                size=size,
                seed=recipe.seed,
                **shared,
            )
            self.evaluation = EvalBatches(
                data.val, batch_size=recipe.eval_batch, size=recipe.eval_size or size, **shared
            )
        cuda = device.type == "cuda"
        static = cuda and self.world.size == 1 and recipe.precision != "fp16" and not isinstance(data.train, ImageFiles)
        static = static and can_be_captured(subject, recipe)
        self.graph = static if recipe.graph is None else recipe.graph
        self.compiled = cuda if recipe.compile is None else recipe.compile
        self.channels_last = cuda if recipe.channels_last is None else recipe.channels_last
        if self.graph and not static:
            raise ValueError(
                "only a step on one CUDA device, with data held there, another precision than fp16 and an optimizer "
                "that torch calls capturable, can be replayed as a graph: leave --graph out"
            )
        if cuda:
            torch.cuda.reset_peak_memory_stats(device)
            torch.backends.cudnn.benchmark = True
            allow_tf32(recipe.precision != "fp32")
        first_lr = lr_at(recipe, 0, len(self.batches))
        lr = torch.tensor(first_lr, device=device) if self.graph else first_lr
        self.optimizer = make_optimizer(subject, recipe, lr, device=device, graph=self.graph)
        model = subject.model
        model.train()  # not chained: an exported program's returns nothing
        called = torch.compile(model) if self.compiled else model
        self.step = TrainStep(
            self.world.wrap(called, device),  # type: ignore[arg-type]
            self.optimizer,
            lambda: clip_(subject, recipe.clip or math.inf),
            recipe,
            device=device,
            graph=self.graph,
        )
        average = get_ema_multi_avg_fn(recipe.ema)  # type: ignore[no-untyped-call]
        self.ema = AveragedModel(model, multi_avg_fn=average, use_buffers=True) if recipe.ema else None

    def resume(self) -> bool:
        """Goes back to the last checkpoint, if there is one; the first rank reads it for all."""
        state = self.world.shared(self._last_state)
        if self.folder is not None:
            self.folder.forget_after(-1 if state is None else state["position"]["epoch"])
        if state is None:
            return False
        self.subject.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self._restore_lr_tensor()
        if self.ema is not None:
            self.ema.load_state_dict(state["ema"])
        self.step.scaler.load_state_dict(state["scaler"])
        self._restore_ranks(state["ranks"])
        self.position = Position(**state["position"])
        self.clock = Clock(**state["clock"])
        self._note_saved()
        return True

    def _last_state(self) -> dict[str, Any] | None:
        if self.folder is None:
            return None
        return load_checkpoint(self.folder.path, self.device if self.world.size == 1 else torch.device("cpu"))

    def _restore_ranks(self, ranks: list[dict[str, Any]]) -> None:
        """Totals and random numbers are each rank's own; as many other ranks share the totals and draw anew."""
        if len(ranks) == self.world.size:
            own = ranks[self.world.rank]
            self.step.totals.values.copy_(own["totals"])
            set_random_state(own["random"], self.device)
            return
        losses, hits, counted, good = torch.stack([rank["totals"] for rank in ranks]).mean(0)
        hits = hits * len(ranks) / self.world.size
        self.step.totals.values.copy_(torch.stack([losses, hits, counted, good]))

    def fit(self) -> dict[str, Any]:
        """Trains to the end of the recipe, and says what came out."""
        recipe, steps = self.recipe, len(self.batches)
        if self.position == Position():
            self._record_scales(0)
        stop = StopOnSignal()
        title = self.subject.method
        progress = RunProgress(
            title,
            epochs=recipe.epochs,
            done=self.position.epoch,
            steps=steps,
            quiet=self._quiet or not self.world.is_first,
        )
        record: dict[str, Any] = {}
        with stop, progress:
            while self.position.epoch < recipe.epochs:
                record = self._epoch(stop, progress)
                progress.epoch(record)
        return self._summary(record)

    def _epoch(self, stop: StopOnSignal, progress: RunProgress) -> dict[str, Any]:
        recipe, steps, epoch = self.recipe, len(self.batches), self.position.epoch
        measured_from, trained_before = self.position.step, self.clock.train
        self._since = time.perf_counter()
        for number, (x, y) in enumerate(self.batches.epoch(epoch, self.position.step), start=self.position.step):
            self.train_on(x, y, epoch, number)
            self.position.step = number + 1
            progress.step(epoch * steps + number + 1)
            if not self._warm and self._is_warm(number - measured_from):
                self.synchronize()
                self._warm = True
                self.clock.compile += time.perf_counter() - self._since
                measured_from, trained_before, self._since = number + 1, self.clock.train, time.perf_counter()
            looks = (number + 1) % _LOOK_EVERY == 0 or number + 1 == steps
            if looks or self.device.type == "cpu":
                self._check_finite()
                if self.world.any(stop.asked, self.device):
                    self._stop(stop)
            elif self.world.size == 1 and stop.asked:
                self._check_finite()
                self._stop(stop)
            if number + 1 < steps and looks and self._is_time_to_save():
                self._count_seconds()
                self._save()
                self._since = time.perf_counter()
        self._check_finite()
        self._count_seconds()
        measured = self.clock.train - trained_before
        return self._finish_epoch((steps - measured_from) * recipe.batch_size / max(measured, 1e-9))

    def _count_seconds(self) -> None:
        """Adds what has passed since they were last counted to the seconds of this epoch, and of all training."""
        passed = time.perf_counter() - self._since
        if (self.graph or self.compiled) and not self._warm:
            self.clock.compile += passed
        else:
            self.position.seconds += passed
            self.clock.train += passed
        self._since += passed

    def train_on(self, x: Tensor, y: Tensor, epoch: int, number: int) -> None:
        """Takes one step, the learning rate and mixing of which follow from its number."""
        steps = len(self.batches)
        self._set_lr(lr_at(self.recipe, epoch * steps + number, steps))
        images = x.contiguous(memory_format=torch.channels_last) if self.channels_last else x
        self.step(images, y, self._mix(epoch, number))
        if self.ema is not None:
            self.ema.update_parameters(self.subject.model)

    def _finish_epoch(self, images_per_second: float) -> dict[str, Any]:
        recipe, steps, epoch = self.recipe, len(self.batches), self.position.epoch + 1
        losses, hits, counted, _ = (self.world.sum(self.step.totals.values) / self.world.size).tolist()
        record: dict[str, Any] = {
            "epoch": epoch,
            "step": epoch * steps,
            "lr": lr_at(recipe, epoch * steps - 1, steps),
            "train_loss": losses / counted,
            "train_accuracy": 100 * hits * self.world.size / (counted * recipe.batch_size)
            if not recipe.mixup
            else None,
            "images_per_second": images_per_second,
            "seconds": self.position.seconds,
        }
        self.step.totals.values.zero_()
        if epoch % recipe.eval_every == 0 or epoch == recipe.epochs:
            record |= self._evaluated()
            if record["val_accuracy"] > self.position.best_accuracy:
                self.position.best_accuracy, self.position.best_epoch = record["val_accuracy"], epoch
        self.position.epoch, self.position.step, self.position.seconds = epoch, 0, 0.0
        self._record_scales(epoch)
        if self.folder is not None:
            self.folder.append("metrics.jsonl", record)
            self._write_scalars(record)
        if epoch == recipe.epochs or self._is_time_to_save():
            self._save()
        return record

    def _evaluated(self) -> dict[str, float]:
        with self.clock.measure("eval"):
            score = evaluate(self.subject.model, self.evaluation, self.recipe, device=self.device, world=self.world)
            found = {"val_loss": score.loss, "val_accuracy": score.accuracy}
            if self.ema is not None:
                averaged = evaluate(self.ema.module, self.evaluation, self.recipe, device=self.device, world=self.world)
                found["ema_accuracy"] = averaged.accuracy
        return found

    def _summary(self, record: dict[str, Any]) -> dict[str, Any]:
        last = record or (self.folder.lines("metrics.jsonl")[-1] if self.folder is not None else {})
        cuda = self.device.type == "cuda"
        return {
            "val_accuracy": last.get("val_accuracy"),
            "best_val_accuracy": self.position.best_accuracy,
            "best_epoch": self.position.best_epoch,
            "images_per_second": last.get("images_per_second"),
            "peak_memory_bytes": torch.cuda.max_memory_allocated(self.device) if cuda else None,
            "seconds": asdict(self.clock),
            "epochs": self.recipe.epochs,
            "steps": self.recipe.epochs * len(self.batches),
        }

    def _is_time_to_save(self) -> bool:
        """Checkpoints of small models are written every epoch, those of large ones less often than short epochs end."""
        due = self._save_seconds <= _SAVE_SHARE * (time.monotonic() - self._saved_at)
        return self.world.any(due and self.world.is_first, self.device)  # by the first rank's clock

    def _save(self) -> None:
        """Writes a checkpoint; every rank gives what is its own, the first one writes."""
        start = time.monotonic()
        self._check_weights()
        own = {"totals": self.step.totals.values.cpu(), "random": random_state(self.device)}
        ranks = self.world.gather(own)
        self._note_saved()
        if self.folder is None:
            return
        state = {
            "model": self.subject.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "ema": None if self.ema is None else self.ema.state_dict(),
            "scaler": self.step.scaler.state_dict(),
            "ranks": ranks,
            "position": asdict(self.position),
            "clock": asdict(self.clock),
        }
        save_checkpoint(self.folder.path, state)
        self._saved_at = time.monotonic()
        self._save_seconds = self._saved_at - start
        self.clock.save += self._save_seconds

    def _note_saved(self) -> None:
        where = f" in {str(self.folder.path)!r}" if self.folder is not None else ""
        self._last_saved = f"that after {self._where()}{where}"

    def _where(self) -> str:
        """How far the run is, in words."""
        if not self.position.step:
            return f"epoch {self.position.epoch}"
        return f"step {self.position.step} of epoch {self.position.epoch + 1}"

    def _record_scales(self, epoch: int) -> None:
        if self.subject.method != "search" or self.folder is None:
            return
        searched = {name: block.searched() for name, block in search_blocks(self.subject.model).items()}
        flat = iter(torch.stack([scale.mean() for its in searched.values() for scale in its.values()]).tolist())
        means = {name: {branch: next(flat) for branch in its} for name, its in searched.items()}
        self.folder.append("scales.jsonl", {"epoch": epoch, "scales": means})

    def _mix(self, epoch: int, step: int) -> Tensor | None:
        if not self.recipe.mixup:
            return None
        share = np.random.default_rng((self.recipe.seed, epoch, step)).beta(self.recipe.mixup, self.recipe.mixup)
        return torch.tensor(share, dtype=torch.float32, device=self.device)

    def _set_lr(self, lr: float) -> None:
        for group in self.optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(lr)
            else:
                group["lr"] = lr

    def _restore_lr_tensor(self) -> None:
        """A captured graph reads the learning rate from the tensor that it was captured with."""
        for group in self.optimizer.param_groups:
            if self.graph:
                group["lr"] = torch.as_tensor(group["lr"], dtype=torch.float32, device=self.device)

    def _is_warm(self, taken: int) -> bool:
        """Whether these steps have put compilation and capture behind us; on a CPU without either, they always were."""
        return (self.graph or self.compiled) and taken >= 3

    def _check_finite(self) -> None:
        found = [bad for bad in self.world.gather(self.step.totals.first_bad_step()) if bad is not None]
        if found:
            raise self._not_finite("the loss was not finite at", self.position.epoch * len(self.batches) + min(found))

    def _check_weights(self) -> None:
        """A checkpoint of weights that are not finite would take the place of a good one."""
        finite = torch.stack([param.isfinite().all() for param in self.subject.model.parameters()])
        if not finite.all():
            taken = self.position.epoch * len(self.batches) + self.position.step
            raise self._not_finite("the weights were not finite after", taken)

    def _not_finite(self, what: str, taken: int) -> DivergedError:
        steps = len(self.batches)
        epoch, step = divmod(taken - 1, steps)
        return DivergedError(
            f"{what} step {step + 1} of epoch {epoch + 1}, where the learning rate was "
            f"{lr_at(self.recipe, taken - 1, steps):.4g}: the last good checkpoint is {self._last_saved}; try a lower "
            "lr, a longer warm-up, or clip"
        )

    def _stop(self, stop: StopOnSignal) -> None:
        """Leaves a checkpoint behind, and the loop."""
        self._count_seconds()
        self._save()
        kept = "" if self.folder is None else f": go on with --resume --out {self.folder.path}"
        raise StoppedError(f"stopped by {stop.name or 'another rank'} after {self._where()}{kept}", stop.code)

    def synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
