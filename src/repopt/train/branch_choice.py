r"""Which branches a training imagines: the model's own, a preset, or those of a TOML file.

    'layer\d\.\d\.conv\d$' = ["conv3x3", "conv1x1", "identity"]
    'head\.fc1$' = ["linear", "identity"]

A line gives a regular expression on the names of modules, and the branches of the operators that it matches; the first
match wins. Branches go by the names that `print(plan)` shows: the taps, then `d2` for a dilation and `g8` for groups.
Run folders hold the same, as JSON.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import nn

from repopt.algebra.branches import Branch, Conv, Identity, Linear
from repopt.files import read_toml
from repopt.plans.patterns import clean_modules
from repopt.plans.presets import PRESETS

# a preset, or {regular expression: names of branches}
BranchChoice = str | Mapping[str, Sequence[str]]

DEFAULT = "repvgg"
_CONV = re.compile(r"conv(\d+(?:x\d+)*)(?:d(\d+(?:x\d+)*))?(?:g(\d+))?")


def read_choice(given: str | None) -> BranchChoice | None:
    """What --branches names: a preset, or the content of a TOML file."""
    if given is None or given in PRESETS:
        return given
    path = Path(given)
    if path.suffix != ".toml":
        raise ValueError(f"--branches takes {', '.join(PRESETS)} or a .toml file, not {given!r}")
    if not path.exists():
        raise FileNotFoundError(f"there is no file {given!r} for --branches")
    content = read_toml(path)
    try:
        for names in content.values():
            if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
                raise ValueError('each line must be \'REGULAR EXPRESSION\' = ["conv3x3", "conv1x1", ...]')
        as_branches(content)
    except ValueError as error:
        raise ValueError(f"{given!r} holds no branches: {error}") from error
    return content


def chosen(choice: BranchChoice | None, model: nn.Module) -> BranchChoice | None:
    """The choice for a model; None where it declares its branches itself."""
    declares = hasattr(clean_modules(model)[""], "repopt_branches")
    return DEFAULT if choice is None and not declares else choice


def as_branches(choice: BranchChoice | None) -> str | dict[str, list[Branch]] | None:
    """The choice as `repopt.plan` takes it."""
    if choice is None or isinstance(choice, str):
        return choice
    return {pattern: [_branch(name) for name in names] for pattern, names in choice.items()}


def _branch(name: str) -> Branch:
    if name in ("identity", "linear"):
        return Identity() if name == "identity" else Linear()
    found = _CONV.fullmatch(name)
    if found is None:
        raise ValueError(
            f"there is no branch {name!r}: write conv3x3, conv1x3, conv3x3d2, conv1x1g8, linear or identity"
        )
    taps, dilation, groups = found.groups()
    return Conv(_sizes(taps), dilation=_sizes(dilation or "1"), groups=int(groups) if groups else None)


def _sizes(text: str) -> int | tuple[int, ...]:
    numbers = tuple(map(int, text.split("x")))
    return numbers[0] if len(numbers) == 1 else numbers
