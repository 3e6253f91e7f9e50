"""INT8 of any module, calibrated on some images."""

import json
import math

import onnx
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import other_nets
import repopt
from repopt.cli import main
from repopt.quantize import Int8, QuantizeJob, load_program, quantize_run
from repopt.train.runs import evaluate_run
from settled import settle

X = torch.randn(64, 3, 16, 16, generator=torch.Generator().manual_seed(0))
ONNX = Int8(backend="onnxruntime")


@pytest.fixture
def net():
    return settle(other_nets.small())


def zero_points(path):
    """The largest zero point of each quantization in an ONNX file."""
    graph = onnx.load(path).graph
    known = {each.name: each for each in graph.initializer}
    known |= {node.output[0]: node.attribute[0].t for node in graph.node if node.op_type == "Constant"}
    found = [node.input for node in graph.node if node.op_type in ("QuantizeLinear", "DequantizeLinear")]
    return [abs(onnx.numpy_helper.to_array(known[names[2]]).astype(int)).max() for names in found if len(names) > 2]


def noise(int8, model, images=X):
    with torch.no_grad():
        wanted = model.eval()(images)
        return ((int8(images) - wanted).norm() / wanted.norm()).item()


def test_a_module_becomes_an_int8_program_and_a_file(net, tmp_path):
    before = {key: value.clone() for key, value in net.state_dict().items()}
    program = repopt.quantize_model(net, [X], tmp_path / "net.safetensors")
    assert all(torch.equal(before[key], value) for key, value in net.state_dict().items())
    assert 0 < noise(program, net) < 0.1
    assert torch.equal(load_program(tmp_path / "net.safetensors")(X), program(X))


def test_a_loader_with_labels_calibrates_as_its_images_do_up_to_the_number_asked_for(net):
    loader = DataLoader(TensorDataset(X, torch.arange(64)), batch_size=16)
    by_loader, by_images = (
        repopt.quantize_model(net, batches, setting=Int8(images=24)) for batches in (loader, [X[:16], X[16:24]])
    )
    assert torch.equal(by_loader(X), by_images(X))


def test_symmetric_activations_have_no_zero_points(net, tmp_path):
    """Half as fine after a ReLU: some more noise, and not much."""
    usual, symmetric = (
        repopt.quantize_model(net, [X], tmp_path / f"{each}.onnx", setting=Int8(backend="onnxruntime", symmetric=each))
        for each in (False, True)
    )
    assert max(zero_points(tmp_path / "False.onnx")) > 0
    assert len(zero_points(tmp_path / "True.onnx")) > 10
    assert set(zero_points(tmp_path / "True.onnx")) == {0}
    assert noise(usual, net) < noise(symmetric, net) < 0.15


@pytest.mark.parametrize("flag", ["--symmetric", pytest.param("--no-symmetric", marks=pytest.mark.slow)])
def test_a_run_is_exported_without_zero_points(flag, trained_run, tmp_path, capsys):
    with pytest.raises(SystemExit) as done:
        main(f"export {trained_run} --format onnx-int8 {flag} --out {tmp_path}/int8.onnx".split())
    assert done.value.code == 0
    assert ("activations without zero points" in capsys.readouterr().out) == (flag == "--symmetric")
    assert (max(zero_points(tmp_path / "int8.onnx")) == 0) == (flag == "--symmetric")


