"""`python -m paper`: from a checkout, the paper's tables and analyses."""

import sys
from collections.abc import Mapping

from paper.analyze import analyze_kernels, analyze_scales, analyze_variance
from paper.reproducing import reproduce
from repopt.cli import Command, run

ANALYSES: Mapping[str, Command] = {"kernels": analyze_kernels, "variance": analyze_variance, "scales": analyze_scales}


def main(args: list[str] | None = None) -> None:
    """Runs a table, or an analysis where its name comes first."""
    given = sys.argv[1:] if args is None else args
    if given and given[0] in ANALYSES:
        run(lambda: ANALYSES[given[0]], given[1:], prog=f"python -m paper {given[0]}")
    run(lambda: reproduce, given, prog="python -m paper")


if __name__ == "__main__":
    main()
