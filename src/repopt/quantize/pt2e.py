"""torchao's quantization of an exported program: capture, prepare, measure, convert.

    x_q  =  clamp(round(x / s) + z, q_min, q_max)

A prepared program has a fake quantization in front of every weight and input that will be INT8. Switched off, it only
measures; switched on, it computes what the INT8 program will. So one prepared program serves calibration, the cost of
each layer (`sensitivity`) and, in train mode, quantization-aware training (`qat`). A converted program has the integer
weights, and torch.compile turns it into INT8 kernels (`timing`).
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.fx import Graph, GraphModule
from torch.utils._pytree import tree_leaves

from repopt.models import as_deployed
from repopt.models.calling import any_batch, outputs_for, two_of
from repopt.plans.copying import copied
from repopt.plans.patterns import check_model
from repopt.plans.wording import first_line, joined
from repopt.quantize.own_layers import own_layers_, share_weights
from repopt.quantize.quiet import quiet_torchao
from repopt.quantize.rounding import rounded_by_gptq
from repopt.quantize.setting import TAKE_ONNX, Int8

_ROUNDING = 1e-3  # of the outputs' norm, which folded norms may change


def post_training(model: nn.Module, batches: Sequence[Tensor], setting: Int8) -> GraphModule:
    """The INT8 program of a trained model's deploy form, calibrated and not trained any further.

    Args:
        model: any, in any form; it is left as it is.
        batches: images as the model takes them.
        setting: how.
    """
    check_batches(model, batches)
    return calibrated(as_deployed(model), batches, setting)


def calibrated(model: nn.Module, batches: Sequence[Tensor], setting: Int8) -> GraphModule:
    """The INT8 program of a model in the form that it is given in."""
    model = rounded_by_gptq(model, batches, setting.weights) if setting.rounding == "gptq" else copied(model)
    prepared = prepare(model, batches[0], setting)
    calibrate_(prepared, batches)
    return convert(prepared)


def prepare(model: nn.Module, example: Tensor, setting: Int8, *, training: bool = False) -> GraphModule:
    """A program with fake quantizations, in train mode where it is to be trained."""
    with quiet_torchao():
        from torchao.quantization.pt2e import allow_exported_model_train_eval
        from torchao.quantization.pt2e.quantize_pt2e import prepare_pt2e, prepare_qat_pt2e

        insert = prepare_qat_pt2e if training else prepare_pt2e
        with _about_torchao(model):
            model.train() if training else model.eval()
            captured = _captured(model, example)
            if training:
                _check_norms(captured)
            else:
                own_layers_(captured)
            prepared: GraphModule = insert(captured, _quantizer(setting, training=training))
        if training:
            allow_exported_model_train_eval(prepared)
    if not fake_quantizations(prepared):
        if not any(isinstance(module, nn.Conv2d | nn.Linear) for module in model.modules()):
            raise RuntimeError(
                f"torchao quantizes nn.Conv2d and nn.Linear for x86, and this {type(model).__name__} has none: give "
                "--backend onnxruntime, in Python backend=..."
            )
        raise RuntimeError(
            "torchao found nothing to quantize in this model: use the versions of torch and torchao that repopt is "
            "tested with (constraints.txt)"
        )
    if training:
        _measure_in_training_only_(prepared)
    else:
        stay_in_eval_mode_(prepared)
        switch_(prepared, measure=False, quantize=False)
        _check_same(model, prepared, example)
        switch_(prepared, measure=True, quantize=False)
    return prepared


def captured_graph(model: nn.Module, example: Tensor) -> Graph:
    """What a model computes in evaluation, as torchao sees it; the model is left as it is."""
    with _about_torchao(model):
        return _captured(copied(model, training=False), example).graph


@contextmanager
def _about_torchao(model: nn.Module) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # torch.export and torchao meet any code at all
        raise RuntimeError(
            f"torchao cannot quantize this {type(model).__name__} ({first_line(error)}): calibrate it by ONNX Runtime "
            f"instead, with {TAKE_ONNX}"
        ) from error


def _captured(model: nn.Module, example: Tensor) -> GraphModule:
    with _padding_in_numbers(model):
        captured: GraphModule = _exported(model, example).module(check_guards=False)
    return captured


def _check_norms(captured: GraphModule) -> None:
    """Raises where torchao would, but before the training: it cannot convert a norm whose batches are counted twice."""
    norms = [node.args for node in captured.graph.nodes if node.target == torch.ops.aten.batch_norm.default]
    measured = [running_mean for _, _, _, running_mean, _, training, *_ in norms if training and running_mean]
    if len({*measured}) < len(measured):
        raise ValueError("in training it applies a batch norm more than once")
    if share_weights(captured):
        raise ValueError("something else uses the weight or bias of a layer that a batch norm is behind")


@torch.no_grad()
def _check_same(model: nn.Module, prepared: GraphModule, example: Tensor) -> None:
    """Raises where the program, which does not quantize yet, is no longer the model: torchao rewrites patterns."""
    images, outputs = example[:2].to(next(model.parameters()).device), []
    for each in (copied(model, training=False), prepared):
        with torch.random.fork_rng():
            torch.manual_seed(0)  # of what is drawn at random
            outputs.append([leaf for leaf in tree_leaves(each(images.clone())) if _is_floating(leaf)])
    for wanted, found in zip(*outputs, strict=True):
        if (found - wanted).norm() > _ROUNDING * wanted.norm():
            raise RuntimeError(
                f"torchao changes what this {type(model).__name__} computes: calibrate it by ONNX Runtime instead, "
                "with `repopt quantize --backend onnxruntime`"
            )


@contextmanager
def _padding_in_numbers(model: nn.Module) -> Iterator[None]:
    """Writes the paddings "valid" and "same", where that is even, in numbers: torchao knows no words."""
    named = {module: module.padding for module in model.modules() if isinstance(module, nn.Conv2d)}
    for module, padding in named.items():
        around = [dilation * (size - 1) for dilation, size in zip(module.dilation, module.kernel_size, strict=True)]
        if padding == "valid":
            module.padding = 0, 0
        elif padding == "same" and not any(each % 2 for each in around):
            module.padding = around[0] // 2, around[1] // 2
    try:
        yield
    finally:
        for module, padding in named.items():
            module.padding = padding


@torch.no_grad()
def calibrate_(prepared: GraphModule, batches: Sequence[Tensor]) -> None:
    """Measures the activations on these images; from then on the program quantizes."""
    switch_(prepared, measure=True, quantize=False)
    device = next(prepared.parameters()).device
    for batch in batches:
        prepared(batch.to(device, copy=True))
    switch_(prepared, measure=False, quantize=True)


def convert(prepared: GraphModule) -> GraphModule:
    """The program with integer weights; the prepared one is used up."""
    with quiet_torchao():
        from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e

        prepared.eval()
        converted: GraphModule = convert_pt2e(prepared)
    stay_in_eval_mode_(converted)
    used = {str(node.target) for node in converted.graph.nodes if node.op == "get_attr"}
    for name in [name for name, _ in converted.named_parameters() if name not in used]:  # the weights before rounding
        module, _, own = name.rpartition(".")
        delattr(converted.get_submodule(module), own)
    return converted


def check_batches(model: nn.Module, batches: Sequence[Tensor]) -> Any:
    """What a model returns for an image; raises unless there are some that it takes, and weights to quantize."""
    check_model(model, "calibration")
    if not any(True for _ in model.parameters()):
        raise ValueError(f"this {type(model).__name__} has no weights, so there is nothing to quantize")
    if not all(isinstance(batch, Tensor) for batch in batches):
        raise TypeError("calibration images must be given as tensors, batch by batch")
    if not batches or not all(map(len, batches)):
        where = " in each batch" if batches else ""
        raise ValueError(f"calibration needs at least one image{where}, and there is none")
    channels = batches[0].shape[1] if batches[0].ndim == 4 else "channels"
    for batch in batches:
        if batch.ndim != 4 or batch.shape[1] != channels:
            raise ValueError(
                f"calibration images must be batch x {channels} x height x width, not of shape {tuple(batch.shape)}"
            )
        if batch.is_floating_point() and batch.dtype != torch.float32:
            kind = str(batch.dtype).removeprefix("torch.")
            raise ValueError(f"calibration images must be float32, not {kind}: give them so, and model.float()")
        if not batch.isfinite().all():
            raise ValueError("calibration images must be finite, and one of them holds inf or nan")
    found = outputs_for(copied(model, training=False).cpu(), batches[0][:1].cpu())
    if not all(map(_is_finite, tree_leaves(found))):
        spoilt = [name for name, value in model.state_dict().items() if not _is_finite(value)]
        why = (
            f", and {spoilt[0]!r} holds some: train again from before that"
            if spoilt
            else ", though its weights are finite: remove the operation that makes them, such as a mask of classes"
        )
        raise ValueError(f"this {type(model).__name__} returns inf or nan{why}")
    return found


def _is_finite(value: object) -> bool:
    return not _is_floating(value) or bool(value.isfinite().all())


def _is_floating(value: object) -> TypeGuard[Tensor]:
    return isinstance(value, Tensor) and value.is_floating_point()


def check_sizes(batches: Sequence[Tensor], why: str) -> None:
    """Raises unless all images have one size."""
    sizes = sorted({" x ".join(map(str, batch.shape[2:])) for batch in batches})
    if len(sizes) > 1:
        raise ValueError(f"calibration images must be of one size {why}, not of {joined(sizes)}")


def fake_quantizations(prepared: GraphModule) -> list[Any]:
    """The modules that measure and quantize."""
    from torchao.quantization.pt2e import FakeQuantizeBase

    return [module for module in prepared.modules() if isinstance(module, FakeQuantizeBase)]


def switch_(prepared: GraphModule, *, measure: bool, quantize: bool) -> None:
    """Lets every fake quantization measure, quantize, both or neither."""
    for fake in fake_quantizations(prepared):
        fake.enable_observer(measure)
        fake.enable_fake_quant(quantize)


def _measure_in_training_only_(prepared: GraphModule) -> None:
    """Ranges, like the statistics of norms, are of training images: torchao would go on measuring in eval mode."""
    switch = prepared.train

    def train(mode: bool = True) -> GraphModule:
        switch(mode)
        for fake in fake_quantizations(prepared):
            fake.enable_observer(mode)
        return prepared

    prepared.train, prepared.eval = train, lambda: train(False)  # type: ignore[method-assign]


def stay_in_eval_mode_(program: GraphModule) -> None:
    """Makes train() and eval() do nothing: the program has no norm or dropout to switch, and torchao takes seconds."""
    program.train, program.eval = lambda mode=True: program, lambda: program  # type: ignore[method-assign]


def _exported(model: nn.Module, example: Tensor) -> torch.export.ExportedProgram:
    device = next(model.parameters()).device
    two = two_of(example).to(device)
    # strict: without it, older torch does not say which layer an operator is from, and torchao finds no layers
    shapes = any_batch(model, torch.export.Dim.DYNAMIC)
    return torch.export.export(model, (two,), dynamic_shapes=shapes, strict=True)


def _quantizer(setting: Int8, *, training: bool) -> Any:
    from torchao.quantization import pt2e
    from torchao.quantization.pt2e.quantizer import QuantizationConfig, QuantizationSpec
    from torchao.quantization.pt2e.quantizer.x86_inductor_quantizer import X86InductorQuantizer

    channel = setting.weights == "channel"
    if training:
        fake: Any = pt2e.FusedMovingAvgObsFakeQuantize
        activation = pt2e.MovingAverageMinMaxObserver
        weight = pt2e.MovingAveragePerChannelMinMaxObserver if channel else pt2e.MovingAverageMinMaxObserver
    else:
        fake = pt2e.FakeQuantize
        activation = {"histogram": pt2e.HistogramObserver, "minmax": pt2e.MinMaxObserver}[setting.chosen]
        weight = pt2e.PerChannelMinMaxObserver if channel else pt2e.MinMaxObserver
    activations = QuantizationSpec(
        dtype=torch.int8 if setting.symmetric else torch.uint8,
        quant_min=-128 if setting.symmetric else 0,
        quant_max=127 if setting.symmetric else 255,
        qscheme=torch.per_tensor_symmetric if setting.symmetric else torch.per_tensor_affine,
        observer_or_fake_quant_ctr=fake.with_args(observer=activation),
    )
    weights = QuantizationSpec(
        dtype=torch.int8,
        quant_min=-127,  # not -128: steps of largest / 127.5 would round a channel's largest weight away from itself,
        quant_max=127,  # the identity's in most layers, and the error adds up over the depth
        qscheme=torch.per_channel_symmetric if channel else torch.per_tensor_symmetric,
        ch_axis=0 if channel else None,
        observer_or_fake_quant_ctr=fake.with_args(observer=weight),
    )
    quantizer = X86InductorQuantizer()
    quantizer.set_global(QuantizationConfig(activations, activations, weights, None, training))
    return quantizer
