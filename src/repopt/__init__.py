"""repopt: train a plain network as if it had branches, by changing the optimizer instead of the model.

Names are looked up when they are first used, so that `import repopt` loads little and `repopt --help` no torch at all.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from repopt import optim as optim
    from repopt.algebra.branches import Conv as Conv
    from repopt.algebra.branches import Identity as Identity
    from repopt.algebra.branches import Linear as Linear
    from repopt.export.modules import export_model as export_model
    from repopt.models import create_model as create_model
    from repopt.models import list_models as list_models
    from repopt.optim.attachment import Handle as Handle
    from repopt.optim.attachment import attach as attach
    from repopt.optim.clipping import clip_grad_norm_ as clip_grad_norm_
    from repopt.optim.decay import decay_groups as decay_groups
    from repopt.optim.reparameterizing import reparameterize as reparameterize
    from repopt.plans.dirac import dirac_init_ as dirac_init_
    from repopt.plans.planning import Plan as Plan
    from repopt.plans.planning import plan as plan
    from repopt.plans.scales import Scales as Scales
    from repopt.quantize.ptq import quantize_model as quantize_model
    from repopt.surgery.conversion import branch_model as branch_model
    from repopt.surgery.conversion import csla_model as csla_model
    from repopt.surgery.conversion import extract_scales as extract_scales
    from repopt.surgery.conversion import merge as merge
    from repopt.surgery.conversion import search_model as search_model
    from repopt.surgery.freezing import freeze as freeze
    from repopt.verification.equality import verify as verify

__version__ = "0.2.0"

# packages that can be reached as attributes, without an import of their own
_ROOMS = (
    *("algebra", "bench", "compare", "data", "export", "models", "optim", "plans", "quantize", "report", "surgery"),
    *("train", "verification"),
)

# public name -> the module that has it
_HOMES = {
    "Conv": "algebra.branches",
    "Handle": "optim.attachment",
    "Identity": "algebra.branches",
    "Linear": "algebra.branches",
    "Plan": "plans.planning",
    "Scales": "plans.scales",
    "attach": "optim.attachment",
    "branch_model": "surgery.conversion",
    "clip_grad_norm_": "optim.clipping",
    "create_model": "models",
    "csla_model": "surgery.conversion",
    "decay_groups": "optim.decay",
    "dirac_init_": "plans.dirac",
    "export_model": "export.modules",
    "extract_scales": "surgery.conversion",
    "freeze": "surgery.freezing",
    "list_models": "models",
    "merge": "surgery.conversion",
    "plan": "plans.planning",
    "quantize_model": "quantize.ptq",
    "reparameterize": "optim.reparameterizing",
    "search_model": "surgery.conversion",
    "verify": "verification.equality",
}

__all__ = [*_HOMES, "optim"]


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return import_module(f"repopt.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'repopt' has no attribute {name!r}")
    import_module("repopt.plans.stamps")  # from here on no plain optimizer steps a state of repopt's
    found = getattr(import_module(f"repopt.{_HOMES[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return [*globals(), *_HOMES, *_ROOMS]
