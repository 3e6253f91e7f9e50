import pytest
import torch
from torch import nn

import repopt
from side_by_side import WAYS, apart, train, twins


@pytest.mark.parametrize("way", WAYS)
def test_a_module_put_in_the_place_of_another_is_the_operator_from_then_on(way):
    net, plan, twin = twins()
    ours, theirs = WAYS[way].start(net.parameters(), plan), WAYS[way].theirs(twin.parameters())
    train(net, ours, 3)
    train(twin, theirs, 3)
    net[3] = nn.Conv2d(6, 6, 3, padding=1, groups=2).double()
    kernels = plan.init_()
    ours.add_param_group({"params": list(net[3].parameters())})
    twin[3] = repopt.csla_model(net, plan, kernels)[3]
    theirs.add_param_group({"params": list(twin[3].parameters())})
    twin[0].load_state_dict(repopt.csla_model(net, plan, kernels)[0].state_dict())
    train(net, ours, 10)
    train(twin, theirs, 10)
    assert apart(net, twin) <= 1e-11


def test_an_operator_that_is_gone_is_named():
    net, plan, _ = twins()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    repopt.attach(optimizer, plan)
    net[3] = nn.Identity()
    with pytest.raises(RuntimeError, match="no linear operator at '3' any more"):
        optimizer.step()
