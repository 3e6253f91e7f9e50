"""Options that are one of a few words, and names of which only some are known."""

import difflib
from collections.abc import Iterable

from repopt.plans.wording import joined


def check_choice(name: str, value: object, choices: Iterable[str]) -> None:
    """Raises unless an option has one of the words that it takes."""
    choices = list(choices)
    if value not in choices:
        raise ValueError(f"{name} is {joined(map(repr, choices), 'or')}, not {value!r}")


def instead_of(name: object, known: Iterable[str]) -> str:
    """What to write instead of an unknown name: those that are close to it but for their case, or else any."""
    labels = {each.lower(): each for each in known}
    near = [labels[each] for each in difflib.get_close_matches(str(name).lower(), labels)]
    return f"did you mean {joined(near, 'or')}?" if near else f"choose {joined(labels.values(), 'or')}"
