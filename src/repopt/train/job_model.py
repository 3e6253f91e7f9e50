"""The model of a job: made for its data, and checked before it is trained."""

from typing import Any

from torch import nn

from repopt.data import DataSet
from repopt.models import create_model
from repopt.models.references import check_fits, is_reference, offered
from repopt.train.job import Job
from repopt.train.methods import counterpart

_NOT_OPTIONS = frozenset({"kernel", "features_only", "out_indices", "trust"})  # of a model that is to be trained


def created(job: Job, data: DataSet) -> nn.Module:
    """The model that the method trains; one of other code is drawn as that code draws it."""
    name, options = counterpart(job.model, job.method), options_of(job, data)
    if not is_reference(name):
        return create_model(name, kernel=job.recipe.kernel, **options)
    model, size = create_model(name, **options), job.recipe.size or data.size
    for side in dict.fromkeys((size, job.recipe.eval_size or size)):
        check_fits(model, name, shape=(data.channels, side, side), classes=len(data.classes))
    return model


def check_options(job: Job, data: DataSet) -> None:
    """Raises for options of one of repopt's own models that the data, the recipe or a backbone decides about."""
    if is_reference(job.model):
        return
    for option, known in {"num_classes": len(data.classes), "in_chans": data.channels}.items():
        given = job.options.get(option, known)
        if given != known:
            raise ValueError(f"{option} is {known} in this data: leave {option}={given} out of --model-args")
    for option in _NOT_OPTIONS & job.options.keys():
        instead = "give --kernel instead" if option == "kernel" else "a model without it is trained"
        raise ValueError(f"{option} is not for --model-args of a training: {instead}")


def options_of(job: Job, data: DataSet) -> dict[str, Any]:
    named = counterpart(job.model, job.method)
    known = offered(named, num_classes=len(data.classes), in_chans=data.channels, dropout=job.recipe.dropout)
    return {**known, **job.options}
