import copy

import pytest
import torch
from torch import nn

import repopt
from other_nets import small
from repopt.models import RepGhostNet, RepOptVGG, RepVGG
from repopt.plans.scales import Scales
from repopt.surgery.blocks import BranchBlock
from repopt.surgery.conversion import csla_blocks, search_blocks
from repopt.train.best_weights import finished_model
from repopt.train.methods import METHODS, Subject, can_be_captured, clip_, counterpart, make_optimizer, make_subject
from repopt.train.recipe import Recipe


def subject(method, recipe=None, name="repopt_vgg_nano"):
    recipe = recipe or Recipe()
    torch.manual_seed(recipe.seed)
    model = repopt.create_model(counterpart(name, method), num_classes=4, kernel=recipe.kernel)
    return make_subject(method, model, recipe, scales="ones")


def test_each_method_trains_its_own_form():
    forms = {method: subject(method).model for method in METHODS}
    assert {type(forms[method]) for method in ("repopt", "sgd", "dirac")} == {RepOptVGG}
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


@pytest.mark.parametrize("optimizer", ["SGD", "AdamW", "Adam", "RAdam", "Lion"])
@pytest.mark.parametrize("method", METHODS)
def test_any_optimizer_takes_a_step_by_any_method(method, optimizer):
    recipe = Recipe(optimizer=optimizer, clip=1.0)
    trained = subject(method, recipe)
    rule = make_optimizer(trained, recipe, 0.01)
    nn.functional.cross_entropy(trained.model(torch.randn(8, 3, 32, 32)), torch.arange(8) % 4).backward()
    clip_(trained, 1.0)
    before = [param.detach().clone() for param in trained.model.parameters()]
    rule.step()
    assert any(not torch.equal(param, old) for param, old in zip(trained.model.parameters(), before, strict=True))


def test_dirac_adds_an_identity_to_kernels_that_it_draws_and_leaves_loaded_ones_alone():
    trained = subject("dirac")
    assert trained.plan is None
    kernel = trained.model.get_parameter("stage3.5.conv.weight").detach()
    diagonal = kernel[range(len(kernel)), range(len(kernel)), 1, 1]
    assert (diagonal > 0.5).all()
    assert kernel.abs().sum() - diagonal.sum() < kernel.numel() * kernel[0].numel() ** -0.5  # torch's bound on the rest
    loaded = repopt.create_model("repopt_vgg_nano", num_classes=4)
    before = copy.deepcopy(loaded.state_dict())
    make_subject("dirac", loaded, Recipe(), drawn=False)
    assert all(torch.equal(value, before[name]) for name, value in loaded.state_dict().items())


@pytest.mark.parametrize(("method", "norm"), [("branches", True), ("qarepvgg", "qarepvgg")])
def test_any_network_gets_real_branches_in_either_form_and_leaves_them_behind(method, norm):
    trained = make_subject(method, small().train(), Recipe())
    blocks = [module for module in trained.model.modules() if isinstance(module, BranchBlock)]
    assert [block.norm for block in blocks] == [norm] * 4
    images = torch.randn(8, 3, 16, 16)
    trained.model(images).square().mean().backward()
    finished = finished_model(trained.model.eval())
    assert not any(isinstance(module, BranchBlock) for module in finished.modules())
    torch.testing.assert_close(finished(images), trained.model(images), rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match=f"the method {method} draws the kernels of its branches: leave --weights out"):
        make_subject(method, small(), Recipe(), drawn=False)


def test_scales_by_depth_need_no_file():
    trained = make_subject("repopt", repopt.create_model("repopt_vgg_nano"), Recipe(), scales="depth")
    assert trained.plan.scales == Scales.depth_init(trained.plan)


def test_what_a_method_cannot_do_is_said():
    with pytest.raises(ValueError, match="the method repopt needs scales: give --scales"):
        make_subject("repopt", repopt.create_model("repopt_vgg_nano"), Recipe())
    with pytest.raises(ValueError, match=r"the method csla needs scales: give --scales, a file, 'ones' or 'depth', or"):
        make_subject("csla", repopt.create_model("repopt_vgg_nano"), Recipe())  # which learns none
    for method in ("repopt", "csla"):
        with pytest.raises(ValueError, match=f"with the method {method} identities are decayed as the kernels are: "):
            make_subject(
                method, repopt.create_model("repopt_vgg_nano"), Recipe(decay_identity=False), scales="repopt_vgg_nano"
            )
    with pytest.raises(ValueError, match="there is no method 'adam': choose repopt, sgd"):
        counterpart("repopt_vgg_nano", "adam")
    with pytest.raises(ValueError, match="qarepvgg is for VGGs"):
        counterpart("repopt_ghostnet_050", "qarepvgg")


