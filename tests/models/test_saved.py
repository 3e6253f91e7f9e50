"""Models that are loaded from a folder."""

import json

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import repopt
from repopt.models import deploy, load_checkpoint
from repopt.models.saved import give_biases_
from repopt.train.runs import load_run
from settled import settle

OPTIONS = {"num_classes": 4, "in_chans": 1, "depths": [1, 1, 1, 1]}


@pytest.fixture
def folder(tmp_path):
    """A model as a run leaves it."""
    options = {**OPTIONS, "depths": tuple(OPTIONS["depths"])}
    model = settle(repopt.create_model("repopt_vgg_nano", **options))
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    images = {"classes": list("abcd"), "mean": [0.5], "std": [0.25], "size": 32}
    (tmp_path / "config.json").write_text(json.dumps({"model": "repopt_vgg_nano", "options": OPTIONS, **images}))
    return tmp_path


def test_a_folder_is_loaded_as_a_run_is(folder):
    x = torch.randn(2, 1, 32, 32)
    model = repopt.create_model(str(folder))
    assert model.training  # as any new module is
    trained = load_run(folder)
    assert not trained.model.training
    assert torch.equal(model.eval()(x), trained.model(x))
    assert trained.config["classes"] == list("abcd")
    torch.testing.assert_close(deploy(model)(x), model(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["repvgg_nano", "qarepvgg_nano", "repopt_ghostnet_050", "repghostnet_050"])
def test_a_deploy_form_is_loaded(name, tmp_path):
    x = torch.randn(2, 3, 32, 32)
    model = deploy(settle(repopt.create_model(name, num_classes=4))).eval()
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"model": name, "options": {"num_classes": 4, "deploy": True}}))
    assert torch.equal(repopt.create_model(tmp_path).eval()(x), model(x))


def test_a_folder_is_loaded_as_a_backbone(folder):
    backbone = repopt.create_model(folder, features_only=True, out_indices=(1, 2)).eval()
    maps = backbone(torch.randn(2, 1, 32, 32))
    assert [tuple(each.shape) for each in maps] == [(2, 16, 8, 8), (2, 24, 4, 4)]
    assert torch.equal(backbone.stage1[0].conv.weight, load_run(folder).model.stage1[0].conv.weight)


def test_a_backbone_that_ends_early_gets_the_biases_that_it_has_a_place_for(folder):
    """Those that norms of real branches left, of the whole model."""
    model = repopt.create_model(folder)
    names = ["stage1.0.conv", "stage4.0.conv"]
    give_biases_(model, names)
    nn.init.ones_(model.stage1[0].conv.bias)
    save_file(model.state_dict(), folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "biases": names}))
    backbone = repopt.create_model(folder, features_only=True, out_indices=(1, 2))
    assert backbone.stage1[0].conv.bias.eq(1).all()
    with pytest.raises(ValueError, match="leave biases: create_model takes the run's folder"):
        load_checkpoint(repopt.create_model("repopt_vgg_nano", **OPTIONS), folder / "model.safetensors")


def test_a_name_goes_before_a_folder_of_that_name(folder, monkeypatch):
    monkeypatch.chdir(folder)
    (folder / "repopt_vgg_nano").mkdir()
    assert repopt.create_model("repopt_vgg_nano").num_classes == 1000


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"num_classes": 7}, "does not fit this RepOptVGG: 'linear.weight' has shape .*reset_classifier"),
        ({"deploy": True}, "does not fit this RepOptVGG"),
        ({"depths": (1, 1, 1, 2)}, "does not fit this RepOptVGG: it lacks 'stage4.1"),
    ],
)
def test_options_that_the_weights_do_not_fit_are_refused(folder, options, words):
    with pytest.raises(ValueError, match=words):
        repopt.create_model(folder, **options)


def test_a_folder_without_a_model_is_refused(folder):
    config = folder / "config.json"
    config.write_text("[]")
    with pytest.raises(ValueError, match=r"config\.json' is corrupt: Expected `object`, got `array`"):
        repopt.create_model(folder)
    config.write_text("{")
    with pytest.raises(ValueError, match="is corrupt: line 1 is not JSON"):
        repopt.create_model(folder)
    config.write_text(json.dumps({"model": str(folder), "options": {}}))
    with pytest.raises(ValueError, match=r"there is no model .* nor a folder"):
        repopt.create_model(folder)
    config.unlink()
    with pytest.raises(ValueError, match=r"holds weights but no config.json"):
        repopt.create_model(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"is not a run folder: it has no model.safetensors"):
        repopt.create_model(str(folder))
    (folder / "recipe.json").write_text("{}")
    with pytest.raises(ValueError, match=r"is not finished: it has no model.safetensors"):
        repopt.create_model(folder)
    with pytest.raises(ValueError, match="there is no model 'runs/b1', nor a folder of that name"):
        repopt.create_model("runs/b1")
