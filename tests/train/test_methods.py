import pytest
import torch
from torch import nn

import repopt
from repopt.models import RepGhostNet, RepOptVGG, RepVGG
from repopt.surgery import csla_blocks, search_blocks
from repopt.train.methods import METHODS, clip_, counterpart, make_optimizer, make_subject
from repopt.train.recipe import Recipe

CPU = torch.device("cpu")


def subject(method, recipe=None, name="repopt_vgg_nano"):
    recipe = recipe or Recipe()
    torch.manual_seed(recipe.seed)
    model = repopt.create_model(counterpart(name, method), num_classes=4, kernel=recipe.kernel)
    return make_subject(method, model, recipe, scales="ones")


def test_each_method_trains_its_own_form():
    forms = {method: subject(method).model for method in METHODS}
    assert {type(forms[method]) for method in ("repopt", "sgd")} == {RepOptVGG}
    assert isinstance(forms["repvgg"], RepVGG)
    assert type(forms["qarepvgg"]).__name__ == "QARepVGG"
    assert len(csla_blocks(forms["csla"])) == len(search_blocks(forms["search"])) == 28
    assert isinstance(subject("repvgg", name="repopt_ghostnet_050").model, RepGhostNet)


def test_the_same_seed_draws_the_same_blocks_for_every_form():
    """So that a comparison of methods compares methods."""
    plain, written_out = subject("repopt"), subject("csla")
    merged = repopt.merge(written_out.model)
    for name, weight in plain.model.named_parameters():
        torch.testing.assert_close(merged.get_parameter(name), weight, rtol=1e-5, atol=1e-6)


def test_the_convention_is_the_same_for_every_method():
    """Under `paper` each branch, and each plain kernel, has He's variance for its own fan."""
    for method, parameter in (
        ("sgd", "stage3.5.conv.weight"),
        ("repvgg", "stage3.5.rbr_dense.conv.weight"),
        ("search", "stage3.5.conv.kernels.conv3x3"),
        ("csla", "stage3.5.conv.kernels.conv3x3"),
    ):
        kernel = subject(method, Recipe(kernel="paper")).model.get_parameter(parameter)
        torch.testing.assert_close(kernel.std().item(), (2 / kernel[0].numel()) ** 0.5, rtol=0.05, atol=0)


@pytest.mark.parametrize("optimizer", ["SGD", "AdamW", "RAdam"])
@pytest.mark.parametrize("method", METHODS)
def test_any_optimizer_takes_a_step_by_any_method(method, optimizer):
    recipe = Recipe(optimizer=optimizer, clip=1.0)
    trained = subject(method, recipe)
    rule = make_optimizer(trained, recipe, 0.01, device=CPU, graph=False)
    nn.functional.cross_entropy(trained.model(torch.randn(8, 3, 32, 32)), torch.arange(8) % 4).backward()
    clip_(trained, 1.0)
    before = [param.detach().clone() for param in trained.model.parameters()]
    rule.step()
    assert any(not torch.equal(param, old) for param, old in zip(trained.model.parameters(), before, strict=True))


def test_what_a_method_cannot_do_is_said():
    with pytest.raises(ValueError, match="the method repopt needs scales: give --scales"):
        make_subject("repopt", repopt.create_model("repopt_vgg_nano"), Recipe())
    with pytest.raises(ValueError, match="there is no method 'adam'; there is repopt, sgd"):
        counterpart("repopt_vgg_nano", "adam")
    with pytest.raises(ValueError, match="qarepvgg is for VGGs"):
        counterpart("repopt_ghostnet_050", "qarepvgg")
