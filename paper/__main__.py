"""`python -m paper`: from a checkout, the paper's tables and analyses."""

import sys
from importlib import import_module

from repopt.cli import Command, run

# {what a user types: the module and the function}; anything else is the name of a table
_COMMANDS = {
    "kernels": ("analyses", "kernels"),
    "variance": ("analyses", "variance"),
    "scales": ("analyses", "scales"),
    "docs": ("commands", "docs"),
}


def main(args: list[str] | None = None) -> None:
    """Runs a table, or another command where its name comes first."""
    given = sys.argv[1:] if args is None else args
    named = given[0] if given and given[0] in _COMMANDS else None
    module, function = _COMMANDS[named] if named else ("commands", "make")

    def load() -> Command:
        command: Command = getattr(import_module(f"paper.{module}"), function)
        return command

    run(load, given[1:] if named else given, prog=f"python -m paper{f' {named}' if named else ''}")


if __name__ == "__main__":
    main()
