"""Which operator of a model imagines which block, and with which scales."""

from repopt.plans import stamps as stamps  # before anything steps
from repopt.plans.planning import Plan, plan
from repopt.plans.scales import Scales

__all__ = ["Plan", "Scales", "plan"]
