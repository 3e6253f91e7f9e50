"""Operators are known by the name of their module, without what wrappers put into it."""

from collections.abc import Mapping, Sequence

from torch import nn

WRAPPERS = frozenset({"module", "_orig_mod", "_checkpoint_wrapped_module"})


def clean(name: str) -> str:
    """`module._orig_mod.stage1.0.conv` (DDP around torch.compile) as `stage1.0.conv`."""
    return ".".join(part for part in name.split(".") if part not in WRAPPERS)


def clean_modules(model: nn.Module) -> dict[str, nn.Module]:
    """Every module of the model by its clean name; one that is reached under two names, under both.

    A wrapper and what it wraps share a clean name, which stands for the wrapped module.
    """
    modules: dict[str, nn.Module] = {}
    full_names: dict[str, str] = {}
    for full, module in model.named_modules(remove_duplicate=False):
        name = clean(full)
        known = full_names.get(name)
        if known and not full.startswith(f"{known}."):
            raise ValueError(
                f"the modules {known!r} and {full!r} are both called {name!r} once the names of wrappers are dropped: "
                "rename one of them"
            )
        modules[name], full_names[name] = module, full
    return modules


def check_model(model: object, verb: str) -> None:
    """Raises unless this is a model."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"{verb} takes a model, not a {type(model).__name__}")


def listed(names: Sequence[str] | Mapping[str, object], most: int = 5) -> str:
    """Some names for a sentence, and how many more there are."""
    shown = ", ".join(map(repr, list(names)[:most]))
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
