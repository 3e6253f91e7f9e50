"""Table 2: what is compared, and the largest batches."""

import json

from repopt.reproduce import TABLES, Workshop
from repopt.reproduce.table2 import largest_batches, speeds
from reproduce.made_up import QUICK, line

METHODS = ("repvgg", "repopt")


def test_the_largest_batches_are_measured_once_a_workshop(tmp_path):
    """And are twice the equal batch where the device does not count its memory."""
    workshop = Workshop(folder=tmp_path, device="cpu")
    twice = 2 * QUICK.target_recipe(0).batch_size
    assert largest_batches(QUICK, workshop, "repopt_vgg_nano") == dict.fromkeys(METHODS, twice)
    (kept,) = tmp_path.glob("*.json")
    found = json.loads(kept.read_text())
    assert found == speeds(QUICK, workshop, "repopt_vgg_nano")
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
        "| repopt_vgg_b1, repopt | 260 | 79.10 ± 0.85 | 3,500 | 10.9 GB | "
        "78.47 ± 0.03; 78.62 ± 0.03 | 380; 445 (batch 260) | 51.8 M |"
    ) in page
    assert (
        "- repopt_vgg_b1 at equal batches, RepOpt to RepVGG: accuracy +0.60 ± 0.78 points over 2 seed(s) (the paper, "
        "on ImageNet: +0.06).\n"
    ) in page
    assert page.endswith("at the largest batches, RepOpt to RepVGG: 1.75 times the images a second.")


def test_speeds_alone_make_a_page():
    rows = [
        line(what="speed", model="repopt_vgg_b1", batches="equal", method=method, images_per_second=speed, size=224)
        | {"peak_memory_bytes": "", "parameters": "51800000"}
        for method, speed in (("repvgg", 100), ("repopt", 150))
    ]
    page = "\n".join(TABLES["table2"].part(rows))
    assert "on noise at 224 pixels with 1,000 classes, bf16, of both methods in one run" in page
    assert "1.50 times the images a second" in page
    assert "| 51.8 M |" in page
