"""Weight decay groups, as the equality wants them.

Norms and biases are not decayed: they are the parameters of one dimension. An identity branch is one number a channel
as well, but stands for entries of the operator's kernel, which are decayed: leaving it out would part a search or CSLA
model from the plain one.
"""

import re
from typing import Any

from torch import nn

# the identity of a search or CSLA block, and the gamma of a RepVGG block's identity branch
_IDENTITY = re.compile(r"(^|\.)(kernels\.identity(_\d+)?|rbr_identity\.weight)$")


def decay_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Param groups for any optimizer: kernels and identities with weight decay, norms and biases without.

    Example:
        >>> optimizer = torch.optim.SGD(decay_groups(model, 4e-5), lr=0.1, momentum=0.9)
    """
    trained = [(name, param) for name, param in model.named_parameters() if param.requires_grad]
    decayed = [param for name, param in trained if param.ndim > 1 or _IDENTITY.search(name)]
    rest = [param for name, param in trained if not (param.ndim > 1 or _IDENTITY.search(name))]
    groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": rest, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]
