"""The four trainings whose INT8 forms and kernels are compared: Table 8 and appendix C."""

from pathlib import Path

from paper.jobs import cifar_job, own_scales
from paper.scope import Scope
from paper.workshop import Workshop
from repopt.train.methods import Method
from repopt.train.recipe import Recipe

METHODS: tuple[Method, ...] = ("repopt", "repvgg", "qarepvgg", "sgd")
SIZE = "b0"
EPOCHS = 120


def trained_for_int8(scope: Scope, workshop: Workshop, method: Method, seed: int) -> Path:
    """A run with its weights, on CIFAR-100 by the recipe `small`; plain SGD has He's init, which is better for it."""
    model = scope.model(SIZE)
    scales = own_scales(scope, workshop, model) if method == "repopt" else None
    epochs = {} if scope.quick else {"epochs": EPOCHS, "eval_every": EPOCHS}
    kernel = "paper" if method == "sgd" else Recipe.kernel
    return workshop.run(cifar_job(scope, model, method, seed, scales, kernel=kernel, **epochs), weights=True)
