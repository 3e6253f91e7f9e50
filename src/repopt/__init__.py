"""repopt: train a plain network as if it had branches, by changing the optimizer instead of the model."""

from repopt.attachment import Handle, attach
from repopt.branches import Conv, Identity, Linear
from repopt.plans import Plan, plan
from repopt.scales import Scales
from repopt.surgery import csla_model, merge

__version__ = "0.1.0"

__all__ = [
    "Conv",
    "Handle",
    "Identity",
    "Linear",
    "Plan",
    "Scales",
    "attach",
    "csla_model",
    "merge",
    "plan",
]
