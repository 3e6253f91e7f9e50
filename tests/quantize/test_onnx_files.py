import logging
import math
import sys
from dataclasses import replace

import onnx
import pytest
import torch
from torch import nn

import repopt
from exported import onnx_metadata, small_run
from repopt.data import EvalBatches, load_data
from repopt.models import deploy
from repopt.quantize import Int8, calibration_batches, post_training
from repopt.quantize.onnx_files import OPSETS, compare, onnx_runner, write_onnx
from repopt.train.runs import load_run
from settled import settle

FEW = {"depths": (2, 1, 1, 1)}  # the fewer layers, the sooner torch has written them
MODELS = {"repopt_vgg_nano": FEW, "repvgg_nano": FEW, "qarepvgg_nano": FEW, "repghostnet_050": {}}


def digits(count, size=32):
    data = load_data("digits")
    batches = EvalBatches(
        data.train, batch_size=count, size=size, mean=data.mean, std=data.std, device=torch.device("cpu")
    )
    return next(iter(batches))[0]


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * ("ghost" in name)) for name in MODELS])
@torch.no_grad()
def test_a_file_computes_what_the_model_computes_at_any_batch_size(name, tmp_path):
    """With the norms folded, while the model that it is compared with has them."""
    model = settle(repopt.create_model(name, num_classes=10, **MODELS[name])).eval()
    path = tmp_path / "model.onnx"
    write_onnx(deploy(model), path, digits(1), metadata={"classes": "0 to 9"})
    assert list(tmp_path.iterdir()) == [path]  # one file, weights inside
    run = onnx_runner(path)
    for size in (1, 7, 64):
        images = digits(size)
        assert compare([model(images)], [run(images)]).difference <= 1e-4
    written = onnx.load(path)
    assert "BatchNormalization" not in {node.op_type for node in written.graph.node}
    assert [value.name for value in (*written.graph.input, *written.graph.output)] == ["images", "logits"]
    assert written.graph.input[0].type.tensor_type.shape.dim[0].dim_param
    assert onnx_metadata(path) == {"classes": "0 to 9"}


class Talkative(torch.nn.Flatten):
    def forward(self, x):
        logging.getLogger("torch.onnx").warning("another package is not installed")
        return super().forward(x)


def test_what_packages_log_while_a_file_is_written_is_not_seen(tmp_path, caplog):
    write_onnx(Talkative(), tmp_path / "model.onnx", digits(1))
    assert "not installed" not in caplog.text
    Talkative()(digits(1))
    assert "not installed" in caplog.text


@pytest.mark.parametrize("opset", [OPSETS[0], OPSETS[-1]])
@torch.no_grad()
def test_the_opset_is_the_one_asked_for(opset, tmp_path):
    model = repopt.create_model("repopt_vgg_nano", num_classes=10, depths=(1, 1, 1, 1)).eval()
    write_onnx(deploy(model), tmp_path / "model.onnx", digits(1), opset=opset)
    assert [entry.version for entry in onnx.load(tmp_path / "model.onnx").opset_import] == [opset]
    assert compare([model(digits(7))], [onnx_runner(tmp_path / "model.onnx")(digits(7))]).difference <= 1e-4


@pytest.mark.parametrize("depth", ["small", pytest.param("nano", marks=pytest.mark.slow)])
@torch.no_grad()
def test_the_file_of_an_int8_program_chooses_its_classes(depth, trained_run, tmp_path):
    """On 1,000 digits; integer kernels beside torch's float ones, so the logits are not the same."""
    with torch.enable_grad():
        run = trained_run if depth == "small" else small_run(tmp_path / "run", epochs=15, depths=None)
    trained = load_run(run)
    setting = Int8(calibrator="minmax")
    program = post_training(trained.model, calibration_batches(trained, load_data("digits"), 100), setting)
    write_onnx(program, tmp_path / "int8.onnx", digits(1))
    batches = digits(1000).split([1, 7, 64, 928])
    run = onnx_runner(tmp_path / "int8.onnx")
    agreement = compare([program(images) for images in batches], [run(images) for images in batches])
    assert agreement.top1 >= 0.99
    assert 1e-4 < agreement.difference < 0.5
    stored = {
        tensor.data_type for tensor in onnx.load(tmp_path / "int8.onnx").graph.initializer if len(tensor.dims) == 4
    }
    assert stored == {onnx.TensorProto.INT8}


@torch.no_grad()
def test_large_sums_do_not_saturate(tmp_path):
    """Two products of 255 and 127 are more than 16 bits hold, which is where kernels without VNNI saturate."""
    net = nn.Sequential(nn.Conv2d(4, 4, 3, bias=False), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    nn.init.ones_(net[0].weight)
    images = torch.rand(16, 4, 8, 8, generator=torch.Generator().manual_seed(0)) / 10 + 0.9
    setting = Int8(backend="onnxruntime")
    for symmetric in (False, True):
        int8 = repopt.quantize_model(
            net, [images], tmp_path / "net.onnx", setting=replace(setting, symmetric=symmetric)
        )
        assert compare([net(images)], [int8(images)]).difference < 0.01


def test_the_difference_is_relative_to_the_largest_logit_of_an_image():
    wanted = [torch.tensor([[1.0, -4.0], [10.0, 0.0]]), torch.tensor([[2.0, 1.0]])]
    found = [torch.tensor([[1.0, -4.0], [10.0, 0.5]]), torch.tensor([[2.0, 2.5]])]
    agreement = compare(wanted, found)
    assert (agreement.difference, agreement.top1, agreement.images) == (0.75, 2 / 3, 3)
    assert compare(wanted, wanted).difference == 0
    assert math.isnan(compare(wanted, [*found[:1], torch.full((1, 2), torch.nan)]).difference)
    with pytest.raises(ValueError, match=r"shape \(2, 2\) cannot be those of shape \(3, 2\)"):
        compare(wanted, found[:1])


def test_what_cannot_be_written_is_said(tmp_path, monkeypatch):
    model = deploy(repopt.create_model("repopt_vgg_nano")).eval()
    for opset in (17, 24, 99):
        with pytest.raises(ValueError, match=f"the opset must be 18 to 23, not {opset}"):
            write_onnx(model, tmp_path / "model.onnx", digits(1), opset=opset)
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(ImportError, match=r"onnxscript, which is not installed: pip install -e '\.\[int8\]'"):
        write_onnx(model, tmp_path / "model.onnx", digits(1))
    assert list(tmp_path.iterdir()) == []
