"""Bad input to the public API: an error of repopt's own, in one sentence, and nothing from deep within."""

import math
import traceback
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import repopt
from attacked import (
    CONV3,
    PRESET_CALLS,
    Declares,
    Small,
    attached_state,
    file,
    itself,
    kernels,
    make_sgd,
    nano,
    non_leaf,
    pruned,
    scripted,
    sgd,
    sparse_weight,
    with_weight,
)
from repopt import Conv, Identity, Linear, Scales
from repopt.data import load_data
from repopt.data.augment import Augmentation
from repopt.export import export_run
from repopt.models import FeatureMaps, deploy, load_checkpoint, plain_from_repvgg
from repopt.quantize import Int8, QuantizeJob, layer_costs, post_training, quantize_run, trimmed
from repopt.report import write_report

SOURCE = Path(repopt.__file__).parent

BRANCHES = {
    "a float size": [Conv(3.0)],
    "text as size": [Conv("3")],
    "no size": [Conv(None)],
    "size 0": [Conv(0)],
    "a negative size": [Conv(-3)],
    "too large": [Conv(5)],
    "even": [Conv(2)],
    "too many dimensions": [Conv((3, 3, 3))],
    "an empty size": [Conv(())],
    "a size that is NaN": [Conv(math.nan)],
    "an array as size": [Conv(np.array([3, 3]))],
    "a nested size": [Conv(((3, 3), 3))],
    "dilation 0": [Conv(3, dilation=0)],
    "dilation as text": [Conv(1, dilation="2")],
    "groups that do not divide": [Conv(3, groups=4)],
    "groups 0": [Conv(3, groups=0)],
    "groups as a float": [Conv(3, groups=1.0)],
    "groups True": [Conv(3, groups=True)],
    "a fully connected branch": [Linear()],
    "the class of a branch": [Identity],
    "a module": [nn.Conv2d(3, 6, 3)],
    "text": ["conv3x3"],
    "None": [None],
    "nothing": [],
}
PATTERNS = {
    "none": {},
    "a list": [CONV3],
    "text": "0",
    "a set of branches": {"0": {Conv(3)}},
    "one branch without a list": {"0": Conv(3)},
    "a bad regular expression": {"(": CONV3},
    "a number as pattern": {0: CONV3},
    "None as pattern": {None: CONV3},
    "bytes as pattern": {b"0": CONV3},
    "nothing matches": {"nowhere": CONV3},
    "a ReLU": {"1": CONV3},
    "the whole model": {"^$": CONV3},
    "shadowed": {"0": CONV3, "^0$": CONV3},
}
SCALES = {
    "a number": 1.0,
    "a list": [1.0],
    "a tensor": torch.ones(3),
    "an unknown name": "nothing_ships_so",
    "an empty name": "",
    "a folder": Path("."),
    "a missing file": "missing.safetensors",
    "nothing": {},
    "an unknown operator": {"1": {"conv3x3": 1.0}},
    "one operator of two": {"0": {"conv3x3": 1.0, "conv1x1": 1.0}},
    "a number per operator": {"0": 1.0},
    "an unknown branch": {"0": {"conv7x7": 1.0}},
    "NaN": {"0": {"conv3x3": math.nan}},
    "infinite": {"0": {"conv3x3": math.inf}},
    "None for a number": {"0": {"conv3x3": None}},
    "text for a number": {"0": {"conv3x3": "1"}},
    "a complex number": {"0": {"conv3x3": 1j}},
    "a complex tensor": {"0": {"conv3x3": torch.ones(6) * 1j}},
    "whole numbers": {"0": {"conv3x3": torch.ones(6, dtype=torch.long)}},
    "a matrix": {"0": {"conv3x3": torch.ones(6, 6)}},
    "too few channels": {"0": {"conv3x3": torch.ones(5)}},
    "no channels": {"0": {"conv3x3": torch.ones(0)}},
    "a sparse tensor": {"0": {"conv3x3": torch.ones(6).to_sparse()}},
    "a meta tensor": {"0": {"conv3x3": torch.ones(6, device="meta")}},
    "a boolean": {"0": {"conv3x3": True}},
    "a huge whole number": {"0": {"conv3x3": 10**400}},
    "a number as operator": {0: {"conv3x3": 1.0}},
    "a number as branch": {"0": {3: 1.0}},
    "an origin of another make": Scales({"1": {"conv3x3": 1.0}}, {"run": "[]", "recipe": "1"}),
}
FILES = {
    "empty safetensors": file("a.safetensors", b""),
    "cut safetensors": file("a.safetensors", b"\x10\0\0\0\0\0\0\0{"),
    "safetensors of something else": file("a.safetensors", {"weight": torch.ones(2)}),
    "safetensors with NaN": file("a.safetensors", {"0.conv3x3": torch.tensor([math.nan])}),
    "empty pth": file("a.pth", b""),
    "text as pth": file("a.pth", b"scales"),
    "a list in a pth": file("a.pth", [1.0]),
    "numbers in a pth": file("a.pth", {"stage0.scale_conv.weight": 1.0}),
    "other keys in a pth": file("a.pth", {"weight": torch.ones(2)}),
    "whole keys in a pth": file("a.pth", {0: torch.ones(2)}),
    "a module in a pth": file("a.pth", nn.Linear(1, 1)),
    "a pth that holds itself": file("a.pth", itself()),
}
WEIGHTS = {
    "complex": lambda: nn.Sequential(nn.Linear(2, 2, dtype=torch.complex64)),
    "whole numbers": lambda: with_weight(nn.Parameter(torch.ones(2, 2, dtype=torch.long), requires_grad=False)),
    "sparse": lambda: with_weight(sparse_weight()),
    "not a leaf": non_leaf,
    "no weight": lambda: with_weight(None),
    "of another shape": lambda: with_weight(nn.Parameter(torch.ones(3, 2))),
    "lazy": lambda: nn.Sequential(nn.LazyLinear(2)),
    "normed": lambda: nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(2, 2))),
    "quantized": lambda: nn.Sequential(torch.ao.nn.quantized.dynamic.Linear(2, 2)),
    "transposed": lambda: nn.Sequential(nn.ConvTranspose2d(2, 2, 3)),
}
CALLS = {
    # plans
    "plan of no model": lambda net: repopt.plan(None),
    "plan of a class": lambda net: repopt.plan(nn.Linear),
    "plan of a scripted model": lambda net: repopt.plan(scripted(net), "repvgg"),
    "plan of parameters": lambda net: repopt.plan(net.parameters(), {"0": CONV3}),
    "plan of what declares nothing": lambda net: repopt.plan(nn.Linear(1, 1)),
    "plan of what declares None": lambda net: repopt.plan(Declares()),
    "plan of what declares a list": lambda net: repopt.plan(Declares([Conv(3)])),
    "plan.on no model": lambda net: net.plan.on(None),
    "plan.on another model": lambda net: net.plan.on(nn.Linear(1, 1)),
    "plan.on other shapes": lambda net: net.plan.on(nn.Sequential(nn.Conv2d(3, 5, 3), nn.ReLU(), nn.Conv2d(5, 6, 3))),
    "plan.on complex weights": lambda net: net.plan.on(Small(dtype=torch.complex64)),
    "plan.on pruned weights": lambda net: net.plan.on(pruned()),
    "plan.constants of no operator": lambda net: net.plan.constants("1"),
    "plan.constants of None": lambda net: net.plan.constants(None),
    "plan.constants of a list": lambda net: net.plan.constants(["0"]),
    "plan.multiplier of no operator": lambda net: net.plan.multiplier("1"),
    "plan.multiplier of a degree in words": lambda net: net.plan.multiplier("0", "one"),
    "plan.multiplier of degree NaN": lambda net: net.plan.multiplier("0", math.nan),
    "plan.init_ by an unknown convention": lambda net: net.plan.init_(kernel="ones"),
    "plan.init_ with an unknown identity": lambda net: net.plan.init_(identity="two"),
    "plan.init_ with a seed for a generator": lambda net: net.plan.init_(generator=0),
    "plan.init_ without scales": lambda net: repopt.plan(net, {"0": CONV3}).init_(),
    "depths of which one is missing": lambda net: repopt.plan(Declares(depths={"0": 1}), {"0|2": CONV3}).depths(),
    "depths as a list": lambda net: repopt.plan(Declares(depths=[1, 2]), {"0|2": CONV3}).depths(),
    "depths below 0": lambda net: Scales.depth_init(repopt.plan(Declares(depths={"0": -2}), {"0": CONV3})),
    # scales
    "Scales of a list": lambda net: Scales([1.0]),
    "Scales of None": lambda net: Scales(None),
    "Scales with metadata of a list": lambda net: Scales({}, metadata=[1]),
    "Scales.load of None": lambda net: Scales.load(None),
    "Scales.save to a .pth": lambda net: net.plan.scales.save("scales.pth"),
    "Scales.save to a missing folder": lambda net: net.plan.scales.save("/nowhere/scales.safetensors"),
    "Scales.save to None": lambda net: net.plan.scales.save(None),
    "Scales.save of metadata that is no text": lambda net: Scales({}, {"epochs": 3}).save("a.safetensors"),
    "Scales.ones of a model": lambda net: Scales.ones(net),
    "Scales.constant in words": lambda net: Scales.constant(net.plan, "one"),
    "Scales.constant NaN": lambda net: Scales.constant(net.plan, math.nan),
    "Scales.depth_init of None": lambda net: Scales.depth_init(None),
    "Scales.depth_init by an unknown counting": lambda net: Scales.depth_init(net.plan, "both"),
    "Scales.only of a model": lambda net: net.plan.scales.only(net),
    # optimizers
    "attach to a class": lambda net: repopt.attach(torch.optim.SGD, net.plan),
    "attach the other way round": lambda net: repopt.attach(net.plan, sgd(net)),
    "attach to a model": lambda net: repopt.attach(sgd(net), net),
    "attach without scales": lambda net: repopt.attach(sgd(net), repopt.plan(net, {"0": CONV3})),
    "attach to another model's plan": lambda net: repopt.attach(sgd(net), Small().plan),
    "attach to some of the weights": lambda net: repopt.attach(sgd(net[0]), net.plan),
    "attach by an unknown route": lambda net: repopt.attach(sgd(net), net.plan, route="closed"),
    "attach by a route that is a list": lambda net: repopt.attach(sgd(net), net.plan, route=["grad"]),
    "attach twice": lambda net: [repopt.attach(optimizer, net.plan) for optimizer in [sgd(net)] * 2],
    "attach LBFGS": lambda net: repopt.attach(torch.optim.LBFGS(net.parameters()), net.plan),
    "attach to a norm below 0": lambda net: repopt.attach(sgd(net), net.plan, max_norm=-1),
    "attach to a norm that is true": lambda net: repopt.attach(sgd(net), net.plan, max_norm=True),
    "attach to a norm in words": lambda net: repopt.attach(sgd(net), net.plan, max_norm="1"),
    "attach to the norm NaN": lambda net: repopt.attach(sgd(net), net.plan, max_norm=math.nan),
    "attach to meta weights": lambda net: repopt.attach(sgd(net.to("meta")), net.plan, route="branch"),
    "attach with kernels in a list": lambda net: repopt.attach(sgd(net), net.plan, "branch", kernels=[1]),
    "attach with numbers as kernels": lambda net: repopt.attach(sgd(net), net.plan, "branch", kernels={"0": 1.0}),
    "attach with a kernel that is a number": lambda net: repopt.attach(
        sgd(net), net.plan, "branch", kernels=kernels(net, conv3x3=1.0)
    ),
    "attach with a complex kernel": lambda net: repopt.attach(
        sgd(net), net.plan, "branch", kernels=kernels(net, conv3x3=torch.ones(6, 3, 3, 3) * 1j)
    ),
    "attach with a kernel too few": lambda net: repopt.attach(sgd(net), net.plan, "branch", kernels={"0": {}}),
    "attach with a kernel of another shape": lambda net: repopt.attach(
        sgd(net), net.plan, "branch", kernels=kernels(net, conv1x1=torch.ones(1))
    ),
    "load a list into an attached optimizer": lambda net: attached_state(net, []),
    "load an empty state": lambda net: attached_state(net, {}),
    "load a state with groups of another make": lambda net: attached_state(net, {"state": [], "param_groups": [1]}),
    "load a state with a stamp of another make": lambda net: attached_state(
        net, {"state": {}, "param_groups": [{"params": [0], "repopt": [1]}]}
    ),
    "AdamW without a plan": lambda net: repopt.optim.AdamW(net.parameters(), None),
    "AdamW with a negative lr": lambda net: repopt.optim.AdamW(net.parameters(), net.plan, lr=-1.0),
    "AdamW with a NaN lr": lambda net: repopt.optim.AdamW(net.parameters(), net.plan, lr=math.nan),
    "AdamW with an lr in words": lambda net: repopt.optim.AdamW(net.parameters(), net.plan, lr="0.1"),
    "AdamW with an lr None": lambda net: repopt.optim.AdamW(net.parameters(), net.plan, lr=None),
    "AdamW with an infinite lr": lambda net: repopt.optim.AdamW(net.parameters(), net.plan, lr=math.inf),
    "AdamW with an lr per channel": lambda net: repopt.optim.AdamW(net.parameters(), net.plan, lr=torch.ones(3)),
    "AdamW with one beta": lambda net: repopt.optim.AdamW(net.parameters(), net.plan, betas=(0.9,)),
    "AdamW with a beta of 1": lambda net: repopt.optim.AdamW(net.parameters(), net.plan, betas=(0.9, 1.0)),
    "AdamW with a number as betas": lambda net: repopt.optim.AdamW(net.parameters(), net.plan, betas=0.9),
    "AdamW with betas in words": lambda net: repopt.optim.AdamW(net.parameters(), net.plan, betas=("a", "b")),
    "Adam with L2": lambda net: repopt.optim.Adam(net.parameters(), net.plan, weight_decay=0.1),
    "SGD with a NaN momentum": lambda net: repopt.optim.SGD(net.parameters(), net.plan, momentum=math.nan),
    "SGD with nesterov alone": lambda net: repopt.optim.SGD(net.parameters(), net.plan, nesterov=True),
    "SGD with a momentum in words": lambda net: repopt.optim.SGD(net.parameters(), net.plan, momentum="0.9"),
    "Lion with a decay in words": lambda net: repopt.optim.Lion(net.parameters(), net.plan, weight_decay="0"),
    "Lion with a norm below 0": lambda net: repopt.optim.Lion(net.parameters(), net.plan, max_norm=-1.0),
    "clip a model": lambda net: repopt.clip_grad_norm_(net, 1.0),
    "clip to a norm below 0": lambda net: repopt.clip_grad_norm_(net.plan, -1.0),
    "clip to a norm in words": lambda net: repopt.clip_grad_norm_(net.plan, "1"),
    "clip to None": lambda net: repopt.clip_grad_norm_(net.plan, None),
    "decay_groups of parameters": lambda net: repopt.decay_groups(net.parameters(), 0.1),
    "decay_groups with a decay in words": lambda net: repopt.decay_groups(net, "0.1"),
    "decay_groups with a negative decay": lambda net: repopt.decay_groups(net, -0.1),
    "decay_groups with a NaN decay": lambda net: repopt.decay_groups(net, math.nan),
    # surgery
    "search_model of None": lambda net: repopt.search_model(None, net.plan),
    "search_model without a plan": lambda net: repopt.search_model(net, None),
    "search_model of another model": lambda net: repopt.search_model(nn.Linear(1, 1), net.plan),
    "search_model from an unknown start": lambda net: repopt.search_model(net, net.plan, start="nowhere"),
    "search_model from NaN": lambda net: repopt.search_model(net, net.plan, start=math.nan),
    "search_model from None": lambda net: repopt.search_model(net, net.plan, start=None),
    "search_model by an unknown convention": lambda net: repopt.search_model(net, net.plan, kernel="nowhere"),
    "search_model with a seed for a generator": lambda net: repopt.search_model(net, net.plan, generator=1),
    "csla_model without scales": lambda net: repopt.csla_model(net, repopt.plan(net, {"0": CONV3})),
    "csla_model with kernels in a list": lambda net: repopt.csla_model(net, net.plan, [1]),
    "csla_model with numbers as kernels": lambda net: repopt.csla_model(net, net.plan, {"0": 1.0, "2": 1.0}),
    "csla_model with a complex kernel": lambda net: repopt.csla_model(
        net, net.plan, kernels(net, conv3x3=torch.ones(6, 3, 3, 3) * 1j)
    ),
    "csla_model twice": lambda net: repopt.csla_model(repopt.csla_model(net, net.plan), net.plan),
    "merge of a plain model": repopt.merge,
    "merge of None": lambda net: repopt.merge(None),
    "extract_scales of a plain model": repopt.extract_scales,
    "extract_scales of scales": lambda net: repopt.extract_scales(net.plan.scales),
    # verify
    "verify of None": lambda net: repopt.verify(None, net.plan, make_sgd),
    "verify without a plan": lambda net: repopt.verify(net, None, make_sgd),
    "verify of another model": lambda net: repopt.verify(nn.Linear(1, 1), net.plan, make_sgd),
    "verify with an optimizer": lambda net: repopt.verify(net, net.plan, sgd(net)),
    "verify with a name": lambda net: repopt.verify(net, net.plan, "SGD"),
    "verify with what makes no optimizer": lambda net: repopt.verify(net, net.plan, lambda params: None),
    "verify with a factory of nothing": lambda net: repopt.verify(net, net.plan, lambda: None),
    "verify in no step": lambda net: repopt.verify(net, net.plan, make_sgd, steps=0),
    "verify in half a step": lambda net: repopt.verify(net, net.plan, make_sgd, steps=0.5),
    "verify in a step and a half": lambda net: repopt.verify(net, net.plan, make_sgd, steps=1.5),
    "verify in steps in words": lambda net: repopt.verify(net, net.plan, make_sgd, steps="two"),
    "verify with a seed in words": lambda net: repopt.verify(net, net.plan, make_sgd, seed="zero"),
    "verify with a seed below 0": lambda net: repopt.verify(net, net.plan, make_sgd, seed=-(2**70)),
    "verify with no inputs": lambda net: repopt.verify(net, net.plan, make_sgd, inputs=[]),
    "verify with numbers as inputs": lambda net: repopt.verify(net, net.plan, make_sgd, inputs=[1.0]),
    "verify with one number as inputs": lambda net: repopt.verify(net, net.plan, make_sgd, inputs=1.0),
    "verify with other channels": lambda net: repopt.verify(net, net.plan, make_sgd, inputs=torch.ones(1, 5, 4, 4)),
    "verify to a norm below 0": lambda net: repopt.verify(net, net.plan, make_sgd, max_norm=-1.0),
    "verify on meta": lambda net: repopt.verify(net.to("meta"), net.plan, make_sgd),
    "verify by a stock reference that is an optimizer": lambda net: repopt.verify(
        net, net.plan, make_sgd, reference=sgd(net)
    ),
    # models
    "create_model of nothing": lambda net: repopt.create_model(""),
    "create_model of None": lambda net: repopt.create_model(None),
    "create_model of an unknown name": lambda net: repopt.create_model("resnet18"),
    "create_model of a missing folder": lambda net: repopt.create_model(Path("/nowhere")),
    "create_model of a folder without a model": lambda net: repopt.create_model(Path.cwd()),
    "create_model with an unknown option": lambda net: nano(colour="red"),
    "create_model with classes below 0": lambda net: nano(num_classes=-1),
    "create_model with classes in words": lambda net: nano(num_classes="ten"),
    "create_model with channels 0": lambda net: nano(in_chans=0),
    "create_model with channels in words": lambda net: nano(in_chans="rgb"),
    "create_model with a dropout of 2": lambda net: nano(dropout=2.0),
    "create_model with a dropout in words": lambda net: nano(dropout="half"),
    "create_model with a NaN dropout": lambda net: nano(dropout=math.nan),
    "create_model with two strides": lambda net: nano(strides=(1, 1)),
    "create_model with strides of 0": lambda net: nano(strides=(0, 1, 1, 1, 1)),
    "create_model with one stride": lambda net: nano(strides=1),
    "create_model with a width in words": lambda net: nano(widths="wide"),
    "create_model with widths of 0": lambda net: nano(widths=(0, 0, 0, 0)),
    "create_model with depths of other length": lambda net: nano(depths=(1, 1)),
    "create_model with an unknown pooling": lambda net: nano(global_pool="max"),
    "create_model with a ghost of width 0": lambda net: repopt.create_model("repopt_ghostnet_050", width=0.0),
    "create_model with a ghost of NaN width": lambda net: repopt.create_model("repopt_ghostnet_050", width=math.nan),
    "create_model with a ghost of a width in words": lambda net: repopt.create_model("repopt_ghostnet_050", width="a"),
    "create_model with maps but no backbone": lambda net: nano(out_indices=(0,)),
    "create_model with a map that is not there": lambda net: nano(features_only=True, out_indices=(9,)),
    "create_model with maps in words": lambda net: nano(features_only=True, out_indices="all"),
    "create_model with a number that is no map": lambda net: nano(features_only=True, out_indices=1.5),
    "FeatureMaps of another model": lambda net: FeatureMaps(net),
    "deploy of None": lambda net: deploy(None),
    "plain_from_repvgg of another model": lambda net: plain_from_repvgg(net),
    "reset_classifier to classes below 0": lambda net: nano().reset_classifier(-1),
    "images of another shape": lambda net: nano()(torch.ones(1, 1, 8, 8)),
    "load_checkpoint of None": lambda net: load_checkpoint(net, None),
    "load_checkpoint into None": lambda net: load_checkpoint(None, {}),
    "load_checkpoint of nothing": lambda net: load_checkpoint(net, {}),
    "load_checkpoint of itself": lambda net: load_checkpoint(net, itself()),
    "load_checkpoint of numbers": lambda net: load_checkpoint(net, {"0.weight": 1.0}),
    "load_checkpoint of other shapes": lambda net: load_checkpoint(
        net, {key: value[:1] for key, value in net.state_dict().items()}
    ),
    "load_checkpoint of complex weights": lambda net: load_checkpoint(
        net, {key: value * 1j for key, value in net.state_dict().items()}
    ),
    "load_checkpoint of a missing file": lambda net: load_checkpoint(net, "missing.pth"),
    "load_checkpoint of a folder": lambda net: load_checkpoint(net, Path.cwd()),
    # what is done with a model or a run
    "Int8 by an unknown backend": lambda net: Int8(backend="cuda"),
    "Int8 by two backends": lambda net: Int8(backend=["x86", "onnxruntime"]),
    "Int8 with weights by row": lambda net: Int8(weights="row"),
    "Int8 by an unknown calibrator": lambda net: Int8(calibrator="magic"),
    "Int8 on no images": lambda net: Int8(images=0),
    "Int8 on images in words": lambda net: Int8(images="all"),
    "Int8 on NaN images": lambda net: Int8(images=math.nan),
    "Int8 with all trimmed": lambda net: Int8(trim=1.0),
    "Int8 with a trim in words": lambda net: Int8(trim="half"),
    "QuantizeJob by an unknown method": lambda net: QuantizeJob(method="int4"),
    "QuantizeJob of an unknown form": lambda net: QuantizeJob(form="round"),
    "QuantizeJob of no epochs": lambda net: QuantizeJob(method="qat", epochs=0),
    "QuantizeJob with an lr of NaN": lambda net: QuantizeJob(method="qat", lr=float("nan")),
    "Augmentation that says yes": lambda net: Augmentation(flip="yes"),
    "QuantizeJob with a backend as setting": lambda net: QuantizeJob(setting="x86"),
    "quantize_run of a folder without a run": lambda net: quantize_run(Path.cwd()),
    "post_training of None": lambda net: post_training(None, [torch.ones(1, 3, 8, 8)], Int8()),
    "post_training on no images": lambda net: post_training(nano(), [], Int8()),
    "post_training on numbers": lambda net: post_training(nano(), [1.0], Int8()),
    "trimmed of None": lambda net: trimmed(None, [torch.ones(1, 3, 8, 8)], 0.1),
    "trimmed by more than all": lambda net: trimmed(nano(), [torch.ones(1, 3, 8, 8)], 2),
    "layer_costs on no images": lambda net: layer_costs(nano(), [torch.ones(2, 3, 32, 32)], [], Int8()),
    "export_run to an unknown format": lambda net: export_run(Path.cwd(), "tflite"),
    "export_run to two formats": lambda net: export_run(Path.cwd(), ["onnx", "safetensors"]),
    "export_run of a folder without a run": lambda net: export_run(Path.cwd(), "safetensors"),
    "export_run compared on no images": lambda net: export_run(Path.cwd(), "safetensors", images=0),
    "write_report of nothing": lambda net: write_report([], "report.html"),
    "write_report of a missing folder": lambda net: write_report(["missing"], "report.html"),
    "load_data of None": lambda net: load_data(None),
    "load_data of an unknown name": lambda net: load_data("mnist"),
    "load_data of a missing folder": lambda net: load_data("folder:missing"),
    "load_data of fakes in words": lambda net: load_data("fake:a,b,c"),
    "load_data of size 0": lambda net: load_data("digits", size=0),
}


