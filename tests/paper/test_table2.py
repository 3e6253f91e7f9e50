"""Table 2: what is compared, and the largest batches."""

from made_up import QUICK
from paper.jobs import TRAINED_BY
from paper.table2 import largest_batches, speeds
from paper.workshop import Workshop
from repopt.bench.train_cost import TrainCost

METHODS = ("repvgg", "repopt")


def test_the_largest_batches_are_measured_once_a_workshop(tmp_path):
    """And are twice the equal batch where the device does not count its memory."""
    workshop = Workshop(folder=tmp_path, device="cpu")
    twice = 2 * QUICK.adapt(TRAINED_BY["imagenette"], 0).batch_size
    assert largest_batches(QUICK, "repopt_vgg_nano", workshop) == dict.fromkeys(METHODS, twice)
    (kept,) = tmp_path.glob("speeds-*.json")
    before = kept.stat().st_mtime_ns
    found = speeds(QUICK, "repopt_vgg_nano", workshop)
    assert kept.stat().st_mtime_ns == before
    assert [(line["method"], line["batches"], line["batch_size"]) for line in found] == [
        ("repvgg", "equal", 32),
        ("repvgg", "largest", twice),
        ("repopt", "equal", 32),
        ("repopt", "largest", twice),
    ]


def test_the_largest_batch_is_what_fits_by_the_slope_of_the_memory(tmp_path, monkeypatch):
    """1 GB, and 20 MB an image: 500 images fit into 11 GB, and 496 are a multiple of 8."""
    workshop, measured_at = Workshop(folder=tmp_path, device="cpu"), set()

    def measured(model, methods, recipe, **_):
        with workshop.claim("timing") as free:
            assert not free  # it is measured alone
        measured_at.add(recipe.batch_size)
        cost = {"images_per_second": 1.0, "ratio": 1.0, "compile_seconds": 0.0, "parameters": 1}
        return [TrainCost(model=model, method=methods[0], peak_bytes=10**9 + 2 * 10**7 * recipe.batch_size, **cost)]

    monkeypatch.setattr("paper.table2.measure_training", measured)
    assert largest_batches(QUICK, "repopt_vgg_b1", workshop) == dict.fromkeys(METHODS, 496)
    assert measured_at == {32, 96, 496}
