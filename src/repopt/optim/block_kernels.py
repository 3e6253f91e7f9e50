"""The kernels of one imagined block, and the optimizer's state of each: what the branch route keeps."""

import weakref
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from repopt.algebra import csla
from repopt.optim.contract import is_constant
from repopt.plans.planning import Plan


class BlockKernels:
    """The kernels of one block, and the optimizer's state of each."""

    def __init__(self, plan: Plan, name: str) -> None:
        self.name = name
        self.block = plan.blocks[name]
        self.kernels: dict[str, nn.Parameter] = {}
        self.states: dict[Tensor, Any] = {}
        self._whole_constants = plan.constants(name)
        self._constants: dict[str, Tensor] = {}
        self._weight: weakref.ref[Tensor] | None = None
        self._seen: tuple[int, int] | None = None

    def start(self, weight: Tensor, kernels: Mapping[str, Tensor] | None) -> None:
        """From kernels of the block's own, or from the split of least norm."""
        self._weight = weakref.ref(weight)
        self._seen = None
        self.states.clear()
        self._constants = {branch: constant.to(weight) for branch, constant in self._whole_constants.items()}
        if kernels is None:
            kernels = csla.least_norm_split(self.block, self._constants, weight, self.name)
        else:
            csla.check_kernels(self.block, kernels, self.name)
        self.kernels = {
            branch: nn.Parameter(kernels[branch].detach().to(weight, copy=True).contiguous())
            for branch in self.block.branches
        }

    def belongs_to(self, weight: Tensor) -> bool:
        return self._weight is not None and self._weight() is weight

    def adopt(self, state: Mapping[str, Any], weight: Tensor) -> None:
        """Gives each kernel what the optimizer's constructor left for the weight, such as Adagrad's first sum."""
        for key, value in state.items():
            if isinstance(value, Tensor) and not is_constant(value):
                raise ValueError(
                    f"the optimizer already holds a state of {self.name!r} ({key}) that the block cannot take over: "
                    "attach before the first step"
                )
        for kernel in self.kernels.values():
            self.states[kernel] = {
                key: torch.full_like(kernel, value.flatten()[0].item(), dtype=value.dtype)
                if isinstance(value, Tensor) and value.shape == weight.shape
                else (value.clone() if isinstance(value, Tensor) else value)
                for key, value in state.items()
            }

    def check_place(self, weight: Tensor) -> None:
        kernel = next(iter(self.kernels.values()))
        if (weight.device, weight.dtype) != (kernel.device, kernel.dtype):
            raise RuntimeError(
                f"the weight of {self.name!r} was moved or converted since attach: move the model first, then make and "
                "attach an optimizer"
            )

    def was_written(self, weight: Tensor) -> bool:
        return self._seen != _version(weight)

    @torch.no_grad()
    def differs_from(self, weight: Tensor) -> Tensor:
        """Whether the weight is not what the kernels make, as a tensor."""
        return (weight.detach() != csla.equivalent_kernel(self.block, self._constants, self.kernels)).any()

    def follow_(self, weight: Tensor) -> None:
        followed = csla.following(self.block, self._constants, self.kernels, weight, self.name)
        for branch, kernel in self.kernels.items():
            kernel.copy_(followed[branch])
        self._seen = _version(weight)

    def split_grad(self, grad: Tensor | None) -> None:
        for branch, placement in self.block.branches.items():
            kernel = self.kernels[branch]
            if grad is None:
                kernel.grad = None
                continue
            # Of the kernel's own strides: fused CPU optimizers take others without an error, and compute garbage.
            kernel.grad = torch.empty_like(kernel)
            scale = self._constants[branch]
            folded = scale if scale.ndim == 0 else placement.fold(scale)
            torch.mul(placement.view(grad), folded, out=placement.fold(kernel.grad))

    def forget_grads(self) -> None:
        for kernel in self.kernels.values():
            kernel.grad = None

    def merge_into_(self, weight: Tensor) -> None:
        csla.merge_into_(weight, self.block, self._constants, self.kernels)
        self._seen = _version(weight)

    def saved(self) -> dict[str, Any]:
        return {
            branch: {"kernel": kernel.detach(), "state": self.states.get(kernel, {})}
            for branch, kernel in self.kernels.items()
        }

    def load(self, saved: Mapping[str, Any], on_device: bool) -> None:
        for branch, kernel in self.kernels.items():
            kernel.copy_(saved[branch]["kernel"])
            state = saved[branch]["state"]
            self.states[kernel] = {key: _as_state(key, value, kernel, on_device) for key, value in state.items()}
            if not state:
                del self.states[kernel]
        self._seen = None  # the weight may have been loaded before or after


def _as_state(key: str, value: Any, kernel: Tensor, on_device: bool) -> Any:
    """As torch loads a state: of the parameter's device and precision, but for a step count kept on the host."""
    if not isinstance(value, Tensor):
        return value
    if key == "step":
        return value.to(kernel.device, torch.float32) if on_device else value
    return value.to(kernel.device, kernel.dtype if value.is_floating_point() and value.ndim else value.dtype)


def _version(weight: Tensor) -> tuple[int, int]:
    return weight._version, weight.data_ptr()
