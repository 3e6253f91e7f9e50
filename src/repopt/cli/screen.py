"""Where commands print."""

from rich.console import Console


class Screen(Console):
    """A console that hands on that nobody reads any more: `run` ends in peace, where rich would end with an error."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError
