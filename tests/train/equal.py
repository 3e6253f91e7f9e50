"""Trains in float64, each rank on its share of a batch, and saves what came out."""

import dataclasses
import os

import torch

from repopt.data import EvalBatches, load_data
from repopt.train.distributed import World, joined
from repopt.train.job import Job
from repopt.train.loop import Trainer
from repopt.train.recipe import demo
from repopt.train.run_folder import RunFolder
from repopt.train.step import evaluate
from repopt.train.training import build

BASE = dataclasses.replace(demo(), epochs=2, batch_size=32, warmup_epochs=0, eval_every=1, eval_batch=5)
SMALL = {"depths": (2, 1, 1, 1)}  # one identity
CASES = {
    "sgd": ("sgd", BASE),
    "repopt": ("repopt", dataclasses.replace(BASE, mixup=0.4, clip=0.5, ema=0.9, label_smoothing=0.1)),
    "repopt-adamw": ("repopt", dataclasses.replace(BASE, optimizer="AdamW", lr=1e-3, clip=0.5)),
    "search": ("search", BASE),
    "learn": ("repopt", dataclasses.replace(BASE, freeze_at=0.5, ema=0.9)),
}


class Doubled:
    """Batches in float64."""

    def __init__(self, batches):
        self._batches = batches
        self.scaling = getattr(batches, "scaling", None)  # of those that are trained on

    def __len__(self):
        return len(self._batches)

    def __iter__(self):
        return ((x.double(), y) for x, y in self._batches)

    def pixels(self, number, start=0):
        return ((x.double(), y) for x, y in self._batches.pixels(number, start))


def train(case, out, parts, world, device):
    method, recipe = CASES[case]
    recipe = dataclasses.replace(recipe, accumulate=parts)
    scales = "ones" if recipe.freeze_at is None else "learn"
    job = Job(method=method, model="repopt_vgg_nano", data="fake:96,4,16", recipe=recipe, scales=scales, options=SMALL)
    data = load_data(job.data)
    subject = build(job, data, device)
    subject.model.double()
    folder = RunFolder(out / case) if world.is_first else None
    run = Trainer(subject, data, recipe, folder, device=device, world=world, quiet=True)
    run.batches, run.evaluation = Doubled(run.batches), Doubled(run.evaluation)
    run.fit()
    if folder is None:
        return
    alone = EvalBatches(data.val, batch_size=5, size=data.size, mean=data.mean, std=data.std, device=device)
    score = evaluate(subject.model, Doubled(alone), recipe, device=device, world=World())
    found = {
        "weights": {name: param.detach() for name, param in subject.model.named_parameters()},
        "records": folder.lines("metrics.jsonl"),
        "alone": dataclasses.asdict(score),
    }
    torch.save(found, out / f"{case}.pt")
    folder.close()


def train_all(folder, parts, env):
    """Trains every case by one rank, its share of a batch in so many parts.

    For each case, folder/CASE.pt holds the first rank's weights, the records of the epochs, and the evaluation of the
    same weights by one process.
    """
    os.environ.update(env)
    torch.set_num_threads(1)
    with joined("cpu") as (world, device):
        for case in CASES:
            train(case, folder, parts, world, device)
