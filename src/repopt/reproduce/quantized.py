"""The four trainings whose INT8 forms and kernels are compared: Table 8 and appendix C."""

import dataclasses
from pathlib import Path

from repopt.reproduce.jobs import own_scales
from repopt.reproduce.scope import Scope
from repopt.reproduce.workshop import Workshop
from repopt.train.launch import Job
from repopt.train.methods import Method
from repopt.train.recipe import small

METHODS: tuple[Method, ...] = ("repopt", "repvgg", "qarepvgg", "sgd")
SIZE = "b0"
EPOCHS = 120


def trained_for_int8(scope: Scope, workshop: Workshop, method: Method, seed: int) -> Path:
    """A run with its weights, on CIFAR-100 by the recipe `small`."""
    model = scope.model(SIZE)
    scales = own_scales(scope, workshop, model) if method == "repopt" else None
    recipe = scope.adapt(dataclasses.replace(small(), epochs=EPOCHS, eval_every=EPOCHS), seed)
    job = Job(method=method, model=model, data=scope.search_data, recipe=recipe, scales=scales, limit=scope.limit)
    return workshop.run(job, weights=True)
