"""Tables and lines with made-up numbers, and the smallest jobs."""

from dataclasses import replace

from paper.jobs import Scope, Training
from paper.tables import Table
from paper.view import number
from paper.workshop import FIGURES
from repopt.compare.verdict import Measured
from repopt.train.job import Job
from repopt.train.recipe import demo

QUICK = Scope(quick=True, seeds=(0,))

# of a line of a CSV file, where a test does not say otherwise
_ABOUT = {"train_images": "9469", "val_images": "3925", "size": "96", "epochs": "40", "batch_size": "256"}
_ABOUT |= {"precision": "bf16", "hardware": "NVIDIA H200", "torch": "2.13.0", "date": "2026-11-15", "seed": "0"}


def line(**columns):
    """A line of a CSV file as it is read: texts, empty where nothing is said."""
    return {**dict.fromkeys(FIGURES, ""), **_ABOUT, **{name: str(value) for name, value in columns.items()}}


def squares(hear=lambda number: None):
    """A table of numbers and their squares, which costs nothing; `hear` is called with each that is measured."""
    return Table(
        title="Squares",
        keys=("number", "word", "seed"),
        figures=("square",),
        trainings=[_square(number, word, hear) for number, word in enumerate(("one", "two", "three"), start=1)],
        columns=["word", number("square")],
    )


def _square(number, word, hear):
    def measure(training, scope, seed, workshop):
        hear(number)
        return [{"square": number**2}]

    return Training(key={"number": number, "word": word}, data="", measure=measure)


def small_job(*, epochs=1, images=32, **recipe):
    """Plain SGD on noise, by the recipe `demo` but for these fields."""
    fields = {"batch_size": 16, "lr_batch": 16, "warmup_epochs": 0, "eval_every": 1, "epochs": epochs, **recipe}
    return Job(method="sgd", model="repopt_vgg_nano", data=f"fake:{images},4,16", recipe=replace(demo(), **fields))


def measured_way(name, *accuracies, int8=(), images=10_000, diverged=0):
    """What a comparison measured of one way, seed by seed."""
    first = accuracies[0] if accuracies else None
    return Measured(
        name=name,
        rates={0.1: first},
        lr=0.1,
        accuracies=accuracies,
        diverged=diverged,
        int8=int8,
        val_images=images,
    )
