"""RepVGG, the baseline: the real three branches, each with its own batch norm, and the conversion afterwards.

    train     Y  =  BN(X * W_3x3) + BN(X * W_1x1) + BN(X)
    deploy    Y  =  X * ( sum_b embed_b(t_b * W_b) ) + sum_b beta_b       t, beta: the norms in eval mode

In eval mode a RepVGG block is a linear addition whose scales are its norms', so the conversion is `equivalent_kernel`.
QARepVGG leaves the norms of the 1x1 and the identity branch away and puts one behind the sum. Module names are those of
the public RepVGG code.
"""

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor, nn

from repopt.algebra.branches import Branch, Conv, Identity
from repopt.algebra.csla import equivalent_kernel, imagine, over_channels
from repopt.algebra.operators import operator_of
from repopt.models.vgg import VGG, PlainBlock, RepOptVGG, VGGBlock
from repopt.surgery.norms import norm_affine

_BRANCHES: Mapping[str, Branch] = {"rbr_dense": Conv(3), "rbr_1x1": Conv(1), "rbr_identity": Identity()}


@dataclass(frozen=True, kw_only=True)
class RepVGGKernels:
    """A block's kernels on the way to its deploy form.

    Attributes:
        trained: each branch's own kernel, by branch name; the identity's is 1 in every channel.
        fused: the same with the norms in them.
        added: the sum of the branches.
        bias: the bias that comes with it.
    """

    trained: Mapping[str, Tensor]
    fused: Mapping[str, Tensor]
    added: Tensor
    bias: Tensor


