import json
import math
from collections import OrderedDict

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import repopt
from repopt import Conv, Identity, Linear, Scales
from repopt.plans.scales import shipped
from repopt.surgery.conversion import extract_scales, search_model


def equal(left: Scales, right: Scales) -> bool:
    return {name: set(left[name]) for name in left} == {name: set(right[name]) for name in right} and all(
        torch.equal(left[name][branch], right[name][branch]) for name in left for branch in left[name]
    )


def stage_plan():
    """A stem, a stage of three and one of two."""
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1),
        *[nn.Conv2d(8, 8, 3, padding=1) for _ in range(2)],
        nn.Conv2d(8, 12, 3, 2, 1),
        nn.Conv2d(12, 12, 3, padding=1),
    )
    return repopt.plan(net, {r"\d": [Conv(3), Conv(1), Identity()]})


def test_a_file_gives_back_scales_and_metadata(tmp_path):
    scales = Scales(
        {"stage1.0.conv": {"conv3x3": torch.randn(4), "conv1x1": 0.5}, "": {"linear": torch.randn(2)}},
        metadata={"recipe": "b"},
    )
    scales.save(tmp_path / "net.safetensors")
    loaded = Scales.load(tmp_path / "net.safetensors")
    assert equal(scales, loaded)
    assert loaded.metadata == {"recipe": "b"}
    assert repr(loaded) == "Scales(2 operators, 7 numbers)"


def test_the_authors_layout_is_read_as_operators_and_branches(tmp_path):
    file = OrderedDict(
        {
            "stage0.scale_conv.weight": torch.full((4,), 3.0),
            "stage0.scale_1x1.weight": torch.full((4,), 1.0),
            "stage1.2.scale_identity.weight": torch.full((4,), -1.0),
            "blocks.0.0.ghost1.cheap_operation.1.weight": torch.full((4,), 5.0),
            "module.blocks.0.0.ghost1.fusion_scale.weight": torch.full((4,), 6.0),
        }
    )
    torch.save(file, tmp_path / "authors.pth")
    scales = Scales.load(tmp_path / "authors.pth")
    first = {name: {branch: scale[0].item() for branch, scale in its.items()} for name, its in scales.items()}
    assert first == {
        "stage0.conv": {"conv3x3": 3.0, "conv1x1": 1.0},
        "stage1.2.conv": {"identity": -1.0},
        "blocks.0.0.ghost1.cheap_operation.0": {"conv3x3": 5.0, "identity": 6.0},
    }


@pytest.mark.parametrize(
    ("file", "operators", "numbers", "negatives"),
    [("RepOpt-VGG-B1-scales.pth", 28, 34_048, 156), ("RepOpt-VGG-L1-scales.pth", 48, 54_016, 1_538)],
)
def test_the_released_vgg_scales_hold_negatives(authors_scales, file, operators, numbers, negatives):
    scales = Scales.load(authors_scales / file)
    every = torch.cat([scale for its in scales.values() for scale in its.values()])
    assert (len(scales), every.numel(), int((every < 0).sum())) == (operators, numbers, negatives)


def test_the_released_ghost_scales_belong_to_the_cheap_operations(authors_scales):
    scales = Scales.load(authors_scales / "RepOptGhostNet_0_5x_scales.pth")
    assert len(scales) == 32
    assert all(name.endswith("cheap_operation.0") for name in scales)
    assert all(set(its) == {"conv3x3", "identity"} for its in scales.values())


def test_ones_have_an_entry_for_every_branch_but_the_identity():
    scales = Scales.ones(stage_plan())
    assert all(set(its) == {"conv3x3", "conv1x1"} for its in scales.values())
    assert all((scale == 1).all() for its in scales.values() for scale in its.values())


@pytest.mark.parametrize(("counting", "layers"), [("authors", [None, 1, 2, None, 1]), ("paper", [1, 2, 3, 1, 2])])
def test_depth_init_counts_layers_within_a_stage(counting, layers):
    scales = Scales.depth_init(stage_plan(), counting)
    expected = [1.0 if layer is None else math.sqrt(2 / layer) for layer in layers]
    assert [its["conv1x1"][0].item() for its in scales.values()] == pytest.approx(expected)


