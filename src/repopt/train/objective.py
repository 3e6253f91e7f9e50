"""From pixels to the loss: what a training step differentiates, as one module.

Normalization, mixing and the memory format are part of it. Compiled, they become one pass that reads bytes and writes
what the first convolution takes, and the loss a few kernels instead of a dozen.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from repopt.data.augment import scaled


class Objective(nn.Module):
    """A model with its loss.

    Args:
        model: takes normalized images and gives logits.
        scaling: factor and summand that normalize pixels, as `repopt.data.augment.scaling` makes them.
        label_smoothing: share of the target that is spread over all classes.
        channels_last: memory format of the images.
    """

    factor: Tensor
    summand: Tensor

    def __init__(
        self, model: nn.Module, scaling: tuple[Tensor, Tensor], *, label_smoothing: float, channels_last: bool
    ) -> None:
        super().__init__()
        self.model = model
        for name, value in zip(("factor", "summand"), scaling, strict=True):
            self.register_buffer(name, value, persistent=False)
        self._smoothing = label_smoothing
        self._layout = torch.channels_last if channels_last else torch.contiguous_format

    def forward(self, pixels: Tensor, labels: Tensor, mix: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The mean loss, and how many images have their label as the highest logit.

        Args:
            pixels: (N, C, H, W), from 0 to 255.
            labels: (N,).
            mix: share of each image that is its own; the rest is the image at the batch's other end.
        """
        x = scaled(pixels, self.factor, self.summand)
        if mix is not None:
            x = mix * x + (1 - mix) * x.flip(0)
        logits = self.model(x.contiguous(memory_format=self._layout))
        logits = logits.float() if logits.dtype in (torch.bfloat16, torch.float16) else logits
        loss = F.cross_entropy(logits, labels, label_smoothing=self._smoothing)
        if mix is not None:
            other = F.cross_entropy(logits, labels.flip(0), label_smoothing=self._smoothing)
            loss = mix * loss + (1 - mix) * other
        return loss, (logits.detach().argmax(1) == labels).sum()
