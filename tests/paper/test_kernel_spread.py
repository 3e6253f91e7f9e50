"""Table 8 and appendix C: the spread of a kernel, on its way to deployment."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from paper.kernel_spread import at_positions, find_layer, layer_kernels, run_kernels, spread, starting_model
from repopt.data import load_data
from repopt.models import create_model, deploy
from repopt.surgery.conversion import merge
from repopt.train.job import Job
from repopt.train.recipe import load_recipe, with_fields
from repopt.train.runs import load_run
from repopt.train.training import build, train_run

CHANGES = {"epochs": 1, "warmup_epochs": 0, "batch_size": 16, "seed": 3, "size": 16, "kernel": "paper"}
RECIPE = with_fields(load_recipe("demo"), CHANGES, "test")
DATA = "fake:32,4,16"
RUNS = {
    "repopt": {"method": "repopt", "scales": "ones"},
    "learned": {"method": "repopt", "scales": "learn", "recipe": replace(RECIPE, freeze_at=0.5)},
    "acnet": {"method": "repopt", "scales": "ones", "branches": "acnet"},
    "branches": {"method": "branches"},
    "repvgg": {"method": "repvgg"},
    "search": {"method": "search"},
}


def used(name, **options):
    """A model whose norms have seen data and have weights of their own."""
    torch.manual_seed(0)
    model = create_model(name, num_classes=3, **options)
    for norm in (module for module in model.modules() if isinstance(module, nn.BatchNorm2d)):
        nn.init.uniform_(norm.weight, 0.5, 2.0)
    model(torch.randn(8, 3, 32, 32))
    return model.eval()


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """{name: (job, folder)} of runs of one epoch."""
    root, found = tmp_path_factory.mktemp("runs"), {}
    for name, how in RUNS.items():
        options = {"depths": (1, 3), "widths": (8, 8), "stem": 4}
        job = Job(**{"model": "repopt_vgg_nano", "data": DATA, "recipe": RECIPE, "options": options, **how})
        train_run(job, root / name, device="cpu", quiet=True)
        found[name] = (job, root / name)
    return found


def test_the_three_deviations_are_those_of_the_positions():
    kernel = torch.zeros(4, 2, 3, 3)
    kernel[:, :, 1, 1] = torch.tensor([[1.0, -1.0]])
    found = spread(kernel)
    assert found["surrounding"] == 0
    assert found["central"] == pytest.approx((8 / 7) ** 0.5)
    assert found["overall"] == pytest.approx((8 / 71) ** 0.5)
    assert {name: len(values) for name, values in at_positions(kernel).items()} == {
        "overall": 72,
        "central": 8,
        "surrounding": 64,
    }


@pytest.mark.parametrize("shape", [(4, 4, 1, 1), (4, 4, 2, 2), (4, 4, 3, 5)])
def test_a_kernel_without_surroundings_is_refused(shape):
    with pytest.raises(ValueError, match="only a square kernel of odd size"):
        spread(torch.zeros(shape))


@pytest.mark.parametrize("name", ["repvgg_nano", "qarepvgg_nano", "repopt_vgg_nano", "repghostnet_050"])
def test_the_last_kernel_is_the_one_that_is_deployed(name):
    model = used(name)
    layer = find_layer(model)
    block = deploy(model).get_submodule(layer.name)
    deployed = {"repv": "rbr_reparam", "qare": "rbr_reparam", "repo": "conv", "repg": "cheap_operation.0"}[name[:4]]
    kernels = layer_kernels(model, layer)
    torch.testing.assert_close(list(kernels.values())[-1], block.get_submodule(deployed).weight)


@pytest.mark.parametrize("name", ["repvgg_nano", "qarepvgg_nano", "repghostnet_050"])
def test_branch_addition_changes_the_centre_alone(name):
    model = used(name)
    kernels = layer_kernels(model, find_layer(model))
    before, fused, added = (spread(kernel) for kernel in kernels.values())
    assert list(kernels) == ["before fusing BN", "after fusing BN", "after branch addition"]
    assert added["surrounding"] == pytest.approx(fused["surrounding"], rel=1e-6)
    assert added["central"] != pytest.approx(fused["central"], rel=1e-2)
    assert before["surrounding"] != pytest.approx(fused["surrounding"], rel=1e-2)


def test_a_plain_model_s_kernel_is_its_convolution_s():
    model = used("repopt_vgg_nano")
    assert torch.equal(layer_kernels(model, find_layer(model))["3x3 kernel"], model.stage3[7].conv.weight)


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("repopt_vgg_nano", {}, "stage3.7, layer 8 of 16 in stage3"),  # the paper's
        ("repvgg_nano", {"depths": (1, 3), "widths": (8, 8)}, "stage2.1, layer 2 of 3 in stage2"),
        ("repopt_ghostnet_050", {}, "blocks.6.3.ghost2, layer 8 of 10 in blocks.6"),
    ],
)
def test_the_layer_is_the_8th_of_the_longest_stage_or_the_middle_of_a_short_one(name, options, expected):
    assert str(find_layer(create_model(name, **options))) == expected


def test_a_layer_goes_by_the_name_of_its_block_or_of_a_module_in_it():
    model = create_model("repopt_vgg_nano")
    assert find_layer(model, "stage2.1").name == find_layer(model, "stage2.1.conv").name == "stage2.1"
    with pytest.raises(ValueError, match=r"no 3x3 layer 'stage2': it has 'stage0'"):
        find_layer(model, "stage2")
    with pytest.raises(ValueError, match="holds no 3x3 layer"):
        find_layer(nn.Linear(2, 2))


@pytest.mark.parametrize("name", RUNS)
def test_a_run_s_start_is_drawn_again_as_it_was(runs, name):
    job, folder = runs[name]
    built = build(job, load_data(DATA, size=16), torch.device("cpu")).model
    expected = merge(built) if name in ("learned", "branches", "search") else built
    started = starting_model(folder)
    assert all(torch.equal(value, started.state_dict()[name]) for name, value in expected.state_dict().items())


def test_a_run_s_table_has_the_trained_kernel_beside_the_first(runs):
    _, folder = runs["repopt"]
    found = run_kernels(folder)
    assert found.about == {"run": "repopt", "method": "repopt", "model": "repopt_vgg_nano"}
    assert (found.seed, found.layer.name) == (3, "stage2.1")
    trained, start = found.kernels["3x3 kernel"]
    assert torch.equal(trained, load_run(folder).model.stage2[1].conv.weight)
    assert torch.equal(start, starting_model(folder).stage2[1].conv.weight)
    assert not torch.equal(trained, start)