def test_depth_is_a_name_for_the_scales_that_a_search_starts_from():
    plan = stage_plan()
    wanted = Scales.depth_init(plan)
    assert plan.with_scales("depth").scales == wanted
    assert repopt.plan(plan.model, {r"\d": [Conv(3), Conv(1), Identity()]}, scales="depth").scales == wanted
    assert extract_scales(search_model(plan.model, plan, start="depth"))["2"]["conv1x1"].eq(math.sqrt(2 / 2)).all()


def test_a_model_may_count_its_depths_itself():
    class Net(nn.Sequential):
        def repopt_depths(self):
            return {"0": 7}

    plan = repopt.plan(Net(nn.Linear(4, 4)), {"0": [Linear()]})
    assert Scales.depth_init(plan)["0"]["linear"][0].item() == pytest.approx(math.sqrt(2 / 7))


def test_channel_means_keep_the_shape():
    scales = Scales({"conv": {"conv3x3": torch.tensor([1.0, 3.0]), "conv1x1": 5.0}}).channel_mean()
    assert scales["conv"]["conv3x3"].tolist() == [2.0, 2.0]
    assert scales["conv"]["conv1x1"].item() == 5.0


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (math.nan, r"'conv\.conv3x3' holds 1 NaN or infinite"),
        (torch.tensor([1.0, math.inf, -math.inf]), r"'conv\.conv3x3' holds 2 NaN or infinite"),
        (torch.ones(2, 2), r"'conv\.conv3x3' is torch\.float32 of shape \(2, 2\)"),
        (torch.ones(2, dtype=torch.int64), r"'conv\.conv3x3' is torch\.int64"),
        (torch.ones(2, dtype=torch.complex64), r"'conv\.conv3x3' is torch\.complex64"),
    ],
)
def test_a_scale_that_is_no_real_finite_number_is_refused(value, words):
    with pytest.raises(ValueError, match=words):
        Scales({"conv": {"conv3x3": value}})


def foreign_files(folder):
    (folder / "corrupt.pth").write_bytes(b"PK\x03\x04 not really a zip file")
    (folder / "empty.pth").write_bytes(b"")
    (folder / "text.pth").write_text("hello")
    (folder / "corrupt.safetensors").write_bytes(b"\xff" * 64)
    (folder / "empty.safetensors").write_bytes(b"")
    torch.save({"conv.weight": torch.ones(2)}, folder / "weights.pth")
    torch.save([torch.ones(2)], folder / "list.pth")
    torch.save({}, folder / "nothing.pth")
    torch.save({"stage0.scale_conv.weight": 3}, folder / "number.pth")
    torch.save(nn.Linear(2, 2), folder / "module.pth")
    save_file({"conv.weight": torch.ones(2)}, folder / "weights.safetensors")


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("corrupt.pth", "it may be corrupt"),
        ("empty.pth", "it may be corrupt"),
        ("text.pth", "it may be corrupt"),
        ("module.pth", "not a PyTorch file that holds tensors alone"),
        ("weights.pth", r"holds 'conv\.weight', which is not a scale"),
        ("list.pth", "does not hold a dictionary of scales"),
        ("nothing.pth", "does not hold a dictionary of scales"),
        ("number.pth", "holds no tensor at 'stage0"),
        ("corrupt.safetensors", "is damaged, or not a safetensors file"),
        ("empty.safetensors", "is damaged, or not a safetensors file"),
        ("weights.safetensors", r"holds 'conv\.weight', which does not end in a branch's name"),
    ],
)
def test_a_corrupt_or_foreign_file_is_named_in_a_sentence(tmp_path, file, words):
    foreign_files(tmp_path)
    with pytest.raises(ValueError, match=words) as raised:
        Scales.load(tmp_path / file)
    assert file in str(raised.value)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no scales file .*missing\.safetensors"):
        Scales.load(tmp_path / "missing.safetensors")


def test_an_unknown_name_says_what_ships(monkeypatch, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"'one' is neither 'ones', .* that ship with repopt: choose repopt_"):
        Scales.load("one")
    monkeypatch.setattr("repopt.plans.scales.ZOO", tmp_path)
    Scales({"conv": {"conv3x3": 1.0}}).save(tmp_path / "repopt_vgg_b1.safetensors")
    with pytest.raises(FileNotFoundError, match=r"repopt_vgg_b1\b"):
        Scales.load("repopt_vgg_b2")
    assert list(Scales.load("repopt_vgg_b1")) == ["conv"]


