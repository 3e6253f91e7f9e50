"""Models that are named by a reference to other code."""

import importlib
import json
import sys

import pytest
import torch
from safetensors.torch import save_file

import other_nets
import repopt
from repopt.models import load_checkpoint
from repopt.models.references import offered

DATA = {"num_classes": 4, "in_chans": 3, "dropout": None}


@pytest.mark.parametrize("library", ["timm", "torchvision"])
def test_a_reference_is_what_the_library_itself_makes(library):
    pytest.importorskip(library)
    make = {"timm": "create_model", "torchvision": "get_model"}[library]
    home = importlib.import_module({"timm": "timm", "torchvision": "torchvision.models"}[library])
    torch.manual_seed(0)
    ours = repopt.create_model(f"{library}:resnet18", num_classes=4)
    torch.manual_seed(0)
    theirs = getattr(home, make)("resnet18", num_classes=4)
    assert type(ours) is type(theirs)
    assert all(torch.equal(*pair) for pair in zip(ours.parameters(), theirs.parameters(), strict=True))


def test_a_module_of_the_working_directory_is_imported_for_its_reference_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in_here.py").write_text(
        "def net(width):\n    from beside_it import layer\n    return layer(width)\n"  # while the model is made
    )
    (tmp_path / "beside_it.py").write_text("from torch import nn\ndef layer(width): return nn.Linear(width, width)\n")
    (tmp_path / "by_accident.py").write_text("raise SystemExit\n")
    before = [*sys.path]
    assert repopt.create_model("in_here:net", width=3).in_features == 3
    assert sys.path == before
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("by_accident")


def test_a_file_of_the_working_directory_hides_no_installed_module(tmp_path, monkeypatch):
    for name, width in (("installed", 1), ("here", 2)):
        (tmp_path / name).mkdir()
        code = f"from torch import nn\ndef net(): return nn.Linear({width}, 1)\n"
        (tmp_path / name / "has_two_homes.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path / "installed")
    monkeypatch.chdir(tmp_path / "here")
    assert repopt.create_model("has_two_homes:net").in_features == 1


@pytest.mark.parametrize("home", ["sys", "only_a_folder"])
def test_a_module_without_a_file_has_no_such_factory_either(home, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "only_a_folder").mkdir()
    with pytest.raises(ValueError, match=f"^the module '{home}' has no 'net'$"):
        repopt.create_model(f"{home}:net")


@pytest.mark.parametrize(
    ("reference", "taken"),
    [
        ("other_nets:small", {"num_classes": 4}),
        ("other_nets:passes_on", {"num_classes": 4}),
        ("other_nets:Four", {}),
        ("torchvision:resnet18", {"num_classes": 4}),
        ("timm:resnet18", {"num_classes": 4, "in_chans": 3}),
        ("repopt_vgg_nano", {"num_classes": 4, "in_chans": 3}),
    ],
)
def test_a_factory_is_offered_what_it_takes(reference, taken):
    assert offered(reference, **DATA) == taken


def test_dropout_goes_by_the_librarys_own_name():
    assert offered("timm:resnet18", **{**DATA, "dropout": 0.1})["drop_rate"] == 0.1
    assert offered("torchvision:vgg11", **{**DATA, "dropout": 0.1})["dropout"] == 0.1


@pytest.fixture
def folder(tmp_path):
    """A model as a run leaves it; its keys `stem.` and `model.` are not renamed as those of known layouts are."""
    model = other_nets.small(width=4)
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    config = {"model": "other_nets:small", "options": {"num_classes": 4, "width": 4}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path, model


def test_a_factory_that_a_folder_names_is_imported_on_trust(folder):
    path, model = folder
    with pytest.raises(ValueError, match=r"would import other_nets:small .* give --trust \(in Python trust=True\)"):
        repopt.create_model(path)
    loaded, x = repopt.create_model(path, trust=True), torch.randn(2, 3, 16, 16)
    assert torch.equal(loaded.eval()(x), model.eval()(x))


def test_a_library_that_a_folder_names_needs_no_trust(tmp_path):
    model = repopt.create_model("timm:resnet10t", num_classes=4)
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text('{"model": "timm:resnet10t", "options": {"num_classes": 4}}')
    assert torch.equal(repopt.create_model(tmp_path).fc.weight, model.fc.weight)


@pytest.mark.parametrize("prefix", ["", "module.", "model."])
def test_a_checkpoint_of_another_net_is_loaded_under_its_own_keys(prefix):
    net, other = other_nets.small(), other_nets.small()
    load_checkpoint(other, {f"{prefix}{key}": value for key, value in net.state_dict().items()})
    assert all(torch.equal(*pair) for pair in zip(net.parameters(), other.parameters(), strict=True))


def test_a_network_with_a_child_called_module_loads_what_it_and_its_wrappers_save():
    net, other, third = other_nets.behind_norm(), other_nets.behind_norm(), other_nets.behind_norm()
    load_checkpoint(other, net.state_dict())
    load_checkpoint(third, torch.nn.DataParallel(net).state_dict())
    for loaded in (other, third):
        assert all(torch.equal(*pair) for pair in zip(net.parameters(), loaded.parameters(), strict=True))


def test_maps_are_asked_of_the_models_own_library():
    with pytest.raises(ValueError, match="ask its own library"):
        repopt.create_model("timm:resnet18", features_only=True)
