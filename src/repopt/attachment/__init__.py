"""The Rule of Iteration: an optimizer that exists already is made to train the imagined blocks."""

from repopt.attachment.handle import Handle, attach

__all__ = ["Handle", "attach"]
