"""Silence around packages that warn of what is not needed here."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet_logs() -> Iterator[None]:
    """Silences what packages log below an error, such as that others are not installed which are not needed here."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)


@contextmanager
def quiet_torchao() -> Iterator[None]:
    """Silences torchao's warnings of libraries that are not needed here, also those of its import.

    Raises:
        ImportError: it is not installed.
    """
    try:
        with quiet_logs():
            import torchao  # noqa: F401

            yield
    except ModuleNotFoundError as error:
        raise ImportError(
            f"INT8 needs {error.name}, which is not installed: pip install -e '.[int8]' from a checkout"
        ) from error
