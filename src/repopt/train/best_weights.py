"""best.safetensors: the weights of the epoch with the highest validation accuracy, beside the last ones."""

from pathlib import Path

from torch import Tensor, nn

from repopt.files import write_sealed
from repopt.surgery.blocks import LinearAdditionBlock
from repopt.surgery.conversion import merge

BEST = "best.safetensors"


def finished_model(model: nn.Module) -> nn.Module:
    """The model that a run leaves behind: the branches of a search and of real blocks are merged."""
    if not any(isinstance(module, LinearAdditionBlock) for module in model.modules()):
        return model
    return merge(model)


class BestWeights:
    """Holds the best weights of a run on the CPU until its next checkpoint, and is written before it.

    Args:
        folder: the run's; None on ranks that write nothing.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._state: dict[str, Tensor] = {}

    def take(self, model: nn.Module) -> None:
        """Notes the weights as they are now."""
        if self._folder is not None:
            state = finished_model(model).state_dict()
            self._state = {name: value.detach().to("cpu", copy=True) for name, value in state.items()}

    def write(self) -> None:
        if self._folder is not None and self._state:
            write_sealed(self._folder / BEST, self._state)
            self._state = {}
