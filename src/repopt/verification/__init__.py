"""The equality, checked: `verify`, and the table of cases that the command and the tests share."""

from repopt.verification.equality import verify

__all__ = ["verify"]
