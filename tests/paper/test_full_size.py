"""Every training of the full tables can be begun: models, scales and recipes fit. What it would cost is left out."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch

import repopt
from paper import TABLES, Scope, Workshop
from paper.workshop import _name
from repopt.plans.scales import Scales

SCOPE = Scope(cifar100=Path("cifar"), imagenette=Path("imagenette"), seeds=(0,))
# of the others rows are timed, quantized or analyzed, which needs real runs
TRAINED = ("zoo", "conventions", "constants", "a0", "table4", "table5", "table6", "tableB", "tableD")


class Drafts(Workshop):
    """Instead of a training, a look at whether its model takes its scales, and the files of a finished run."""

    def run(self, job, *, weights=False):
        out = self.folder / _name(job)
        if out.exists():
            return out
        with torch.device("meta"):
            plan = repopt.plan(repopt.create_model(job.model, num_classes=10, **job.options), scales=job.scales)
        assert (job.method == "repopt") == (job.scales is not None)
        assert plan.operators
        out.mkdir(parents=True)
        recipe = dataclasses.asdict(job.recipe)
        about = {"parameters": 1, "train_images": 9469, "val_images": 3925, "image_size": job.recipe.size or 32}
        about |= dict.fromkeys(
            ("data_digest", "repopt", "commit", "hardware", "threads", "python", "torch", "date"), ""
        )
        for name, values in {"recipe": recipe, "run": about, "summary": {"val_accuracy": 50.0}}.items():
            (out / f"{name}.json").write_text(json.dumps(values))
        if job.method == "search":
            (Scales.depth_init(plan)).save(out / "scales.safetensors")
        elif job.scales is not None:
            job.scales.save(out / "scales.safetensors")
        return out


@pytest.fixture(scope="module")
def drafts(tmp_path_factory):
    return Drafts(folder=tmp_path_factory.mktemp("drafts"), device="cpu")


@pytest.mark.parametrize("name", TRAINED)
def test_every_row_can_be_begun(name, drafts):
    rows = [row for row in TABLES[name].rows(SCOPE) if not row.authors]
    for row in rows:
        for line in row.measure(drafts):
            assert line["val_accuracy"] == 50.0, row.name
    assert rows


def test_equal_batches_are_equal_and_trained_at_the_recipes_size(drafts):
    rows = [row for row in TABLES["table2"].rows(SCOPE) if row.key.get("batches") == "equal"]
    found = [line for row in rows for line in row.measure(drafts)]
    assert {(line["batch_size"], line["size"], line["lr"]) for line in found} == {(256, 96, 0.1)}
    assert {row.key["model"] for row in rows} == {f"repopt_vgg_{size}" for size in ("b1", "b2", "l1", "l2")}