class RepVGGBlock(VGGBlock):
    """3x3, 1x1 and identity, added up.

    Args:
        in_channels: of the input.
        out_channels: of the output.
        stride: with 1 and equal channels there is an identity.
        dilation: of the 3x3.
        se: squeeze and excitation after the ReLU.
        norm_after: QARepVGG's form: no norm on the 1x1 and the identity, one after the sum.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        stride: int,
        dilation: int = 1,
        *,
        se: bool = False,
        norm_after: bool = False,
    ) -> None:
        super().__init__(out_channels, se=se)
        pointwise = nn.Conv2d(in_channels, out_channels, 1, stride, bias=False)
        identity = nn.Identity() if norm_after else nn.BatchNorm2d(out_channels)
        keeps_shape = in_channels == out_channels and stride == 1
        dense = nn.Conv2d(in_channels, out_channels, 3, stride, dilation, dilation, bias=False)
        self.rbr_dense: nn.Module | None = _normed(dense)
        self.rbr_1x1: nn.Module | None = pointwise if norm_after else _normed(pointwise)
        self.rbr_identity: nn.Module | None = identity if keeps_shape else None
        self.bn: nn.Module = nn.BatchNorm2d(out_channels) if norm_after else nn.Identity()
        self.rbr_reparam: nn.Conv2d | None = None

    def linear_part(self, x: Tensor) -> Tensor:
        y: Tensor = self._branch_sum(x) if self.rbr_reparam is None else self.rbr_reparam(x)
        return y

    @torch.no_grad()
    def kernels(self) -> RepVGGKernels:
        """The kernels before fusion, after it, and after addition."""
        if self.rbr_reparam is not None:
            raise ValueError("this RepVGG is in its deploy form, which has one kernel a block: use its training form")
        branches, dense = self._branches(), self._dense()
        block = imagine(operator_of(dense), [_BRANCHES[attribute] for attribute in branches])
        trained, scales, bias = {}, {}, dense.weight.new_zeros(dense.out_channels)
        for name, branch in zip(block.branches, branches.values(), strict=True):
            conv, norm = _taken_apart(branch)
            trained[name] = torch.ones_like(bias) if conv is None else conv.weight.detach()
            scales[name], shift = norm_affine(norm, like=bias)
            bias = bias + shift
        after, shift = norm_affine(self.bn, like=bias)
        fused = {
            name: kernel * over_channels(after * scales[name], block.branches[name]) for name, kernel in trained.items()
        }
        added = equivalent_kernel(block, {}, fused)
        return RepVGGKernels(trained=trained, fused=fused, added=added, bias=after * bias + shift)

    def switch_to_deploy(self) -> None:
        super().switch_to_deploy()
        if self.rbr_reparam is not None:
            return
        kernels, dense = self.kernels(), self._dense()
        stride, dilation = dense.stride[0], dense.dilation[0]
        merged = nn.Conv2d(dense.in_channels, dense.out_channels, 3, stride, dilation, dilation, device="meta")
        merged.weight, merged.bias = nn.Parameter(kernels.added), nn.Parameter(kernels.bias)
        self.rbr_reparam = merged.train(self.training).requires_grad_(dense.weight.requires_grad)
        self.rbr_dense = self.rbr_1x1 = self.rbr_identity = None
        self.bn = nn.Identity()

    def _branch_sum(self, x: Tensor) -> Tensor:
        y: Tensor = self.bn(reduce(torch.add, (branch(x) for branch in self._branches().values())))
        return y

    def _branches(self) -> dict[str, nn.Module]:
        found = {attribute: getattr(self, attribute) for attribute in _BRANCHES}
        return {attribute: branch for attribute, branch in found.items() if branch is not None}

    def _dense(self) -> nn.Conv2d:
        assert self.rbr_dense is not None
        conv, _ = _taken_apart(self.rbr_dense)
        assert conv is not None
        return conv


class RepVGG(VGG):
    """The multi-branch model; `switch_to_deploy` or `repopt.models.deploy` converts it."""

    norm_after = False

    def make_block(self, in_channels: int, out_channels: int, stride: int, dilation: int) -> VGGBlock:
        return RepVGGBlock(in_channels, out_channels, stride, dilation, se=self.se, norm_after=self.norm_after)


class QARepVGG(RepVGG):
    """RepVGG in the form that quantizes better: no norm on the 1x1 and the identity, one after the sum."""

    norm_after = True


@torch.no_grad()
def plain_from_repvgg(repvgg: RepVGG, images: Iterable[Tensor | Sequence[Tensor]] = ()) -> RepOptVGG:
    """A plain model that starts from a trained RepVGG: its equivalent kernels, and its biases in the norms.

    In eval mode it computes what the RepVGG computes. In train mode norms use the statistics of the batch, and those of
    one kernel's output are not those of three branches. Give some images, and every norm is set to undo what it
    measures on them: then training starts from the same function too.

    Do not call `plan.init_()` on it, which would draw new kernels.

    Args:
        repvgg: the trained model, in its training form; it is left as it is.
        images: batches, as the model takes them, or as a loader gives them, with labels behind.
    """
    if not isinstance(repvgg, RepVGG):
        raise TypeError(f"plain_from_repvgg takes a RepVGG, not a {type(repvgg).__name__}")
    weight = next(repvgg.parameters())
    plain = RepOptVGG(
        repvgg.spec,
        num_classes=repvgg.num_classes,
        in_chans=repvgg.in_chans,
        strides=repvgg.strides,
        output_stride=repvgg.output_stride,
        se=repvgg.se,
        dropout=repvgg.dropout,
        global_pool=repvgg.global_pool,
    ).to(weight.device, weight.dtype)
    if not weight.is_contiguous():
        plain = plain.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    setattr(plain, plain.head_name, copy.deepcopy(repvgg.get_classifier()))
    blocks = {name: module for name, module in plain.named_modules() if isinstance(module, PlainBlock)}
    for name, block in blocks.items():
        source = repvgg.get_submodule(name)
        assert isinstance(source, RepVGGBlock)
        kernels = source.kernels()
        block.conv.weight.copy_(kernels.added)
        block.se.load_state_dict(source.se.state_dict())
        _undo_statistics_(block.bn, torch.zeros_like(kernels.bias), torch.ones_like(kernels.bias))
        block.bn.bias.copy_(kernels.bias)
    measured = [_Statistics(block.bn) for block in blocks.values()]
    plain.eval()
    for batch in images:
        plain(batch[0] if isinstance(batch, list | tuple) else batch)  # a loader gives labels too
    for statistics in measured:
        statistics.set_norm_()
    return plain.train(repvgg.training)


class _Statistics:
    """Means and variances of what goes into a norm."""

    def __init__(self, norm: nn.BatchNorm2d) -> None:
        self._norm = norm
        self._values = 0
        self._sum = self._squares = torch.zeros((), dtype=torch.float64)
        self._hook = norm.register_forward_pre_hook(self._add)

    def _add(self, norm: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        x = inputs[0].double().movedim(1, 0).flatten(1)
        self._values += x.shape[1]
        self._sum = self._sum.to(x.device) + x.sum(1)
        self._squares = self._squares.to(x.device) + x.square().sum(1)

    def set_norm_(self) -> None:
        self._hook.remove()
        if self._values:
            mean = self._sum / self._values
            _undo_statistics_(self._norm, mean, (self._squares / self._values - mean.square()).clamp(min=0))


def _undo_statistics_(norm: nn.BatchNorm2d, mean: Tensor, var: Tensor) -> None:
    """Sets a norm's statistics, and its weight and bias such that in eval mode it shifts by its old bias alone."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    norm.running_mean.copy_(mean)
    norm.running_var.copy_(var)
    norm.weight.copy_(torch.sqrt(var + norm.eps))
    norm.bias.add_(mean)


def _normed(conv: nn.Conv2d) -> nn.Sequential:
    branch = nn.Sequential()
    branch.add_module("conv", conv)
    branch.add_module("bn", nn.BatchNorm2d(conv.out_channels))
    return branch


def _taken_apart(branch: nn.Module) -> tuple[nn.Conv2d | None, nn.Module | None]:
    """A branch's convolution, which an identity has not, and its norm, where it has one."""
    parts = list(branch) if isinstance(branch, nn.Sequential) else [branch]
    conv = next((part for part in parts if isinstance(part, nn.Conv2d)), None)
    return conv, next((part for part in parts if part is not conv), None)