def test_scales_are_saved_as_safetensors_only(tmp_path):
    with pytest.raises(ValueError, match=r"must end in \.safetensors"):
        Scales({}).save(tmp_path / "scales.pth")


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no folder .*missing' to save scales in"):
        Scales({}).save(tmp_path / "missing" / "net.safetensors")


def test_an_unknown_counting_is_refused():
    with pytest.raises(ValueError, match="'authors' or 'paper', not 'mine'"):
        Scales.depth_init(stage_plan(), "mine")


def test_every_plain_vgg_has_scales_and_two_ghostnets():
    vggs = {name for name in repopt.list_models() if name.startswith("repopt_vgg_")}
    assert set(shipped()) == vggs | {"repopt_ghostnet_050", "repopt_ghostnet_100"}


@pytest.mark.parametrize("name", shipped())
def test_shipped_scales_fit_their_model_and_say_where_they_come_from(name):
    with torch.device("meta"):
        plan = repopt.plan(repopt.create_model(name), scales=name)
    assert set(plan.scales) == set(plan.operators)
    run, recipe = (json.loads(plan.scales.metadata[key]) for key in ("run", "recipe"))
    epochs = 600 if "ghostnet" in name else 240
    assert (run["method"], run["model"], recipe["epochs"]) == ("search", name, epochs)
    assert {"data_digest", "seed", "torch", "date", "hardware"} < set(run)


@pytest.mark.parametrize("size", ["b1", "b2", "l1", "l2"])
def test_our_searches_find_what_the_authors_found(authors_scales, size):
    """Correlation over all channels and branches; two searches of ours have 0.95 for B1."""
    ours = repopt.Scales.load(f"repopt_vgg_{size}")
    theirs = repopt.Scales.load(authors_scales / f"RepOpt-VGG-{size.upper()}-scales.pth")
    both = [
        (ours[name][branch].float(), scale.float()) for name, its in theirs.items() for branch, scale in its.items()
    ]
    pair = torch.stack([torch.cat([each[side] for each in both]) for side in (0, 1)])
    assert torch.corrcoef(pair)[0, 1] > 0.8


def test_scales_with_the_same_numbers_are_equal():
    scales = Scales({"conv": {"conv3x3": torch.arange(3.0), "conv1x1": 2.0}}, metadata={"from": "here"})
    assert scales == Scales({"conv": {"conv3x3": torch.arange(3.0), "conv1x1": 2.0}})
    assert scales != Scales({"conv": {"conv3x3": torch.arange(3.0), "conv1x1": 3.0}})
    assert scales != Scales({"conv": {"conv3x3": torch.arange(3.0)}})
    assert scales != Scales({})
    assert scales != 2.0


def test_a_plan_is_named_in_one_line():
    plan = repopt.plan(repopt.create_model("repopt_vgg_nano"), scales="ones")
    assert repr(plan).startswith("Plan(28 operators of a RepOptVGG, scales=Scales(28 operators")


def test_every_flipped_bit_of_a_file_is_noticed_or_changes_nothing(tmp_path):
    """A file without the digest, of an earlier version or of another program, is read as it is."""
    scales = Scales({"conv": {"conv3x3": torch.randn(3), "conv1x1": torch.randn(3)}}, {"data": "digits"})
    scales.save(tmp_path / "scales.safetensors")
    content = (tmp_path / "scales.safetensors").read_bytes()
    noticed = 0
    for bit in range(0, 8 * len(content), 5):
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << bit % 8
        (tmp_path / "changed.safetensors").write_bytes(changed)
        try:
            assert Scales.load(tmp_path / "changed.safetensors") == scales, bit
        except ValueError:
            noticed += 1
    assert noticed > 0.8 * len(content) * 8 / 5
    tensors = {f"conv.{branch}": scale for branch, scale in scales["conv"].items()}
    save_file(tensors, tmp_path / "older.safetensors", metadata={"format": "pt"})
    assert Scales.load(tmp_path / "older.safetensors") == scales
