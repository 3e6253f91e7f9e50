"""The ways to train a network that are compared: a method, and for RepOpt the scales that it takes."""

from dataclasses import dataclass

from repopt.algebra.csla import Convention
from repopt.models import list_models
from repopt.models.references import is_reference
from repopt.plans.choices import instead_of
from repopt.plans.scales import shipped
from repopt.train.methods import LEARN, Method, counterpart

# what --methods takes: `repopt` has the scales of --scales, the others bring their own
WAYS: dict[str, tuple[Method, str | None]] = {
    "sgd": ("sgd", None),
    "dirac": ("dirac", None),
    "repopt": ("repopt", None),
    "repopt:depth": ("repopt", "depth"),
    "repopt:ones": ("repopt", "ones"),
    "repopt:learn": ("repopt", LEARN),
    "branches": ("branches", None),
    "repvgg": ("repvgg", None),
    "qarepvgg": ("qarepvgg", None),
}


@dataclass(frozen=True, kw_only=True)
class Way:
    """How a model is trained.

    Attributes:
        name: a key of `WAYS`.
        method: of the training.
        scales: for RepOpt.
        kernel: how kernels start, where that suits the way better than what the recipe says.
    """

    name: str
    method: Method
    scales: str | None = None
    kernel: Convention | None = None


def chosen_ways(
    model: str, names: tuple[str, ...], scales: str | None = None, default: str = "depth"
) -> tuple[Way, ...]:
    """The ways of these names, or those that fit the model.

    Args:
        model: a name or a reference.
        names: keys of `WAYS`; none for those that fit.
        scales: that were given for the way `repopt`.
        default: its scales otherwise.

    Raises:
        ValueError: there is no such way, one is named twice, or it does not fit the model.
    """
    for name in names:
        if name not in WAYS:
            raise ValueError(f"--methods has no {name!r}: {instead_of(name, WAYS)}")
        if names.count(name) > 1:
            raise ValueError(f"--methods has {name!r} twice: name each once")
    ways = tuple(_way(name, model, scales or default) for name in names or _fitting(model))
    if not is_reference(model):
        for way in ways:
            if counterpart(model, way.method) not in list_models() and model in list_models():
                raise ValueError(f"{model} has no counterpart for the method {way.name}: leave it out of --methods")
    if scales is not None and "repopt" not in (way.name for way in ways):
        raise ValueError("--scales are those of the method repopt: add it to --methods, or leave --scales out")
    return ways


def shipped_scales(model: str, *, changed: bool) -> str | None:
    """The name of the scales that ship for a model; with other options or branches they need not fit it."""
    return model if model in shipped() and not changed else None


def _way(name: str, model: str, scales: str) -> Way:
    method, own = WAYS[name]
    return Way(
        name=name,
        method=method,
        scales=(own or scales) if method == "repopt" else None,
        kernel="paper" if method == "sgd" and model in list_models() else None,  # or the baseline is handicapped
    )


def _fitting(model: str) -> tuple[str, ...]:
    """The real branches of repopt's own models are models of their own; any other network gets them built in."""
    plain = ("sgd", "dirac", "repopt")
    if is_reference(model):
        return *plain, "branches"
    counterpart(model, "repopt")  # which says so of a model that has real branches already
    return *plain, *(name for name in ("repvgg", "qarepvgg") if _has_counterpart(model, name))


def _has_counterpart(model: str, name: str) -> bool:
    try:
        return counterpart(model, WAYS[name][0]) in set(list_models()) - {model}
    except ValueError:
        return False
