"""The model that a finished run started from, drawn again from the run's own seed."""

from pathlib import Path

import torch
from torch import nn

from repopt.models import create_model, load_checkpoint
from repopt.models.saved import read_saved
from repopt.plans.scales import Scales
from repopt.surgery.conversion import merge
from repopt.train.methods import make_subject
from repopt.train.runs import read_json, run_recipe


def starting_model(folder: str | Path) -> nn.Module:
    """The model of a run before its first step, in the form that `load_run` gives: search and CSLA models merged.

    Args:
        folder: the run, which is finished. Its data is not needed.
    """
    folder = Path(folder)
    saved, run, recipe = read_saved(folder), read_json(folder, "run.json"), run_recipe(folder)
    with torch.random.fork_rng(devices=[]):  # the caller's own draws go on as if nothing was drawn here
        torch.manual_seed(recipe.seed)
        model = create_model(saved.model, kernel=recipe.kernel, **saved.options)
        if run["weights"] is not None:
            load_checkpoint(model, Path(run["weights"]))
        scales = Scales.load(folder / "scales.safetensors") if run["method"] in ("repopt", "csla") else None
        subject = make_subject(run["method"], model, recipe, scales=scales, drawn=run["weights"] is None)
    started = merge(subject.model) if run["method"] in ("search", "csla") else subject.model
    return started.eval()
