"""What a batch norm does in eval mode: one scale and one shift for each channel.

BN(x)  =  t * x + (beta - t * mean),    t  =  gamma / sqrt(var + eps)
"""

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

_EPS = 1e-5  # of frozen norms that have it in their code, as DETR's


def norm_affine(norm: nn.Module | None, *, like: Tensor) -> tuple[Tensor, Tensor]:
    """What a batch norm does in eval mode, as one scale and one shift per channel; 1 and 0 without a norm."""
    if norm is None or isinstance(norm, nn.Identity):
        return torch.ones_like(like), torch.zeros_like(like)
    checked = foldable(norm)
    assert checked.running_mean is not None
    assert checked.running_var is not None
    scale = checked.weight / torch.sqrt(checked.running_var + checked.eps)
    return scale, checked.bias - scale * checked.running_mean


def foldable(norm: nn.Module) -> _BatchNorm:
    """A batch norm of any kind that has statistics and parameters: SyncBatchNorm, or one whose all are frozen."""
    if type(norm).__name__.endswith("FrozenBatchNorm2d"):  # torchvision's, and those of transformers
        return _thawed(norm)
    if not isinstance(norm, _BatchNorm) or not norm.affine or norm.running_mean is None:
        raise ValueError(
            f"a {type(norm).__name__} cannot be folded: only batch norms with running statistics and parameters can"
        )
    return norm


def _thawed(norm: nn.Module) -> _BatchNorm:
    """The batch norm with the numbers of a frozen one, which holds them as buffers."""
    scale = norm.get_buffer("weight")
    plain = nn.BatchNorm2d(len(scale), eps=getattr(norm, "eps", _EPS), device=scale.device, dtype=scale.dtype)
    plain.load_state_dict(norm.state_dict(), strict=False)  # without a count of batches
    return plain.eval().requires_grad_(False)
