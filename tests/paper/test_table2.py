"""Table 2: what is compared, and the largest batches."""

import json

from made_up import QUICK, line
from paper import TABLES, Workshop
from paper.table2 import largest_batches, speeds
from repopt.bench.training import TrainCost

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


def test_accuracies_are_compared_with_their_error_and_speeds_as_a_ratio():
    accuracies = {"repvgg": (78.0, 79.0), "repopt": (78.5, 79.7)}
    rows = [
        line(what="accuracy", model="repopt_vgg_b1", batches="equal", method=method, seed=seed, val_accuracy=value)
        for method, values in accuracies.items()
        for seed, value in enumerate(values)
    ]
    rows = [{**row, "images_per_second": "", "peak_memory_bytes": ""} for row in rows]
    rows += [
        line(what="speed", model="repopt_vgg_b1", batches="largest", method=method, batch_size=batch)
        | {"images_per_second": str(speed), "peak_memory_bytes": "10900000000"}
        for method, batch, speed in (("repvgg", 198, 2000), ("repopt", 260, 3500))
    ]
    page = "\n".join(TABLES["table2"].part(rows))
    assert (
        "| repopt_vgg_b1, repopt | 260 | 79.10 ± 0.85 (batch 256) | 3,500 | 10.9 GB | "
        "78.47 ± 0.03; 78.62 ± 0.03 | 380; 445 (batch 260) | 51.8 M |"
    ) in page
    assert (
        "- repopt_vgg_b1 at equal batches, RepOpt to RepVGG: accuracy +0.60 ± 0.78 points over 2 seeds (the paper, "
        "on ImageNet: +0.06).\n"
    ) in page
    assert page.endswith(
        "at the largest batches, RepOpt to RepVGG: 1.75 times the images a second (the paper, on its GPUs: 1.83)."
    )


def test_speeds_alone_make_a_page():
    rows = [
        line(what="speed", model="repopt_vgg_b1", batches="equal", method=method, images_per_second=speed, size=224)
        | {"peak_memory_bytes": "", "parameters": "51800000"}
        for method, speed in (("repvgg", 100), ("repopt", 150))
    ]
    page = "\n".join(TABLES["table2"].part(rows))
    assert "on noise at 224 pixels with 1,000 classes, bf16, of both methods one after the other" in page
    assert "1.50 times the images a second" in page
    assert "| 51.8 M |" in page


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