def by_one_rule(rules):
    """A model as it is drawn, and the subject that one of repopt's rules makes of it; all scales are 2."""
    recipe = Recipe(rules=rules, momentum=0.0, nesterov=False, weight_decay=0.0)
    torch.manual_seed(recipe.seed)
    drawn = repopt.create_model("repopt_vgg_nano", num_classes=4)
    trained = make_subject("repopt", copy.deepcopy(drawn), recipe, scales=Scales.constant(repopt.plan(drawn), 2.0))
    return drawn, trained, recipe


def moved_by_a_gradient_of_ones(trained, recipe):
    """How far a step with the learning rate 1 moves each weight."""
    before = copy.deepcopy(trained.model)
    rule = make_optimizer(trained, recipe, 1.0)
    for param in trained.model.parameters():
        param.grad = torch.ones_like(param)
    rule.step()
    return {name: before.get_parameter(name) - param for name, param in trained.model.named_parameters()}


def test_the_rule_of_iteration_alone_leaves_the_weights_as_drawn_and_multiplies_the_gradients():
    """With s = 2 by s^2 = 4 around the centre, 2 s^2 = 8 at it, and 1 more where an identity adds to it."""
    drawn, trained, recipe = by_one_rule("iteration")
    for name, weight in drawn.named_parameters():
        torch.testing.assert_close(trained.model.get_parameter(name), weight, rtol=0, atol=0)
    assert (list(trained.plan.operators), trained.kernels) == (list(repopt.plan(drawn).operators), None)
    moved = moved_by_a_gradient_of_ones(trained, recipe)
    expected = torch.full((16, 8, 3, 3), 4.0)
    expected[:, :, 1, 1] = 8.0
    torch.testing.assert_close(moved["stage1.0.conv.weight"], expected)
    expected = expected[:, :1].repeat(1, 16, 1, 1)
    expected[range(16), range(16), 1, 1] = 9.0
    torch.testing.assert_close(moved["stage1.1.conv.weight"], expected)
    torch.testing.assert_close(moved["linear.weight"], torch.ones(4, 128))


def test_the_rule_of_initialization_alone_starts_like_both_and_leaves_the_optimizer_as_it_is():
    drawn, trained, recipe = by_one_rule("initialization")
    plan = repopt.plan(drawn, scales=Scales.constant(repopt.plan(drawn), 2.0))
    plan.init_(kernel=recipe.kernel, identity=recipe.identity, generator=torch.Generator().manual_seed(recipe.seed))
    both = by_one_rule("both")[1]
    for name, weight in drawn.named_parameters():
        torch.testing.assert_close(trained.model.get_parameter(name), weight, rtol=0, atol=0)
        torch.testing.assert_close(both.model.get_parameter(name), weight, rtol=0, atol=0)
    assert (trained.plan, trained.kernels) == (None, None)
    assert type(make_optimizer(trained, recipe, 1.0)) is torch.optim.SGD
    for moved in moved_by_a_gradient_of_ones(trained, recipe).values():
        torch.testing.assert_close(moved, torch.ones_like(moved))


@pytest.mark.parametrize("rules", ["initialization", "iteration"])
def test_real_blocks_follow_both_rules(rules):
    with pytest.raises(ValueError, match=f"real blocks follow both rules: the recipe's rules '{rules}' are for"):
        subject("csla", Recipe(rules=rules))


def test_there_are_no_other_rules():
    with pytest.raises(
        ValueError, match="the recipe's rules must be one of 'both', 'initialization', 'iteration', not 'no"
    ):
        Recipe(rules="none")


@pytest.mark.parametrize(
    ("method", "optimizer", "captured"),
    [
        ("sgd", "SGD", True),
        ("sgd", "Adam", True),
        ("sgd", "RMSprop", True),
        ("sgd", "Adafactor", False),
        ("sgd", "Adagrad", False),
        ("repopt", "SGD", True),
        ("repopt", "AdamW", True),
        ("repopt", "Adafactor", False),
    ],
)
def test_a_graph_can_replay_what_torch_calls_capturable(method, optimizer, captured):
    recipe = Recipe(optimizer=optimizer)
    assert can_be_captured(subject(method, recipe), recipe) is captured


def test_an_optimizer_without_weight_decay_is_not_given_one():
    net = nn.Sequential(nn.Conv2d(3, 3, 3))
    subject = Subject(method="sgd", model=net)
    with pytest.raises(ValueError, match="Rprop has no weight decay: give --weight-decay 0"):
        make_optimizer(subject, Recipe(optimizer="Rprop", weight_decay=0.1), lr=0.1)
    make_optimizer(subject, Recipe(optimizer="Rprop", weight_decay=0.0), lr=0.1)
