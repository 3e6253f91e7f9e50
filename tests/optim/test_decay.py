import pytest
import torch
from torch import nn

import repopt
from repopt import Conv, Identity


def names_in(model, group):
    names = {id(param): name for name, param in model.named_parameters()}
    return {names[id(param)] for param in group["params"]}


def block():
    net = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4))
    return net, repopt.plan(net, {"0": [Conv(3), Identity()]}, scales="ones")


def test_the_identity_of_a_block_is_decayed_as_the_plain_models_diagonal_is():
    net, plan = block()
    for model in (repopt.csla_model(net, plan), repopt.search_model(net, plan)):
        decayed, rest = repopt.decay_groups(model, 0.1)
        assert names_in(model, decayed) == {"0.kernels.conv3x3", "0.kernels.identity"}
        assert (decayed["weight_decay"], rest["weight_decay"]) == (0.1, 0.0)
        assert names_in(model, rest) >= {"0.bias", "1.weight", "1.bias"}
    decayed, rest = repopt.decay_groups(net, 0.1)
    assert names_in(net, decayed) == {"0.weight"}


def test_a_search_may_leave_its_identities_alone():
    net, plan = block()
    model = repopt.search_model(net, plan)
    decayed, rest = repopt.decay_groups(model, 0.1, identity=False)
    assert names_in(model, decayed) == {"0.kernels.conv3x3"}
    assert "0.kernels.identity" in names_in(model, rest)


def test_the_scales_of_a_search_model_may_have_a_learning_rate_of_their_own():
    net, plan = block()
    net.scales, net.kernels = nn.ParameterDict({"mine": torch.ones(4)}), nn.Linear(4, 4)  # of someone's own
    model = repopt.search_model(net, plan)
    *others, scales = repopt.decay_groups(model, 0.1, scale_lr=1.0)
    assert names_in(model, scales) == {"0.scales.conv3x3"}
    assert (scales["lr"], scales["weight_decay"]) == (1.0, 0.0)
    assert len(others) == 2
    assert not any("lr" in group for group in others)
    for wrong in (-1.0, float("nan"), "fast", True):
        with pytest.raises(ValueError, match="scale_lr must be a finite number of at least 0"):
            repopt.decay_groups(model, 0.1, scale_lr=wrong)
    with pytest.raises(ValueError, match="scale_lr is for the scales of a search model, and this model has none"):
        repopt.decay_groups(net, 0.1, scale_lr=1.0)


def test_repvggs_identity_gamma_is_decayed_as_in_the_authors_code():
    model = repopt.create_model("repvgg_nano")
    decayed, _ = repopt.decay_groups(model, 0.1)
    one_dimensional = {name for name in names_in(model, decayed) if model.get_parameter(name).ndim == 1}
    assert one_dimensional == {name for name, _ in model.named_parameters() if name.endswith("rbr_identity.weight")}


def test_frozen_parameters_and_empty_groups_are_left_out():
    net, _ = block()
    net[0].weight.requires_grad_(False)
    (rest,) = repopt.decay_groups(net, 0.1)
    assert names_in(net, rest) == {"0.bias", "1.weight", "1.bias"}
    torch.optim.SGD([rest], lr=0.1)


@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_a_weight_without_a_shape_is_in_no_group():
    with pytest.raises(ValueError, match=r"'1\.weight' has no shape yet: run one batch through the lazy module first"):
        repopt.decay_groups(nn.Sequential(nn.Flatten(), nn.LazyLinear(4)), 0.1)
