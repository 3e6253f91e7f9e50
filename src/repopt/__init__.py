"""repopt: train a plain network as if it had branches, by changing the optimizer instead of the model."""

from repopt import optim
from repopt.attachment import Handle, attach
from repopt.branches import Conv, Identity, Linear
from repopt.clipping import clip_grad_norm_
from repopt.decay import decay_groups
from repopt.models import create_model, list_models
from repopt.plans import Plan, plan
from repopt.scales import Scales
from repopt.surgery import csla_model, extract_scales, merge, search_model
from repopt.verification import verify
from repopt.version import VERSION

__version__ = VERSION

__all__ = [
    "Conv",
    "Handle",
    "Identity",
    "Linear",
    "Plan",
    "Scales",
    "attach",
    "clip_grad_norm_",
    "create_model",
    "csla_model",
    "decay_groups",
    "extract_scales",
    "list_models",
    "merge",
    "optim",
    "plan",
    "search_model",
    "verify",
]
