"""Every form of every model: captured whole, exported, copied, pickled."""

import copy
import io
import pickle

import pytest
import torch
from torch.nn.utils import prune

import repopt
from repopt.models import deploy

SMALL = {"depths": (2, 1, 2, 1), "widths": (4, 4, 8, 8), "stem": 4}

pytestmark = pytest.mark.no_cover  # the time goes into torch's compilers, which coverage makes twice as slow


def plain(family):
    options = SMALL if "vgg" in family else {}
    size = "nano" if "vgg" in family else "050"
    return repopt.create_model(f"{family}_{size}", num_classes=3, **options)


def searching(family):
    model = plain(family)
    return repopt.search_model(model, repopt.plan(model))


def written_out(family):
    model = plain(family)
    plan = repopt.plan(model, scales="ones")
    return repopt.csla_model(model, plan, plan.init_())


def searching_backbone():
    backbone = repopt.create_model("repopt_vgg_nano", features_only=True, **SMALL)
    return repopt.search_model(backbone, repopt.plan(backbone))


FORMS = {
    "plain": lambda: plain("repopt_vgg"),
    "plain, deploy": lambda: deploy(plain("repopt_vgg")),
    "search": lambda: searching("repopt_vgg"),
    "csla": lambda: written_out("repopt_vgg"),
    "squeeze and excitation": lambda: repopt.create_model("repopt_vgg_nano", num_classes=3, se=True, **SMALL),
    "repvgg": lambda: plain("repvgg"),
    "repvgg, deploy": lambda: deploy(plain("repvgg")),
    "qarepvgg": lambda: plain("qarepvgg"),
    "backbone": lambda: repopt.create_model("repopt_vgg_nano", features_only=True, **SMALL),
    "ghost": lambda: plain("repopt_ghostnet"),
    "ghost, search": lambda: searching("repopt_ghostnet"),
    "ghost, csla": lambda: written_out("repopt_ghostnet"),
    "repghost": lambda: plain("repghostnet"),
    "ghost, deploy": lambda: deploy(plain("repopt_ghostnet")),
    "repghost, deploy": lambda: deploy(plain("repghostnet")),
    "qarepvgg, deploy": lambda: deploy(plain("qarepvgg")),
    "repvgg, backbone": lambda: repopt.create_model("repvgg_nano", features_only=True, **SMALL),
    "ghost, backbone": lambda: repopt.create_model("repopt_ghostnet_050", features_only=True),
    "backbone, search": lambda: searching_backbone(),
}


# the rest of the nets that take long to capture is for `make test-all`
SLOW = {"ghost", "ghost, csla", "ghost, search", "ghost, deploy", "ghost, backbone", "repghost"}


@pytest.fixture(params=[pytest.param(form, marks=pytest.mark.slow if form in SLOW else ()) for form in FORMS])
def model(request):
    return FORMS[request.param]().eval()


def images():
    return torch.randn(2, 3, 64, 64)


def test_dynamo_captures_the_whole_model(model):
    x = images()
    torch.compiler.reset()
    torch.testing.assert_close(torch.compile(model, backend="eager", fullgraph=True)(x), model(x))


def test_the_model_is_exported_with_a_free_batch_size(model):
    batch = torch.export.Dim("batch", min=2, max=64)
    program = torch.export.export(model, (images(),), dynamic_shapes=({0: batch},))
    x = torch.randn(5, 3, 64, 64)
    torch.testing.assert_close(program.module()(x), model(x), rtol=1e-4, atol=1e-5)


def test_torch_fx_traces_the_model_for_the_tools_that_use_it():
    model = plain("repopt_vgg").eval()
    torch.testing.assert_close(torch.fx.symbolic_trace(model)(x := images()), model(x))


def test_copies_and_pickles_compute_the_same(model):
    x = images()
    expected = model(x)
    saved = io.BytesIO()
    torch.save(model, saved)
    saved.seek(0)
    for other in (
        copy.deepcopy(model),
        pickle.loads(pickle.dumps(model)),
        torch.load(saved, weights_only=False),
    ):
        torch.testing.assert_close(other(x), expected)


@pytest.mark.parametrize("form", ["plain", "search", "repvgg"])
def test_dynamo_captures_the_backward_pass_as_well(form):
    model = FORMS[form]()
    compiled = torch.compile(copy.deepcopy(model), backend="aot_eager", fullgraph=True)
    x = images()
    torch.compiler.reset()
    for each in (model, compiled):
        each(x).square().sum().backward()
    for (name, param), other in zip(model.named_parameters(), compiled.parameters(), strict=True):
        torch.testing.assert_close(other.grad, param.grad, rtol=1e-3, atol=1e-4, msg=name)


@pytest.mark.filterwarnings("ignore:`torch._prims_common.check` is deprecated:FutureWarning")  # inductor's own
@pytest.mark.parametrize("form", [pytest.param("plain", marks=pytest.mark.slow), "search"])
def test_inductor_compiles_the_model(form):
    """A search model holds all that a plain one holds, and the sum of its kernels."""
    model = repopt.create_model("repopt_vgg_nano", num_classes=3, depths=(1, 1), widths=(4, 4), strides=(2, 2, 1))
    if form == "search":
        model = repopt.search_model(model, repopt.plan(model))
    model.eval()
    x = torch.randn(2, 3, 16, 16)
    torch.compiler.reset()
    torch.testing.assert_close(torch.compile(model, fullgraph=True)(x), model(x), rtol=1e-4, atol=1e-5)


def test_a_pruned_layer_before_a_norm_is_not_deployed():
    model = repopt.create_model("repopt_vgg_nano", num_classes=4)
    prune.l1_unstructured(model.stage1[0].conv, "weight", 0.3)
    with pytest.raises(ValueError, match=r"the weight of 'conv' is computed .*torch\.nn\.utils\.prune\.remove"):
        deploy(model)
    prune.remove(model.stage1[0].conv, "weight")
    deploy(model)
