import re

import pytest
import torch
from safetensors.torch import save_file

import repopt
from repopt.models import deploy, load_checkpoint
from settled import settle

# our key -> the key of another layout
AUTHORS_REPVGG = (
    (r"rbr_dense\.conv", "conv_3x3"),
    (r"rbr_dense\.bn", "bn_3x3"),
    (r"rbr_1x1\.conv", "conv_1x1"),
    (r"rbr_1x1\.bn", "bn_1x1"),
    ("rbr_identity", "bn_identity"),
    (r"se\.conv_reduce", "post_se.down"),
    (r"se\.conv_expand", "post_se.up"),
)
AUTHORS_GHOST = ((r"cheap_operation\.1\.", "final_bn."),)
AUTHORS_REPGHOST = ((r"fusion_bn\.0\.", "fusion_bn."),)
LAYOUTS = {
    "the authors' plain model": ("repopt_vgg_nano", {}, ()),
    "the authors' RepVGG": ("repvgg_nano", {"se": True}, AUTHORS_REPVGG),
    "the authors' GhostNet": ("repopt_ghostnet_050", {}, AUTHORS_GHOST),
    "the authors' RepGhostNet": ("repghostnet_050", {}, AUTHORS_REPGHOST),
    "the public RepVGG": ("repvgg_nano", {}, ()),
}


def renamed(state, renames):
    for ours, theirs in renames:
        state = {re.sub(ours, theirs, key): value for key, value in state.items()}
    return state


def same(model, other):
    return all(torch.equal(value, other.state_dict()[key]) for key, value in model.state_dict().items())


@pytest.mark.parametrize("layout", LAYOUTS)
def test_checkpoints_of_other_code_are_read(layout):
    name, options, renames = LAYOUTS[layout]
    model, other = settle(repopt.create_model(name, **options)), repopt.create_model(name, **options)
    load_checkpoint(other, renamed(model.state_dict(), renames))
    assert same(model, other)


def test_the_public_layout_is_the_one_written_in_the_repvgg_papers_code():
    keys = set(repopt.create_model("repvgg_nano").state_dict())
    assert {"stage0.rbr_dense.conv.weight", "stage1.1.rbr_1x1.bn.weight", "stage1.1.rbr_identity.weight"} < keys
    assert {"stage0.conv.weight", "stage1.0.bn.bias", "linear.weight"} < set(
        repopt.create_model("repopt_vgg_nano").state_dict()
    )


@pytest.mark.parametrize("wrapped", [lambda state: {"model": state}, lambda state: {"state_dict": state, "epoch": 3}])
@pytest.mark.parametrize("ending", [".pth", ".safetensors"])
def test_files_and_wrappers(tmp_path, ending, wrapped):
    model, other = settle(repopt.create_model("repvgg_nano")), repopt.create_model("repvgg_nano")
    state = {f"module.{key}": value for key, value in model.state_dict().items()}
    path = tmp_path / f"weights{ending}"
    if ending == ".pth":
        torch.save(wrapped(state), path)
    else:
        save_file(state, path)
    load_checkpoint(other, path)
    assert same(model, other)


def test_converted_weights_and_weights_without_counters_load():
    model = settle(repopt.create_model("repvgg_nano"))
    state = {key: value for key, value in model.state_dict().items() if not key.endswith("num_batches_tracked")}
    load_checkpoint(other := repopt.create_model("repvgg_nano"), state)
    assert same(model, other)
    load_checkpoint(repopt.create_model("repvgg_nano", deploy=True), deploy(model).state_dict())


class Trap:
    def __reduce__(self):
        return print, ("unpickled",)


def test_nothing_in_a_file_is_executed(tmp_path, capsys):
    torch.save({"model": Trap()}, tmp_path / "trap.pth")
    with pytest.raises(ValueError, match="not a PyTorch file that holds tensors alone"):
        load_checkpoint(repopt.create_model("repvgg_nano"), tmp_path / "trap.pth")
    assert "unpickled" not in capsys.readouterr().out


def without(state, part):
    return {key: value for key, value in state.items() if part not in key}


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda state: without(state, "stage2.1.bn.w"), "this RepOptVGG: it lacks 'stage2.1.bn.weight'$"),
        (lambda state: {**state, "extra": torch.ones(1)}, "it holds 'extra', which the model has not$"),
        (
            lambda state: {**without(state, "linear"), "fc.weight": torch.ones(1), "fc.bias": torch.ones(1)},
            "it lacks 'linear.weight' and 1 more and it holds 'fc.weight' and 1 more, which the model has not",
        ),
        (lambda state: {**state, "linear.bias": torch.ones(7)}, r"'linear.bias' has shape \(7,\) in it and \(1000,\)"),
        (lambda state: {"model": 3}, "the checkpoint holds no state dict"),
        (lambda state: {}, "the checkpoint holds no state dict"),
    ],
)
def test_a_checkpoint_that_does_not_fit_names_its_keys(spoil, words):
    model = repopt.create_model("repopt_vgg_nano")
    before = {key: value.clone() for key, value in model.state_dict().items()}
    with pytest.raises(ValueError, match=words):
        load_checkpoint(model, spoil(model.state_dict()))
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_weights_of_another_form_are_pointed_to_their_place():
    plain, repvgg = repopt.create_model("repopt_vgg_nano"), repopt.create_model("repvgg_nano")
    with pytest.raises(ValueError, match="plain_from_repvgg takes that to a plain one"):
        load_checkpoint(plain, repvgg.state_dict())
    with pytest.raises(ValueError, match="a model built with deploy=True"):
        load_checkpoint(repvgg, deploy(repvgg).state_dict())
    with pytest.raises(TypeError, match="takes a file or a state dict, not a int"):
        load_checkpoint(plain, 3)
    twice = {**plain.state_dict(), "stem.conv.weight": torch.ones(1)}
    with pytest.raises(ValueError, match=r"holds 'stage0\.conv\.weight' twice"):
        load_checkpoint(plain, twice)


def test_a_wrapped_model_and_lightnings_prefix():
    model, other = settle(repopt.create_model("repvgg_nano")), repopt.create_model("repvgg_nano")
    load_checkpoint(torch.nn.DataParallel(other), {f"model.{key}": value for key, value in model.state_dict().items()})
    assert same(model, other)


def test_files_that_are_none_are_refused(tmp_path):
    model = repopt.create_model("repopt_vgg_nano")
    with pytest.raises(FileNotFoundError, match="there is no checkpoint"):
        load_checkpoint(model, tmp_path / "none.pth")
    for ending, words in ((".pth", "holds tensors alone"), (".safetensors", "is damaged, or not a safetensors file")):
        path = tmp_path / f"bad{ending}"
        path.write_bytes(b"no weights")
        with pytest.raises(ValueError, match=words):
            load_checkpoint(model, path)
    torch.save([1, 2], tmp_path / "list.pth")
    with pytest.raises(ValueError, match="holds a list, not a checkpoint"):
        load_checkpoint(model, tmp_path / "list.pth")
