"""Models by reference: `timm:NAME`, `torchvision:NAME`, or `package.module:factory` for one of your own.

A factory is a function or class that returns a module. To find it, its module is imported, also from the working
directory: that one is searched last, so that it hides no installed package, and only while the model is made.
"""

import difflib
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.lazy import LazyModuleMixin

from repopt.plans.copying import copied
from repopt.plans.wording import first_line

Factory = Callable[..., Any]

# what these libraries do with such an argument is to read weights from a file or the internet
_WEIGHTS = ("weights", "weights_backbone", "checkpoint_path", "cache_dir")
_FORMS = "timm:NAME, torchvision:NAME or package.module:factory"


def is_reference(name: str) -> bool:
    """Whether a model's name is a reference to code outside of repopt."""
    return ":" in name


def is_own(name: str) -> bool:
    """Whether a model's name is a reference to code that is no library's."""
    return is_reference(name) and name.partition(":")[0] not in _LIBRARIES


def source_of(name: str) -> Path | None:
    """The file that a factory of one's own stands in; None where there is none, as for models of repopt."""
    if not is_own(name):
        return None
    try:
        file = inspect.getsourcefile(inspect.unwrap(_factory(name)))
    except TypeError:  # written in C
        return None
    return Path(file) if file and Path(file).is_file() else None  # which a module in an archive has not


def check_trust(reference: str, folder: object, *, trust: bool) -> None:
    """Raises if a reference that was read from a folder would import code that nobody vouches for."""
    if is_own(reference) and not trust:
        raise ValueError(
            f"loading {str(folder)!r} would import {reference} and so execute its code: give --trust (in Python "
            "trust=True) if the folder is yours, or you trust whoever wrote it"
        )


def offered(name: str, *, num_classes: int, in_chans: int, dropout: float | None) -> dict[str, Any]:
    """The options of a model that follow from its data and recipe, as far as its factory takes them.

    A factory of one's own is asked by its signature. What it does not take is its own affair: `check_fits` compares the
    outputs.
    """
    options = {"num_classes": num_classes, "in_chans": in_chans}
    if not is_reference(name):
        return options if dropout is None else {**options, "dropout": dropout}
    library = name.partition(":")[0]
    if library == "timm":
        return options if dropout is None else {**options, "drop_rate": dropout}
    taken = {"num_classes": True} if library == "torchvision" else _taken(_factory(name))
    found = {option: value for option, value in options.items() if taken.get(option)}
    return found if dropout is None else {**found, "dropout": dropout}


def make_referenced(reference: str, options: Mapping[str, Any]) -> nn.Module:
    """The model that a reference names.

    Args:
        reference: `timm:NAME`, `torchvision:NAME` or `package.module:factory`.
        options: arguments of the factory.

    Raises:
        ImportError: the library is not installed.
        ValueError: there is no such model or factory, or it does not take the options.
        TypeError: what it returns is no module.
    """
    if reference.partition(":")[0] in _LIBRARIES:
        _check_plain(reference, options)
    with _working_directory_last():
        factory = _factory(reference)
        try:
            made = factory(**options)
        except Exception as error:  # of any code at all
            given = ", ".join(f"{name}={value!r}" for name, value in options.items())
            raise ValueError(f"{reference} cannot be made{given and f' with {given}'}: {_reason(error)}") from error
    if not isinstance(made, nn.Module):
        raise TypeError(f"{reference} returns a {type(made).__name__}: a model's factory must return a torch module")
    return made


@torch.no_grad()
def check_fits(model: nn.Module, reference: str, *, shape: tuple[int, int, int], classes: int) -> None:
    """Raises unless a model can be saved, takes the data's images and puts out a number for each of its classes.

    Args:
        model: as it was made; a copy is tried, in train mode.
        reference: its name, for the sentence.
        shape: of an image: channels, height, width.
        classes: how many.
    """
    for module in model.modules():
        if isinstance(module, LazyModuleMixin) and module.has_uninitialized_params():
            kind = type(module).__name__
            raise ValueError(f"{reference} has lazy modules ({kind}): let its factory run one batch through it")
    extra = next((key for key, value in model.state_dict().items() if not isinstance(value, Tensor)), None)
    if extra is not None:
        raise ValueError(
            f"{reference} has {extra!r} in its state dict, which is no tensor, and a run saves tensors alone: keep it "
            "in a buffer, or out of get_extra_state"
        )
    size, tried = " x ".join(map(str, shape)), copied(model, training=True)
    try:
        found = tried(torch.zeros(2, *shape))
    except Exception as error:  # of any code at all
        raise ValueError(f"{reference} does not take images of {size} ({_reason(error)})") from error
    if not isinstance(found, Tensor):
        raise TypeError(f"{reference} returns a {type(found).__name__} in training: it must be one tensor of logits")
    if tuple(found.shape) != (2, classes):
        raise ValueError(
            f"{reference} returns {tuple(found.shape)} for 2 images of {size}, and the data has {classes} classes: let "
            "its factory take num_classes, or give the number by --model-args"
        )