class Pair(nn.Module):
    """Two outputs; its layer takes its input by name."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x):
        y = self.conv(input=x)
        return y.mean((2, 3)), y


class Spoilt(Pair):
    def __init__(self):
        super().__init__()
        nn.init.constant_(self.conv.weight, math.nan)


class ByItsInputs(Pair):
    def forward(self, x):
        return self.conv(x) if x.sum() > 0 else x


class Masked(nn.Conv2d):
    def __init__(self):
        super().__init__(3, 4, 3)

    def forward(self, x):
        return super().forward(x).mean((2, 3)).masked_fill(torch.arange(4) == 2, -torch.inf)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"path": "net.onnx"}, r"x86 writes a \.safetensors file"),
        ({"setting": ONNX}, r"onnxruntime writes a \.onnx file"),
        ({"setting": "int8"}, "setting is an Int8"),
        ({"setting": Int8(symmetric=True)}, "x86 kernels"),
        ({"batches": []}, "at least one image"),
        ({"batches": ["a"]}, "batches must hold tensors"),
        ({"batches": X}, r"not one tensor: give \[images\]"),
        ({"batches": [X[0]]}, "must be batch x channels x height x width"),
        ({"batches": [X[:, :1]]}, "does not take a batch of 1 x 1 x 16 x 16 float32"),
        ({"batches": [X, X * float("nan")]}, "holds inf or nan"),
        ({"batches": [X, X[:0]]}, "at least one image in each batch"),
        (
            {"batches": [X, X[:, :, :8, :8]], "path": "net.onnx", "setting": ONNX},
            "one size for ONNX Runtime, not of 16 x 16 and 8 x 8",
        ),
        (
            {"batches": [X, X[:, :, :8, :8]], "setting": Int8(trim=0.1)},
            "one size to be trimmed, not of 16 x 16 and 8 x 8",
        ),
        ({"model": Spoilt()}, "returns inf or nan, and 'conv.weight' holds some: train again"),
        (
            {"model": Masked()},
            "returns inf or nan, though its weights are finite: remove the operation that",
        ),
        ({"model": Pair(), "path": "net.safetensors"}, "returns one tensor, and this returns a tuple"),
        ({"model": Pair(), "path": "net.onnx", "setting": ONNX}, "returns one tensor, and this returns a tuple"),
        (
            {"model": ByItsInputs(), "path": "net.onnx", "setting": ONNX},
            r"^torch cannot export this ByItsInputs as ONNX: [^\n\x1b]+$",
        ),
        ({"model": nn.ConvTranspose2d(3, 4, 3)}, "this ConvTranspose2d has none: give --backend onnxruntime"),
        ({"model": nn.ConvTranspose2d(3, 4, 3), "setting": Int8(trim=0.1)}, "applies none: leave --trim out"),
        ({"model": "net"}, "takes a model"),
        ({"model": nn.ReLU()}, "this ReLU has no weights, so there is nothing to quantize"),
        ({"model": nn.Conv2d(3, 4, 3).double(), "batches": [X.double()]}, "must be float32, not float64: give them so"),
    ],
)
def test_what_cannot_be_quantized_is_a_sentence(net, options, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises((ValueError, TypeError, RuntimeError), match=words):
        repopt.quantize_model(**{"model": net, "batches": [X], **options})
    assert not any(tmp_path.iterdir())


@pytest.mark.slow
def test_a_resnet_that_knows_the_digits_still_knows_them_in_int8(tmp_path):
    """By each backend, with zero points and without: within a point."""
    pytest.importorskip("timm")
    run = tmp_path / "run"
    words = "train --model timm:resnet18 --method sgd --data digits --epochs 4 --warmup-epochs 1 --device cpu --quiet"
    with pytest.raises(SystemExit):
        main([*words.split(), "--out", str(run)])
    (score,) = evaluate_run(run, device="cpu").values()
    assert score.accuracy > 90
    settings = {
        "x86": Int8(),
        "onnx": ONNX,
        "symmetric": Int8(backend="onnxruntime", symmetric=True),
    }
    drops = {}
    for name, setting in settings.items():
        done = quantize_run(run, QuantizeJob(setting=setting), out=run / name, quiet=True)
        assert done.record["float_accuracy"] == pytest.approx(score.accuracy)
        drops[name] = done.record["drop"]
    print(json.dumps({"float": score.accuracy, "drops": drops}))
    assert max(drops.values()) <= 1
    assert set(zero_points(run / "symmetric" / "model.onnx")) == {0}


def test_a_program_in_memory_may_return_several_tensors():
    net = Pair().eval()
    logits, maps = repopt.quantize_model(net, [X], setting=Int8(trim=0.1))(X)
    assert (logits.shape, maps.shape) == ((len(X), 4), (len(X), 4, 14, 14))


def test_what_torch_compile_returns_is_quantized(net):
    found = repopt.quantize_model(torch.compile(net), [X])(X)
    assert torch.equal(found, repopt.quantize_model(net, [X])(X))


GPTQ, TRIMMED = Int8(rounding="gptq"), Int8(trim=0.1)


@pytest.mark.parametrize("setting", [Int8(), GPTQ, TRIMMED, ONNX], ids=["torchao", "gptq", "trimmed", "onnxruntime"])
@pytest.mark.parametrize("name", other_nets.unusual())
def test_an_unusual_network_is_quantized_as_any_other(name, setting, tmp_path):
    net, images = settle(other_nets.unusual()[name]), X.clone()
    int8 = repopt.quantize_model(net, [images], tmp_path / "net.onnx" if setting is ONNX else None, setting=setting)
    assert torch.equal(images, X)
    net.eval()
    with torch.no_grad():
        wanted = net(X.clone())
        assert (int8(X.clone()) - wanted).norm() < 0.1 * wanted.norm()


@pytest.mark.parametrize("setting", [GPTQ, TRIMMED], ids=["gptq", "trimmed"])
def test_a_network_that_changes_its_images_is_calibrated_on_the_unchanged_ones(setting):
    copying, in_place = settle(other_nets.Copying()), other_nets.InPlace()
    in_place.load_state_dict(copying.state_dict())
    found = [repopt.quantize_model(net, [X], setting=setting)(X.clone()) for net in (copying, in_place)]
    assert torch.equal(*found)


def test_the_folder_of_a_file_is_made(net, tmp_path):
    repopt.quantize_model(net, [X.clone().requires_grad_()], tmp_path / "new" / "net.onnx", setting=ONNX)
    assert (tmp_path / "new" / "net.onnx").exists()