INPUTS = {
    **{f"branches: {label}": lambda net, each=each: repopt.plan(net, {"0": each}) for label, each in BRANCHES.items()},
    **{f"patterns: {label}": lambda net, each=each: repopt.plan(net, each) for label, each in PATTERNS.items()},
    **{f"scales: {label}": lambda net, each=each: net.plan.with_scales(each) for label, each in SCALES.items()},
    **{
        f"weight: {label}": lambda net, make=make: repopt.plan(make(), {"0": [Linear(), Linear()]})
        for label, make in WEIGHTS.items()
    },
    **CALLS,
    **PRESET_CALLS,
}


def check_refused(call, *args):
    with pytest.raises((ValueError, TypeError, RuntimeError, OSError)) as caught:
        call(*args)
    last = traceback.extract_tb(caught.value.__traceback__)[-1]
    assert Path(last.filename).is_relative_to(SOURCE), f"{caught.value!r} comes from {last.filename}"
    assert last.line.startswith("raise "), f"{caught.value!r} is not repopt's own, but that of {last.line}"
    message = str(caught.value)
    assert len(message.split()) >= 4, message
    assert "\n" not in message


@pytest.mark.filterwarnings("ignore:Complex modules are a new feature", "ignore:.*quantized", "ignore:Lazy modules")
@pytest.mark.parametrize("label", INPUTS)
def test_bad_input_gets_a_sentence(label, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    check_refused(INPUTS[label], Small())


@pytest.mark.parametrize("label", FILES)
@pytest.mark.parametrize("read", [Scales.load, lambda path: load_checkpoint(nano(), path)], ids=["scales", "weights"])
def test_a_bad_file_gets_a_sentence(read, label, tmp_path):
    check_refused(read, FILES[label](tmp_path))
