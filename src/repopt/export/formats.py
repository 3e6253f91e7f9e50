"""The formats: how each is written and loaded again, and how closely it must agree with its origin.

| format | what it is | agreement |
|---|---|---|
| onnx | one file | logits |
| onnx-int8 | one file of QuantizeLinear and DequantizeLinear | classes |
| torch-export | a .pt2 archive | logits |
| safetensors | a folder that `create_model` loads | logits |

Of a module that is no run, the safetensors are one file of weights.
"""

import copy
import io
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from repopt.data.augment import scaling
from repopt.files import placing_folder, read_sealed, replacing, write_json, write_sealed
from repopt.models import create_model
from repopt.models.calling import any_batch, two_of
from repopt.models.saved import CONFIG, WEIGHTS
from repopt.quantize.onnx_files import Agreement, onnx_runner, write_onnx

FormatName = Literal["onnx", "onnx-int8", "torch-export", "safetensors"]
Forward = Callable[[Tensor], Tensor]

METADATA = "repopt.json"  # among a .pt2 archive's extra files


class Normalized(nn.Module):
    """A model that takes pixels from 0 to 1.

    Args:
        model: what takes normalized images.
        mean: of each channel, on a scale from 0 to 1.
        std: deviation of each channel, likewise.
    """

    factor: Tensor
    summand: Tensor

    def __init__(self, model: nn.Module, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.model, self.training = model, model.training
        factor, summand = scaling(mean, std, torch.device("cpu"), highest=1)
        self.register_buffer("factor", factor)
        self.register_buffer("summand", summand)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.model(images * self.factor + self.summand)
        return logits


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """What is written.

    Attributes:
        module: in its deploy form.
        example: an image as the module takes it, in a batch of one.
        config: for the user: model, options, classes, recipe, and how images must be prepared.
        opset: of ONNX, torch's default unless given.
    """

    module: nn.Module
    example: Tensor
    config: dict[str, Any]
    opset: int | None


def _write_onnx(deployment: Deployment, path: Path, *, optimize: bool = True) -> Forward:
    metadata = {
        name: value if isinstance(value, str) else json.dumps(value) for name, value in deployment.config.items()
    }
    write_onnx(deployment.module, path, deployment.example, metadata=metadata, opset=deployment.opset)
    return onnx_runner(path, optimize=optimize)


def _write_program(deployment: Deployment, path: Path) -> Forward:
    dynamic = any_batch(deployment.module, torch.export.Dim("batch"))
    program = torch.export.export(deployment.module, (two_of(deployment.example),), dynamic_shapes=dynamic)
    written = io.BytesIO()  # first: on a full disk torch would end the process
    torch.export.save(program, written, extra_files={METADATA: json.dumps(deployment.config)})
    path.write_bytes(written.getbuffer())
    loaded: Forward = torch.export.load(path).module()
    return loaded


def _write_weights(deployment: Deployment, path: Path) -> Forward:
    write_sealed(path / WEIGHTS, deployment.module.state_dict())
    write_json(path / CONFIG, deployment.config)
    again = create_model(path, trust=True)  # it was trusted when the run was loaded
    again.eval()
    return again


def _write_weights_alone(deployment: Deployment, path: Path) -> Forward:
    write_sealed(path, deployment.module.state_dict())
    again = copy.deepcopy(deployment.module)
    again.load_state_dict(read_sealed(path)[0])
    return again


@dataclass(frozen=True, kw_only=True)
class Format:
    """How a format is written, and how closely it must agree.

    Attributes:
        name: of the file or folder in a run.
        write: writes it to a path, and returns what was loaded again.
        place: gives the path to write to, and moves what is there into place.
        needs: packages.
        images: how many it is compared on.
        origin: what it is compared with.
        difference: how far an image's logits may be off, relative to the largest of them.
        top1: share of the images whose class must be the same; one image may always differ.
    """

    name: str
    write: Callable[[Deployment, Path], Forward]
    place: Callable[[Path], Any] = replacing
    needs: tuple[str, ...] = ()
    images: int = 72
    origin: str = "trained model"
    difference: float = 1e-4
    top1: float = 0.0

    def check(self, agreement: Agreement) -> None:
        """Raises unless the agreement is close enough."""
        others = round((1 - agreement.top1) * agreement.images)
        if agreement.difference <= self.difference and others <= max(1, (1 - self.top1) * agreement.images):
            return
        asked = f"at least {self.top1:.0%} must be" if self.top1 else f"at most {self.difference:.0e} is allowed"
        raise RuntimeError(
            f"the exported model does not agree with the {self.origin} and was not kept: on {agreement.images} images "
            f"{agreement.top1:.2%} of the classes are the same, and the logits are up to {agreement.difference:.1e} "
            f"off; {asked}"
        )


_ONNX = ("onnx", "onnxscript", "onnxruntime")
FORMATS: Mapping[FormatName, Format] = {
    "onnx": Format(name="model.onnx", write=_write_onnx, needs=_ONNX),
    "onnx-int8": Format(
        name="model-int8.onnx",
        write=partial(_write_onnx, optimize=False),
        needs=_ONNX,
        images=1000,
        origin="INT8 program",
        difference=math.inf,
        top1=0.99,
    ),
    "torch-export": Format(name="model.pt2", write=_write_program),
    "safetensors": Format(name="export", write=_write_weights, place=placing_folder),
}
# of a module, by the suffix of the file
BY_SUFFIX: Mapping[str, Format] = {
    ".onnx": FORMATS["onnx"],
    ".pt2": FORMATS["torch-export"],
    ".safetensors": Format(name="model.safetensors", write=_write_weights_alone),
}
