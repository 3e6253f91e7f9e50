"""What the models share: steps one after another, one feature map per stage, a classifier on the pooled last one."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args

import torch.nn.functional as F
from torch import Tensor, nn

from repopt.algebra.branches import Branch
from repopt.algebra.csla import Convention, check_convention, draw_
from repopt.models.folding import Foldable
from repopt.plans.choices import check_choice

Pooling = Literal["avg", ""]


class StagedNet(Foldable):
    """A net of named steps and a classifier.

    Args:
        num_classes: outputs; 0 leaves the classifier out.
        in_chans: input channels.
        dropout: probability before the classifier.
        global_pool: `avg`, or nothing: then the head gives the last map.

    Attributes:
        steps: names of the modules that are applied one after another.
        feature_info: channels, reduction and module of the last map of each stage, as timm has it.
        num_features: channels of the last map.
        head_name: of the fully connected layer.
        imagined: the branches that a plain model's operators imagine; a model with real ones has none.
    """

    steps: tuple[str, ...]
    feature_info: list[dict[str, Any]]
    num_features: int
    head_hidden_size: int
    head_name: str
    imagined: Mapping[str, list[Branch]] | None = None

    def __init__(self, *, num_classes: int, in_chans: int, dropout: float, global_pool: Pooling) -> None:
        super().__init__()
        _check_head(num_classes, global_pool)
        if not isinstance(in_chans, int) or in_chans < 1:
            raise ValueError(f"in_chans must be a whole number from 1 on, not {in_chans!r}")
        if not isinstance(dropout, int | float) or not 0 <= dropout < 1:
            raise ValueError(f"dropout must be a number in [0, 1), not {dropout!r}")
        self.num_classes, self.in_chans, self.dropout, self.global_pool = num_classes, in_chans, dropout, global_pool

    def forward_features(self, x: Tensor) -> Tensor:
        """The last map."""
        check_images(x, self.in_chans, self)
        for name in self.steps:
            x = self.get_submodule(name)(x)
        return x

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """The classes' scores from the last map, or what the classifier would be given."""
        x = self.pre_classifier(F.adaptive_avg_pool2d(x, 1) if self.global_pool else x)
        if self.global_pool:
            x = x.flatten(1)
        x = F.dropout(x, self.dropout, self.training)
        return x if pre_logits or not self.num_classes else self.get_classifier()(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_head(self.forward_features(x))

    def repopt_branches(self) -> dict[str, list[Branch]]:
        """The branches that the model's operators imagine."""
        return declared(self.imagined)

    def repopt_depths(self) -> dict[str, int] | None:
        """How deep each operator lies in its stage; None leaves it to the plan."""
        return None

    def pre_classifier(self, x: Tensor) -> Tensor:
        """What happens between the pooling and the classifier."""
        return x

    def get_classifier(self) -> nn.Module:
        return self.get_submodule(self.head_name)

    def reset_classifier(self, num_classes: int, global_pool: Pooling | None = None) -> None:
        """Puts a new classifier on top, for another number of classes.

        Args:
            num_classes: outputs; 0 leaves the classifier out.
            global_pool: `avg`, or nothing; as it was unless given.
        """
        pooling = self.global_pool if global_pool is None else global_pool
        _check_head(num_classes, pooling)
        self.num_classes, self.global_pool = num_classes, pooling
        param = next(self.parameters())
        head = nn.Linear(self.head_hidden_size, num_classes) if num_classes else nn.Identity()
        setattr(self, self.head_name, head.to(param.device, param.dtype).train(self.training))


class Stride(NamedTuple):
    """A stride, the dilation of the convolution that takes it, and of those behind it."""

    stride: int
    dilation: int
    dilation_after: int


def dilated(strides: Sequence[int], output_stride: int | None) -> list[Stride]:
    """Strides with those beyond the output stride turned into dilation, at the same receptive fields.

    At every d-th pixel of a dilated map stands what the map without dilation has there, where d is the dilation.

    Args:
        strides: in the order of the layers that take them.
        output_stride: the largest reduction: 8, 16 or 32; None for no dilation.
    """
    if output_stride not in (None, 8, 16, 32):
        raise ValueError(f"output_stride is 8, 16 or 32, not {output_stride!r}: how many times smaller the last map is")
    taken, reduction, dilation = [], 1, 1
    for stride in strides:
        if output_stride is None or reduction * stride <= output_stride:
            reduction *= stride
            taken.append(Stride(stride, dilation, dilation))
        else:
            taken.append(Stride(1, dilation, dilation * stride))
            dilation *= stride
    return taken


def check_images(x: object, channels: int, net: nn.Module) -> None:
    """Raises unless this is a batch of images with the net's channels."""
    if not isinstance(x, Tensor):
        return  # torch.fx traces with a stand-in that has no shape to look at
    if x.ndim != 4 or x.shape[1] != channels or min(x.shape[2:]) < 1:
        raise ValueError(
            f"{type(net).__name__} takes images of shape (batch, {channels}, height, width), not {tuple(x.shape)}"
        )


def declared(imagined: Mapping[str, list[Branch]] | None) -> dict[str, list[Branch]]:
    """The branches to plan with."""
    if imagined is None:
        raise ValueError(
            "this model has real branches and declares none to imagine: plan a plain model, or give "
            "plan(model, {pattern: [branches]})"
        )
    return dict(imagined)


def draw_convolutions_(model: nn.Module, kernel: Convention) -> None:
    """Draws the kernels of all convolutions by a convention; torch has drawn them by the authors' already."""
    check_convention(kernel)
    if kernel == "authors":
        return
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            draw_(module.weight, kernel)


def _check_head(num_classes: int, global_pool: str) -> None:
    if not isinstance(num_classes, int) or num_classes < 0:
        raise ValueError(f"num_classes must be a whole number from 0 on, not {num_classes!r}")
    check_choice("global_pool", global_pool, get_args(Pooling))
    if num_classes and not global_pool:
        raise ValueError("a classifier needs pooled features: give global_pool='avg', or num_classes=0")