def _factory(reference: str) -> Factory:
    home, _, name = reference.partition(":")
    if home in _LIBRARIES:
        return _LIBRARIES[home](name)
    if not all(part.isidentifier() for part in [*home.split("."), *name.split(".")]):
        raise ValueError(f"there is no model {reference!r}: write {_FORMS}")
    with _working_directory_last():
        module = _module(home)
    try:
        found: Any = attrgetter(name)(module)
    except AttributeError as error:
        near = difflib.get_close_matches(name, vars(module), n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        file = getattr(module, "__file__", None)  # none of a folder, nor of what is built into Python
        home_of_it = f" in {file!r}" if file else ""
        raise ValueError(f"the module {home!r}{home_of_it} has no {name!r}{hint}") from error
    if isinstance(found, nn.Module) or not callable(found):
        kind = "a model already" if isinstance(found, nn.Module) else f"a value of type {type(found).__name__}"
        raise ValueError(f"{reference} is {kind}: name a function or class that returns a new model")
    factory: Factory = found
    return factory


def _module(name: str) -> ModuleType:
    importlib.invalidate_caches()  # the file may be new
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise ValueError(f"there is no module {error.name!r} here, and none that is installed") from error
        raise ImportError(f"{name!r} needs {error.name}, which is not installed") from error
    except Exception as error:  # of any code at all
        raise ValueError(f"{name!r} cannot be imported ({type(error).__name__}: {_reason(error)})") from error


@contextmanager
def _working_directory_last() -> Iterator[None]:
    here = os.getcwd()
    sys.path.append(here)
    try:
        yield
    finally:
        del sys.path[len(sys.path) - 1 - sys.path[::-1].index(here)]


def _taken(factory: Factory) -> dict[str, bool]:
    """Which options a factory takes by name; one that passes on whatever it is given takes num_classes."""
    try:
        parameters = inspect.signature(factory).parameters.values()
    except ValueError:  # written in C
        return {}
    named = {each.name: each.kind not in (each.POSITIONAL_ONLY, each.VAR_POSITIONAL) for each in parameters}
    return {"num_classes": any(each.kind == each.VAR_KEYWORD for each in parameters), **named}


def _check_plain(reference: str, options: Mapping[str, Any]) -> None:
    """Raises for arguments that would load weights, or that no command line can give."""
    for name, value in options.items():
        if name in _WEIGHTS or name.startswith("pretrained"):
            raise ValueError(f"{reference} is made without weights: leave {name} out, and give --weights a file")
        if not isinstance(value, bool | int | float | str | tuple):
            raise ValueError(f"{name} of {reference} must be a number, true, false or text, not {value!r}")


def _timm(name: str) -> Factory:
    timm = _library("timm")
    if not timm.is_model(name):
        raise ValueError(_unknown("timm", name, timm.list_models()))
    return partial(timm.create_model, name)


def _torchvision(name: str) -> Factory:
    models = _library("torchvision").models
    known = models.list_models(module=models)  # those for classification
    if name not in known:
        raise ValueError(_unknown("torchvision", name, known))
    return partial(models.get_model, name)


_LIBRARIES: Mapping[str, Callable[[str], Factory]] = {"timm": _timm, "torchvision": _torchvision}


def _library(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = (error.name or name).partition(".")[0]
        raise ImportError(
            f"{name}: models need {missing}, not installed here: pip install -e '.[timm]' from a checkout"
        ) from error
    except RuntimeError as error:  # a CUDA build of torchvision beside a CPU build of torch
        raise ImportError(f"{name} is installed, but its import fails ({_reason(error)}): mend that first") from error


def _unknown(library: str, name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known)
    return f"{library} has no model {name!r}" + (f"; it has {', '.join(near)}" if near else "")


def _reason(error: BaseException) -> str:
    return first_line(error).replace("()", "")
