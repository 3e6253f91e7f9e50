"""Any module as a file: ONNX, torch.export, safetensors."""

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import other_nets
import repopt
from exported import onnx_metadata
from repopt.quantize.onnx_files import onnx_runner
from settled import settle

X = torch.randn(3, 3, 16, 16, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def net():
    return settle(other_nets.small())


def relative(found, wanted):
    return ((found - wanted).abs().max() / wanted.abs().max()).item()


def test_onnx_computes_what_the_module_computes_in_eval_mode(net, tmp_path):
    exported = repopt.export_model(net, tmp_path / "net.onnx", X, metadata={"classes": ["a", "b"], "by": "me"})
    assert net.training  # as it was
    assert exported.agreement.difference <= 1e-4
    assert exported.batch_sizes == (1, 6)
    with torch.no_grad():
        assert relative(onnx_runner(exported.path)(X), net.eval()(X)) <= 1e-4
    assert onnx_metadata(exported.path).items() >= {"classes": '["a", "b"]', "by": "me"}.items()


def test_a_pt2_is_loaded_by_torch_alone(net, tmp_path):
    path = repopt.export_model(net, tmp_path / "net.pt2", X).path
    with torch.no_grad():
        torch.testing.assert_close(torch.export.load(path).module()(X), net.eval()(X))


def test_safetensors_hold_the_weights(net, tmp_path):
    saved = load_file(repopt.export_model(net, tmp_path / "net.safetensors", X).path)
    assert all(torch.equal(saved[key], value) for key, value in net.state_dict().items())


def test_a_compiled_model_is_written_as_what_was_compiled(net, tmp_path):
    path = repopt.export_model(torch.compile(net), tmp_path / "net.safetensors", X).path
    assert {*load_file(path)} == {*net.state_dict()}
    with torch.no_grad():
        onnx = repopt.export_model(torch.compile(net), tmp_path / "net.onnx", X).path
        assert relative(onnx_runner(onnx)(X), net.eval()(X)) <= 1e-4


@pytest.mark.parametrize("suffix", [".onnx", ".pt2", ".safetensors"])
@pytest.mark.parametrize("name", other_nets.unusual())
def test_an_unusual_network_is_written_as_any_other(name, suffix, tmp_path):
    net, images = settle(other_nets.unusual()[name]), X.clone()
    assert repopt.export_model(net, tmp_path / f"net{suffix}", images).agreement.difference <= 1e-4
    assert torch.equal(images, X)


class Softened(nn.Module):
    """More than a wrapper, though its child is called as wrappers call theirs."""

    def __init__(self):
        super().__init__()
        self.module = other_nets.small()

    def forward(self, x):
        return self.module(x / 2).softmax(1)


class RowsOfAMap(nn.Conv2d):
    def forward(self, x):
        return super().forward(x).permute(0, 2, 3, 1).reshape(-1, self.out_channels)


@pytest.mark.parametrize("suffix", [".onnx", ".pt2"])
@pytest.mark.parametrize("net", [Softened(), RowsOfAMap(3, 4, 3)], ids=["around another", "rows of a map"])
def test_what_is_written_computes_what_was_given(net, suffix, tmp_path):
    path = repopt.export_model(settle(net), tmp_path / f"net{suffix}", X).path
    run = onnx_runner(path) if suffix == ".onnx" else torch.export.load(path).module()
    with torch.no_grad():
        assert relative(run(X), net.eval()(X)) <= 1e-4


class Masked(nn.Module):
    def forward(self, x):
        return x.mean((2, 3)).masked_fill(torch.tensor([False, True, False]), -torch.inf)


def test_logits_may_be_masked(tmp_path):
    assert repopt.export_model(Masked(), tmp_path / "net.onnx", X).agreement.difference <= 1e-4


class Squeezed(nn.Module):
    def forward(self, x):
        return x.mean((1, 2, 3), keepdim=True).squeeze()


def test_a_model_of_repopt_is_written_in_its_deploy_form(tmp_path):
    model = settle(repopt.create_model("repvgg_nano", num_classes=4, depths=(1, 1, 1, 1)))
    path = repopt.export_model(model, tmp_path / "net.safetensors", torch.randn(2, 3, 32, 32)).path
    assert {*load_file(path)} == {*repopt.models.deploy(model).state_dict()}


def test_outputs_may_be_maps(tmp_path):
    assert repopt.export_model(nn.Conv2d(3, 4, 3), tmp_path / "map.pt2", X).agreement.difference <= 1e-4


def test_a_file_that_does_not_agree_is_not_kept(net, tmp_path, monkeypatch):
    def altered(model):
        other = other_nets.small()
        other.load_state_dict(model.state_dict())
        other.head.weight.data *= 1.001
        return other

    monkeypatch.setattr(repopt.export.modules, "as_deployed", altered)
    with pytest.raises(RuntimeError, match="does not agree"):
        repopt.export_model(net, tmp_path / "net.pt2", X)
    assert not any(tmp_path.iterdir())


class Doubtful(nn.Module):
    """Its graph depends on the values of its input."""

    def forward(self, x):
        return x if x.sum() > 0 else -x


class Two(nn.Module):
    def forward(self, x):
        return x, x


@pytest.mark.parametrize(
    ("model", "name", "example", "options", "words"),
    [
        (nn.Flatten(), "net.tflite", X, {}, r"must end in \.onnx, \.pt2, \.safetensors"),
        (nn.Flatten(), "net.pt2", [1.0], {}, "must be a tensor that holds a batch"),
        (nn.Flatten(), "net.pt2", X[:0], {}, "must be a tensor that holds a batch"),
        (nn.Flatten(), "net.pt2", X, {"opset": 18}, "an opset is for ONNX"),
        (nn.Flatten(), "there.pt2", X, {}, "already exists"),
        (Two(), "net.pt2", X, {}, "this returns a tuple"),
        (Squeezed(), "net.pt2", X, {}, r"returns a tensor of shape \(\), without the batch: let it squeeze the dim"),
        (nn.Conv2d(1, 2, 3), "net.pt2", X, {}, "this Conv2d does not take a batch of 3 x 3 x 16 x 16 float32"),
        (nn.Linear(16, 2), "net.pt2", X.byte(), {}, "does not take a batch of 3 x 3 x 16 x 16 uint8"),
        (Doubtful(), "net.pt2", X, {}, "torch cannot export this model as .pt2: "),
        (
            nn.Conv2d(3, 4, 3).double(),
            "net.onnx",
            X.double(),
            {},
            r"in float64: give model\.float\(\) and a float32 ex",
        ),
        ("net", "net.pt2", X, {}, "takes a model"),
    ],
)
def test_what_cannot_be_exported_is_a_sentence(model, name, example, options, words, tmp_path):
    (tmp_path / "there.pt2").touch()
    with pytest.raises((ValueError, TypeError, RuntimeError), match=words) as raised:
        repopt.export_model(model, tmp_path / name, example, **options)
    assert "\n" not in str(raised.value)
    assert [path.name for path in tmp_path.iterdir()] == ["there.pt2"]


@pytest.mark.filterwarnings("ignore:`torch.jit.trace:DeprecationWarning")
def test_what_torch_jit_returns_is_refused(net, tmp_path):
    with pytest.raises(TypeError, match=r"export_model takes the model before torch\.jit"):
        repopt.export_model(torch.jit.trace(net.eval(), X), tmp_path / "net.onnx", X)


def test_blocks_are_merged_first(net, tmp_path):
    search = repopt.search_model(net, repopt.plan(net, "repvgg"))
    with pytest.raises(ValueError, match=r"give repopt\.merge"):
        repopt.export_model(search, tmp_path / "net.onnx", X)


@pytest.mark.parametrize(
    "name",
    [
        "resnet10t",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("resnet18", "resnet50", "mobilenetv2_100", "convnext_atto", "mobileone_s0")
        ),
    ],
)
def test_a_model_of_timm_through_onnx_runtime(name, tmp_path):
    pytest.importorskip("timm")
    model, x = settle(repopt.create_model(f"timm:{name}", num_classes=10)).eval(), torch.randn(3, 3, 64, 64)
    repopt.export_model(model, tmp_path / "net.onnx", x[:1])
    with torch.no_grad():
        assert relative(onnx_runner(tmp_path / "net.onnx")(x), model(x)) <= 1e-4
