"""Table 2: what is compared, and the largest batches."""

import json

from made_up import QUICK
from paper.table2 import largest_batches, speeds
from paper.workshop import Workshop
from repopt.bench.train_cost import TrainCost

METHODS = ("repvgg", "repopt")


def test_the_largest_batches_are_measured_once_a_workshop(tmp_path):
    """And are twice the equal batch where the device does not count its memory."""
    workshop = Workshop(folder=tmp_path, device="cpu")
    twice = 2 * QUICK.target_recipe(0).batch_size
    assert largest_batches(QUICK, workshop, "repopt_vgg_nano") == dict.fromkeys(METHODS, twice)
    kept = {path: path.read_text() for path in tmp_path.glob("speed-*.json")}
    found = speeds(QUICK, workshop, "repopt_vgg_nano")
    assert {path: path.read_text() for path in tmp_path.glob("speed-*.json")} == kept
    assert {json.loads(text)["images_per_second"] for text in kept.values()} == {
        line["images_per_second"] for line in found
    }
    assert [(line["method"], line["batches"], line["batch_size"]) for line in found] == [
        ("repvgg", "equal", 32),
        ("repvgg", "largest", twice),
        ("repopt", "equal", 32),
        ("repopt", "largest", twice),
    ]


def test_the_largest_batch_is_what_fits_by_the_slope_of_the_memory(tmp_path, monkeypatch):
    """1 GB, and 20 MB an image: 500 images fit into 11 GB, and 496 are a multiple of 8. The slope needs no clock."""
    workshop, measured_at = Workshop(folder=tmp_path, device="cpu"), {}

    def measured(model, methods, recipe, *, steps, **_):
        with workshop.claim("timing") as free:
            measured_at[recipe.batch_size] = (steps, "sharing" if free else "alone")
        cost = {"images_per_second": 1.0, "ratio": 1.0, "compile_seconds": 0.0, "parameters": 1}
        return [TrainCost(model=model, method=methods[0], peak_bytes=10**9 + 2 * 10**7 * recipe.batch_size, **cost)]

    monkeypatch.setattr("paper.table2.measure_training", measured)
    assert largest_batches(QUICK, workshop, "repopt_vgg_b1") == dict.fromkeys(METHODS, 496)
    assert measured_at == {32: (2, "alone"), 96: (1, "sharing"), 496: (2, "alone")}
    slope = (json.loads(path.read_text()) for path in tmp_path.glob("speed-*-96-*.json"))
    assert [line["images_per_second"] for line in slope] == [None, None]
