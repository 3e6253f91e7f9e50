"""Numbers, names and errors as parts of a sentence."""

from collections.abc import Iterable, Mapping, Sequence

_SHOWN = 5  # of many names


def counted(number: float, thing: str) -> str:
    """1 seed, 2 seeds, 10,000 images."""
    return f"{number:,.12g} {thing}{'' if number == 1 else 's'}"


def joined(words: Iterable[str], by: str = "and") -> str:
    """a, b and c."""
    *few, last = words
    return f"{', '.join(few)} {by} {last}" if few else last


def listed(names: Sequence[str] | Mapping[str, object]) -> str:
    """Some names, and how many more there are."""
    shown = ", ".join(map(repr, list(names)[:_SHOWN]))
    return shown if len(names) <= _SHOWN else f"{shown} and {len(names) - _SHOWN} more"


def first_line(error: BaseException) -> str:
    """The first line of another library's error, or its class where it says nothing."""
    return str(error).strip().partition("\n")[0] or type(error).__name__
