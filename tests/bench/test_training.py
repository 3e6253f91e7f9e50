import pytest
import torch

from repopt.bench.training import measure_training
from repopt.train.recipe import Recipe

CPU = torch.device("cpu")
RECIPE = Recipe(batch_size=8, flip=False)


def test_methods_are_compared_with_the_first():
    first, second = measure_training(
        "repopt_vgg_nano", ("repopt", "repvgg"), RECIPE, size=32, classes=4, steps=2, device=CPU
    )
    assert (first.method, first.ratio, second.method) == ("repopt", 1.0, "repvgg")
    assert second.ratio == pytest.approx(second.images_per_second / first.images_per_second)
    assert second.parameters > first.parameters
    assert first.peak_bytes is None


def test_no_steps_are_no_measurement():
    with pytest.raises(ValueError, match="steps must be at least 1, not 0"):
        measure_training("repopt_vgg_nano", ("sgd",), RECIPE, size=32, classes=4, steps=0, device=CPU)
