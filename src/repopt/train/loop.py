"""The training loop, for search and training alike.

Everything that happens at a step is a function of the recipe and of the step's number: the order of the images, their
augmentation, the learning rate. So a run that is resumed from a checkpoint takes the steps that it would have taken.
"""

import math
import time
import warnings
from collections.abc import Mapping
from contextlib import AbstractContextManager, closing
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from repopt.data import DataSet, EvalBatches, TrainBatches
from repopt.device import arithmetic
from repopt.surgery.conversion import merge
from repopt.train.best_weights import BestWeights
from repopt.train.checkpoint import Position, random_state, set_random_state
from repopt.train.compiling import compiled
from repopt.train.distributed import World
from repopt.train.execution import settled
from repopt.train.methods import Subject, clip_, frozen, make_optimizer, scale_means, searched_scales
from repopt.train.objective import Objective
from repopt.train.progress import Clock, RunProgress, Scalars
from repopt.train.recipe import Recipe, freeze_step, lr_at
from repopt.train.run_folder import RunFolder
from repopt.train.step import TrainStep, evaluate, mixed_share, moving_average, set_lr_
from repopt.train.stopping import DivergedError, StopOnSignal, StoppedError, diverged

_CHECK_EVERY = 100  # steps between reads of the device, for a loss that is not finite
_WARM_STEPS = 3  # after which compilation and capture are done
_SAVE_SHARE = 0.01  # of the time, at the most, goes into checkpoints; the last epoch's is always written


