import pytest
import torch

import repopt
from repopt.models import GHOST_WIDTHS, VGG_SPECS


def test_every_listed_model_can_be_built():
    families = {"repopt_vgg": VGG_SPECS, "repvgg": VGG_SPECS, "qarepvgg": VGG_SPECS}
    families |= {"repopt_ghostnet": GHOST_WIDTHS, "repghostnet": GHOST_WIDTHS}
    assert repopt.list_models() == sorted(f"{name}_{size}" for name, sizes in families.items() for size in sizes)
    with torch.device("meta"):
        for name in repopt.list_models():
            repopt.create_model(name)


@pytest.mark.parametrize(
    ("name", "options", "error", "words"),
    [
        ("repopt_vgg_b9", {}, ValueError, "no model 'repopt_vgg_b9': did you mean repopt_vgg_b"),
        (
            "repopt_vgg_nano",
            {"classes": 3},
            TypeError,
            "repopt_vgg_nano has no option 'classes'; it has depths, .*strides",
        ),
        ("repghostnet_050", {"se": True}, TypeError, "repghostnet_050 has no option 'se'; it has width, num_classes"),
        (None, {}, ValueError, "there is no model None"),
        ("REPOPT_VGG_B9", {}, ValueError, "did you mean repopt_vgg_b"),
        (
            "repopt_vgg_nano",
            {"num_classes": "10"},
            ValueError,
            "num_classes must be a whole number from 0 on, not '10'",
        ),
        ("repopt_vgg_nano", {"in_chans": 0}, ValueError, "in_chans must be a whole number from 1 on, not 0"),
        ("repopt_vgg_nano", {"depths": 3}, ValueError, "as many positive whole depths as widths"),
        ("repopt_vgg_nano", {"strides": 2}, ValueError, "strides must be 5 numbers"),
        (
            "repopt_vgg_nano",
            {"features_only": True, "out_indices": "12"},
            ValueError,
            "out_indices must be whole numbers",
        ),
        ("repghostnet_050", {"width": 0}, ValueError, "width must be a positive number, not 0"),
        ("repopt_vgg_nano", {"out_indices": (1,)}, ValueError, "give features_only=True with it"),
        (
            "repopt_vgg_nano",
            {"features_only": True, "out_indices": (5,)},
            ValueError,
            "out_indices must be whole numbers from 0 to 4",
        ),
        (
            "repopt_vgg_nano",
            {"features_only": True, "out_indices": ()},
            ValueError,
            "out_indices must be whole numbers from 0 to 4",
        ),
    ],
)
def test_what_cannot_be_built_is_said(name, options, error, words):
    with pytest.raises(error, match=words):
        repopt.create_model(name, **options)


def test_the_classifier_can_be_replaced_or_left_out():
    for name in ("repopt_vgg_nano", "repvgg_nano", "repopt_ghostnet_050"):
        model = repopt.create_model(name, num_classes=10).double().eval()
        x = torch.randn(2, 3, 64, 64, dtype=torch.float64)
        assert model(x).shape == (2, 10)
        model.reset_classifier(3)
        assert model(x).shape == (2, 3)
        assert not model.get_classifier().training
        pooled = model.forward_head(model.forward_features(x), pre_logits=True)
        model.reset_classifier(0)
        torch.testing.assert_close(model(x), pooled)
        model.reset_classifier(0, global_pool="")
        assert model(x).shape == (2, model.head_hidden_size, 2, 2)
        with pytest.raises(ValueError, match="a classifier needs pooled features"):
            model.reset_classifier(3)
