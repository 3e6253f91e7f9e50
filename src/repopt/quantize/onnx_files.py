"""ONNX files: write one of any module, run it by ONNX Runtime, and say how far its outputs are from torch's.

A file stands alone: weights inside, a dynamic batch, `images` in and `logits` out, and in its metadata what a user must
know. An INT8 program of torchao becomes QuantizeLinear and DequantizeLinear around float operators, which ONNX Runtime
turns into integer kernels.
"""

import contextlib
import importlib
import io
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from repopt.files import replacing
from repopt.models.calling import any_batch, two_of
from repopt.plans.wording import first_line
from repopt.quantize.quiet import quiet_logs

_OLDEST_TORCH = "2.11"
IMAGES, LOGITS = "images", "logits"
# torch writes for the first of these, and knows none past the last
OPSETS = range(18, 24)


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """How far outputs are from those that they should be.

    Attributes:
        difference: the largest over all images, relative to the image's largest expected logit.
        top1: share of the images whose largest logit is the same one.
        images: how many were compared.
    """

    difference: float
    top1: float
    images: int


def write_onnx(
    model: nn.Module,
    path: str | Path,
    example: Tensor,
    *,
    metadata: Mapping[str, str] | None = None,
    opset: int | None = None,
) -> None:
    """Writes a module as one ONNX file, in one move.

    Args:
        model: in eval mode: a net, or a program that torch.export or torchao has made.
        path: the file; one that is there is replaced.
        example: a batch as the module takes it; the file takes any number of such images.
        metadata: text by name, for whoever opens the file.
        opset: version of the operators, torch's default unless given.

    Raises:
        ValueError: torch does not write this opset.
        ImportError: onnx or onnxscript is not installed.
    """
    check_opset(opset)
    need("onnx", "onnxscript")
    # torch and onnxscript warn of their own internals here
    with warnings.catch_warnings(), quiet_logs(), contextlib.redirect_stdout(io.StringIO()), torch.no_grad():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            model,
            (two_of(example),),
            dynamo=True,
            opset_version=opset,
            input_names=[IMAGES],
            output_names=[LOGITS],
            dynamic_shapes=any_batch(model, torch.export.Dim("batch")),
            external_data=False,
            verbose=False,
        )
    assert program is not None
    own_weights_(program.model)
    program.model.metadata_props.update(metadata or {})
    with replacing(Path(path)) as unfinished:
        program.save(unfinished, external_data=False)


def onnx_runner(path: str | Path, *, optimize: bool = True) -> Callable[[Tensor], Tensor]:
    """A function that runs a file by ONNX Runtime on the CPU, with as many threads as torch has.

    Args:
        path: the file.
        optimize: let ONNX Runtime rewrite the graph for speed, with integer kernels for INT8; otherwise every operator
            is computed as the file has it.
    """
    need("onnxruntime")
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = torch.get_num_threads(), 1
    options.log_severity_level = 3  # errors
    options.add_session_config_entry("session.x64quantprecision", "1")  # without VNNI the faster kernels saturate
    if not optimize:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    def run(images: Tensor) -> Tensor:
        (logits,) = session.run([LOGITS], {IMAGES: images.contiguous().numpy()})
        return torch.from_numpy(logits)

    return run


@torch.no_grad()
def compare(expected: Sequence[Tensor], found: Sequence[Tensor]) -> Agreement:
    """Compares the logits of the same batches; equal infinities, as of masked classes, are equal."""
    wanted, given = torch.cat([*expected]).double(), torch.cat([*found]).double()
    if wanted.shape == given.shape:
        wanted, given = wanted.reshape(len(wanted), -1), given.reshape(len(given), -1)
    else:
        raise ValueError(f"logits of shape {tuple(given.shape)} cannot be those of shape {tuple(wanted.shape)}")
    largest = wanted.abs().masked_fill(wanted.isinf(), 0).amax(1).clamp(min=torch.finfo(torch.float32).tiny)
    off = (given - wanted).abs().masked_fill(given == wanted, 0)
    return Agreement(
        difference=float((off.amax(1) / largest).max()),
        top1=float((given.argmax(1) == wanted.argmax(1)).double().mean()),
        images=len(wanted),
    )


def own_weights_(model: Any) -> None:
    """Gives each operator INT8 weights of its own, with their own scale and zero point.

    torch writes equal zero points once, and a layer that is applied twice has one weight. ONNX Runtime rewrites INT8
    weights for CPUs without VNNI, and fails on what two of them share.
    """
    import onnx_ir

    def of_weights() -> list[Any]:
        every = [node for node in model.graph if node.op_type == "DequantizeLinear"]
        return [node for node in every if node.inputs[0].is_initializer()]

    for node in of_weights():
        for user, place in list(node.outputs[0].uses())[1:]:
            again = onnx_ir.Node("", node.op_type, node.inputs, node.attributes, version=node.version)
            again.outputs[0].name = f"{node.outputs[0].name}_of_{user.outputs[0].name}"
            model.graph.insert_before(user, again)
            user.replace_input_with(place, again.outputs[0])
    for node in of_weights():
        for place, value in enumerate(node.inputs):
            if len(value.uses()) > 1:
                name, about = f"{node.outputs[0].name}_own_{place}", {"shape": value.shape, "type": value.type}
                own = onnx_ir.Value(name=name, const_value=value.const_value, **about)
                model.graph.register_initializer(own)
                node.replace_input_with(place, own)


@contextlib.contextmanager
def exporting(what: str, dtype: torch.dtype) -> Iterator[None]:
    """Says in a sentence what torch.export, which runs any code at all, explains at length."""
    try:
        yield
    except (ImportError, OSError, MemoryError):
        raise
    except Exception as error:
        cause: BaseException = error
        while isinstance(cause.__cause__, Exception):
            cause = cause.__cause__
        if "NOT_IMPLEMENTED" in str(cause) and dtype == torch.float64:
            raise RuntimeError(
                "ONNX Runtime cannot compute this model in float64: give model.float() and a float32 example"
            ) from cause
        raise RuntimeError(f"torch cannot export {what}: {first_line(cause)}") from cause


def check_opset(opset: int | None) -> None:
    """Raises unless torch writes this opset well."""
    if opset is not None and opset not in OPSETS:
        raise ValueError(f"the opset must be {OPSETS[0]} to {OPSETS[-1]}, not {opset}")


def need(*packages: str) -> None:
    """Raises unless these packages, of the extra `int8`, can be imported, and torch is new enough for them."""
    if packages and torch.__version__ < _OLDEST_TORCH:
        raise ImportError(f"INT8 and ONNX need torch {_OLDEST_TORCH} or newer, and this is {torch.__version__}")
    for package in packages:
        try:
            importlib.import_module(package)
        except ModuleNotFoundError as error:
            raise ImportError(
                f"INT8 and ONNX need {package}, which is not installed: pip install -e '.[int8]' from a checkout"
            ) from error
