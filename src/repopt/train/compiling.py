"""torch.compile for training: static shapes, tuned kernels.

Inductor picks the block sizes of a Triton kernel by rule; coordinate descent tries their neighbours on the device. What
it finds stays in Inductor's cache on disk (`TORCHINDUCTOR_CACHE_DIR`), so only the first start of a training pays.
"""

from typing import Any

import torch
from torch import nn

OPTIONS: dict[str, Any] = {"coordinate_descent_tuning": True}


def compiled(module: nn.Module) -> nn.Module:
    """The module, compiled for batches of one shape."""
    result: Any = torch.compile(module, dynamic=False, options=OPTIONS)
    return result  # type: ignore[no-any-return]
