"""The weights of a plan in a model, as both are now: modules and param groups may change between two steps."""

from itertools import chain, repeat
from operator import attrgetter
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from repopt.algebra.operators import LinearOperator
from repopt.plans.patterns import clean_modules
from repopt.plans.planning import Plan

_PARAMETERS = attrgetter("_parameters")


class PlannedWeights:
    """The weights of a plan's operators, looked up by place: a module that was replaced is found, too."""

    def __init__(self, plan: Plan) -> None:
        modules = plan.modules()
        self._model = plan.model
        self._names, self._modules = list(modules), list(modules.values())
        self._known: tuple[list[int], list[int]] | None = None
        self._held: dict[str, Tensor] = {}
        self._others: dict[str, Tensor] = {}
        self._note_places()

    def _note_places(self) -> None:
        """Notes the operators and all modules above them, with where each is found."""
        parents = {
            child: (parent._modules, attribute, parent)
            for parent in self._model.modules()
            for attribute, child in parent._modules.items()
            if child is not None
        }
        places: dict[nn.Module, Any] = {}
        for module in self._modules:
            above: nn.Module = module
            while above in parents and above not in places:
                places[above] = parents[above]
                above = parents[above][2]
        # Asked before every step, so without a Python loop.
        self._parents = [place[0] for place in places.values()]
        self._attributes = [place[1] for place in places.values()]
        self._found = list(places)

    def now(self) -> dict[str, Tensor]:
        """Every planned weight as the model has it now, by operator."""
        weights = self._weights()
        self._check_parameters(weights)
        return dict(zip(self._names, weights, strict=True))

    def held_by(self, optimizer: Optimizer) -> dict[str, Tensor]:
        """The planned weights that an optimizer holds; the same dict as long as model and param groups do not change.

        Raises:
            RuntimeError: a weight is trained and has a gradient, but the optimizer does not hold it.
        """
        weights, groups = self._weights(), [group["params"] for group in optimizer.param_groups]
        known = list(map(id, chain(weights, *groups))), list(map(len, groups))
        if known != self._known:
            self._check_parameters(weights)
            self._known, ids = known, set(known[0][len(weights) :])
            found = dict(zip(self._names, weights, strict=True))
            self._held = {name: weight for name, weight in found.items() if id(weight) in ids}
            self._others = {name: weight for name, weight in found.items() if id(weight) not in ids}
        for name, weight in self._others.items():
            if weight.requires_grad and weight.grad is not None:
                raise RuntimeError(
                    f"the weight of {name!r} is trained but is not, or no longer, a parameter of the optimizer: add it "
                    "to a param group, or make and attach a new optimizer"
                )
        return self._held

    def _weights(self) -> list[Any]:
        found = list(map(dict.get, self._parents, self._attributes))
        if found != self._found:
            self._modules = self._found_again()
            self._note_places()
        return list(map(dict.get, map(_PARAMETERS, self._modules), repeat("weight")))

    def _check_parameters(self, weights: list[Any]) -> None:
        for name, weight in zip(self._names, weights, strict=True):
            if weight is None:
                raise RuntimeError(
                    f"the weight of {name!r} is no parameter of its module any more, since it was pruned or "
                    "parametrized: undo that, or make a new plan without the operator"
                )

    def _found_again(self) -> list[LinearOperator]:
        """The operators that have the names now; one that had its name stays where it was put into another module."""
        known, there, found = clean_modules(self._model), set(self._model.modules()), list[LinearOperator]()
        for name, before in zip(self._names, self._modules, strict=True):
            module = known.get(name)
            if not isinstance(module, LinearOperator):
                module = before
            if module not in there:
                raise RuntimeError(f"there is no linear operator at {name!r} any more: make a new plan")
            found.append(module)
        return found