class Trainer:
    """A subject in training: its batches, the optimizer, the step, the moving average.

    Args:
        subject: what is trained, on its device already.
        data: what it is trained on.
        recipe: how.
        folder: the run folder; None on ranks that write nothing.
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
        self.execution = settled(recipe, subject, data, device, self.world)
        self.position = Position.start()
        self._saved_at, self._save_seconds = time.monotonic(), 0.0
        self._warm, self._warmed, self._last_saved = False, 0, "none yet"
        self._best = BestWeights(None if folder is None else folder.path)
        self._scalars = Scalars(None if folder is None else folder.path)
        with self.clock.measure("data"):
            self.batches, self.evaluation = self._make_batches(data)
        self._idle = self.world.has_idle_parameters(subject.model, self.execution.size, data.channels)
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        self.optimizer = self._make_optimizer()
        self.subject = replace(subject, kernels=None)  # the optimizer has its own by now
        self.step = self._make_step()
        self.ema = moving_average(subject.model, recipe.ema)

    def _make_batches(self, data: DataSet) -> tuple[TrainBatches, EvalBatches]:
        recipe, sizes = self.recipe, self.execution
        shared: dict[str, Any] = {"mean": data.mean, "std": data.std, "device": self.device, "workers": recipe.workers}
        shared |= {"rank": self.world.rank, "world_size": self.world.size}
        train = {"batch_size": recipe.batch_size, "size": sizes.size, "seed": recipe.seed, **shared}
        evaluation = {"batch_size": recipe.eval_batch, "size": sizes.eval_size, "share": recipe.eval_share, **shared}
        return TrainBatches(data.train, recipe.augmentation, **train), EvalBatches(data.val, **evaluation)

    def _make_optimizer(self) -> Optimizer:
        first = lr_at(self.recipe, 0, len(self.batches))
        graph = self.execution.graph
        lr = torch.tensor(first, device=self.device) if graph else first
        return make_optimizer(self.subject, self.recipe, lr, graph=graph)

    def _compiled(self, objective: nn.Module) -> nn.Module:
        return compiled(objective, tuned=self.execution.tuned) if self.execution.compiled else objective

    def _make_step(self) -> TrainStep:
        subject, clip = self.subject, self.recipe.clip or math.inf
        subject.model.train()  # not chained: an exported program's returns nothing
        objective: nn.Module = Objective(
            subject.model,
            self.batches.scaling,
            label_smoothing=self.recipe.label_smoothing,
            channels_last=self.execution.channels_last,
        )
        return TrainStep(
            self.world.wrap(self._compiled(objective), self.device, idle=self._idle),
            self.optimizer,
            lambda: clip_(subject, clip),  # without self: a cycle would hold the model's memory
            self.recipe,
            device=self.device,
            graph=self.execution.graph,
        )

    def resume(self) -> bool:
        """Goes back to the last checkpoint, if there is one; the first rank reads it for all."""
        state = self.world.shared(self._last_state)
        if state is None:
            return False
        if state.get("scales") is not None:
            self._freeze(state["scales"])
        self.subject.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self._restore_lr_tensor()
        if self.ema is not None:
            self.ema.load_state_dict(state["ema"])
        self.step.scaler.load_state_dict(state["scaler"])
        self._restore_ranks(state["ranks"])
        self.position = Position(**state["position"])
        self.position.step = min(self.position.step, len(self.batches))  # fewer, if broken images are left out by now
        self.clock = Clock(**state["clock"] | {"data": state["clock"]["data"] + self.clock.data})
        self._note_saved()
        return True

    def _last_state(self) -> dict[str, Any] | None:
        if self.folder is None:
            return None
        state = self.folder.load(self.device if self.world.size == 1 else torch.device("cpu"))
        if state is None:
            if self.folder.lines("metrics.jsonl"):
                warnings.warn(f"{str(self.folder.path)!r} has no checkpoint: the run starts over", stacklevel=2)
            self.folder.forget_after(-1)
            return None
        position = Position(**state["position"])
        if position.epoch + (position.step > 0) > self.recipe.epochs:
            raise ValueError(
                f"the run in {str(self.folder.path)!r} was trained beyond epoch {self.recipe.epochs} already: give it "
                "more --epochs, or none to go on as it was planned, or start another run"
            )
        self.folder.forget_after(position.epoch)
        if position.epoch == self.recipe.epochs:
            self.folder.last_record(position.epoch)  # which its summary is made of
        return state

    def _restore_lr_tensor(self) -> None:
        """A captured graph reads the learning rate from the tensor that it was captured with."""
        for group in self.optimizer.param_groups:
            if self.execution.graph:
                group["lr"] = torch.as_tensor(group["lr"], dtype=torch.float32, device=self.device)

    def _restore_ranks(self, ranks: list[dict[str, Any]]) -> None:
        """Gives each rank its totals and random numbers; another number of ranks shares the totals and draws anew."""
        self.step.totals.restore_([rank["totals"] for rank in ranks], self.world)
        if len(ranks) == self.world.size:
            set_random_state(ranks[self.world.rank]["random"], self.device)

    def arithmetic(self) -> AbstractContextManager[None]:
        """How steps and evaluations compute; around calls of `train_on`."""
        return arithmetic(tf32=self.recipe.precision != "fp32", benchmark=True)

    def fit(self) -> dict[str, Any]:
        """Trains to the end of the recipe, and returns the summary."""
        if self.position == Position.start():
            self._record_scales(0)
        stop = StopOnSignal()
        progress = RunProgress(
            self.subject.method,
            epochs=self.recipe.epochs,
            done=self.position.epoch,
            steps=len(self.batches),
            quiet=self._quiet or not self.world.is_first,
        )
        record: dict[str, Any] = {}
        with self.arithmetic(), closing(self._scalars), stop, progress:
            while self.position.epoch < self.recipe.epochs:
                record = self._epoch(stop, progress)
                progress.epoch(record)
        return self._summary(record)

    def _epoch(self, stop: StopOnSignal, progress: RunProgress) -> dict[str, Any]:
        steps, epoch = len(self.batches), self.position.epoch
        measured_from, trained_before, began = self.position.step, self.clock.train, self.clock.compile
        self._since = time.perf_counter()
        batches = self.batches.pixels(epoch, self.position.step)
        for number, (pixels, labels) in enumerate(batches, start=self.position.step):
            if self.subject.searching and epoch * steps + number >= freeze_step(self.recipe, steps):
                self._check_finite()
                self._count_seconds()
                self._freeze()
                measured_from, trained_before, began = number, self.clock.train, self.clock.compile
            self.train_on(pixels, labels, epoch, number)
            self.position.step = number + 1
            progress.step(epoch * steps + number + 1)
            if self._has_just_warmed_up():
                measured_from, trained_before = number + 1, self.clock.train
            checked = (number + 1) % _CHECK_EVERY == 0 or number + 1 == steps
            self._heed(stop, checked or self.device.type == "cpu")
            if number + 1 < steps and checked and self._is_time_to_save():
                self._count_seconds()
                self._save()
                self._since = time.perf_counter()
        self._check_loss()
        self._count_seconds()
        measured = self.clock.train - trained_before or self.clock.compile - began
        if measured_from == steps:  # all warmed up, or were taken before a stop
            measured_from, measured = 0, self.position.seconds + self.clock.compile - began
        return self._finish_epoch((steps - measured_from) * self.recipe.batch_size / max(measured, 1e-9))

    def _freeze(self, scales: Mapping[str, Mapping[str, Tensor]] | None = None) -> None:
        """Goes on with the plain model, by the scales of a checkpoint, whose weights are loaded next, or by its own."""
        self.optimizer.zero_grad(set_to_none=True)
        scaler, totals = self.step.scaler, self.step.totals
        del self.step  # and what DistributedDataParallel or a CUDA graph hold for it
        self.subject = frozen(self.subject, self.optimizer, scales)
        self.step = self._make_step()
        self.step.scaler, self.step.totals = scaler, totals
        self._warm, self._warmed = False, 0
        if self.ema is not None:
            self.ema.module = merge(self.ema.module, inplace=True)

    def _has_just_warmed_up(self) -> bool:
        """Whether compilation and capture ended with this step; their time is counted apart."""
        late = self.execution.graph or self.execution.compiled
        self._warmed += 1
        if self._warm or not late or self._warmed <= _WARM_STEPS:
            return False
        self.synchronize()
        self._warm = True
        now = time.perf_counter()
        self.clock.compile += now - self._since
        self._since = now
        return True

    def _heed(self, stop: StopOnSignal, all_ranks: bool) -> None:
        """Ends the run if its loss is not finite or a signal asks for it; all ranks must ask at the same steps."""
        if not all_ranks and not (self.world.size == 1 and stop.asked):
            return
        self._check_loss()
        if self.world.any(stop.asked, self.device):
            self._stop(stop)

    def _stop(self, stop: StopOnSignal) -> None:
        """Leaves a checkpoint behind, and the loop."""
        self._count_seconds()
        self._save()
        kept = "" if self.folder is None else f": --resume --out {self.folder.path} goes on from there"
        raise StoppedError(f"stopped by {stop.name or 'another rank'} after {self.position}{kept}", stop.code)

    def _count_seconds(self) -> None:
        """Adds the time since it was last counted to this epoch's and to all training, or to compilation."""
        passed = time.perf_counter() - self._since
        if (self.execution.graph or self.execution.compiled) and not self._warm:
            self.clock.compile += passed
        else:
            self.position.seconds += passed
            self.clock.train += passed
        self._since += passed

    def train_on(self, pixels: Tensor, labels: Tensor, epoch: int, number: int) -> None:
        """Takes one step; its learning rate and mixing follow from its number."""
        steps = len(self.batches)
        set_lr_(self.optimizer, lr_at(self.recipe, epoch * steps + number, steps))
        self.step(pixels, labels, mixed_share(self.recipe, epoch, number, self.device))
        if self.ema is not None:
            self.ema.update_parameters(self.subject.model)

    def _finish_epoch(self, images_per_second: float) -> dict[str, Any]:
        """Evaluates where the recipe says so, records the epoch, and saves."""
        recipe, position, epoch = self.recipe, self.position, self.position.epoch + 1
        record = self._train_record(epoch, images_per_second)
        self.step.totals.values.zero_()
        if epoch % recipe.eval_every == 0 or epoch == recipe.epochs:
            record |= self._evaluated()
            if record["val_accuracy"] > position.best_accuracy:
                position.best_accuracy, position.best_epoch = record["val_accuracy"], epoch
                self._best.take(self.subject.model)
        position.epoch, position.step, position.seconds = epoch, 0, 0.0
        self._record_scales(epoch)
        if self.folder is not None:
            self.folder.append("metrics.jsonl", record)
            self._scalars.write(record)
        if epoch == recipe.epochs or self._is_time_to_save():
            self._save()
        return record

    def _train_record(self, epoch: int, images_per_second: float) -> dict[str, Any]:
        recipe, steps = self.recipe, len(self.batches)
        losses, hits, counted, _ = (self.world.sum(self.step.totals.values) / self.world.size).tolist()
        accuracy = 100 * hits * self.world.size / (counted * recipe.batch_size)
        return {
            "epoch": epoch,
            "step": epoch * steps,
            "lr": lr_at(recipe, epoch * steps - 1, steps),
            "train_loss": losses / counted,
            "train_accuracy": None if recipe.mixup else accuracy,
            "images_per_second": images_per_second,
            "seconds": self.position.seconds,
        }

    def _evaluated(self) -> dict[str, float]:
        with self.clock.measure("eval"):
            score = evaluate(self.subject.model, self.evaluation, self.recipe, device=self.device, world=self.world)
            found = {"val_loss": score.loss, "val_accuracy": score.accuracy}
            if self.ema is not None:
                averaged = evaluate(self.ema.module, self.evaluation, self.recipe, device=self.device, world=self.world)
                found["ema_accuracy"] = averaged.accuracy
        return found

    def _summary(self, record: dict[str, Any]) -> dict[str, Any]:
        last = record or ({} if self.folder is None else self.folder.last_record(self.position.epoch))
        cuda = self.device.type == "cuda"
        return {
            "train_accuracy": last.get("train_accuracy"),
            "val_accuracy": last.get("val_accuracy"),
            "best_val_accuracy": self.position.best_accuracy,
            "best_epoch": self.position.best_epoch,
            "ema_accuracy": last.get("ema_accuracy"),
            "images_per_second": last.get("images_per_second"),
            "peak_memory_bytes": torch.cuda.max_memory_allocated(self.device) if cuda else None,
            "seconds": asdict(self.clock),
            "epochs": self.recipe.epochs,
            "steps": self.recipe.epochs * len(self.batches),
        }

    def _record_scales(self, epoch: int) -> None:
        if self.folder is not None and (self.subject.searching or self.recipe.freeze_at is not None):
            self.folder.append("scales.jsonl", {"epoch": epoch, "scales": scale_means(self.subject)})

    def _frozen_scales(self) -> dict[str, dict[str, Tensor]] | None:
        """The scales that this training has learned, once they are the plain model's constants."""
        learned = self.recipe.freeze_at is not None and not self.subject.searching
        return searched_scales(self.subject) if learned else None

    def _is_time_to_save(self) -> bool:
        """Small models are saved after every epoch, large ones less often where epochs are short."""
        due = self._save_seconds <= _SAVE_SHARE * (time.monotonic() - self._saved_at)
        return self.world.any(due and self.world.is_first, self.device)  # by the first rank's clock

    def _save(self) -> None:
        """Writes a checkpoint: every rank hands in its own part, and the first one writes."""
        start = time.monotonic()
        self._check_finite()
        ranks = self.world.gather({"totals": self.step.totals.values.cpu(), "random": random_state(self.device)})
        self._note_saved()
        if self.folder is None:
            return
        state = {
            "model": self.subject.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scales": self._frozen_scales(),
            "ema": None if self.ema is None else self.ema.state_dict(),
            "scaler": self.step.scaler.state_dict(),
            "ranks": ranks,
            "position": asdict(self.position),
            "clock": asdict(self.clock),
        }
        self._best.write()
        self.folder.save(state)
        self._saved_at = time.monotonic()
        self._save_seconds = self._saved_at - start
        self.clock.save += self._save_seconds

    def _note_saved(self) -> None:
        where = f" in {str(self.folder.path)!r}" if self.folder is not None else ""
        self._last_saved = f"that after {self.position}{where}"

    def _check_loss(self) -> None:
        found = [bad for bad in self.world.gather(self.step.totals.first_bad_step()) if bad is not None]
        if found:
            raise self._diverged("the loss was not finite at", self.position.epoch * len(self.batches) + min(found))

    def _check_finite(self) -> None:
        """Weights that are not finite must not replace a good checkpoint, nor become those of the plain model."""
        self._check_loss()
        finite = torch.stack([param.isfinite().all() for param in self.subject.model.parameters()])
        if not finite.all():
            taken = self.position.epoch * len(self.batches) + self.position.step
            raise self._diverged("the weights were not finite after", taken)

    def _diverged(self, what: str, taken: int) -> DivergedError:
        steps = len(self.batches)
        return diverged(what, taken, steps, lr_at(self.recipe, taken - 1, steps), self._last_saved)

    def synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
