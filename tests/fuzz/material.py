"""What the cases mangle: runs, scales, weights, recipes, images, and what undamaged commands come to."""

import dataclasses
import json
import os
import shutil

from PIL import Image

from fuzz.cases import TARGETS, TRAIN
from fuzz.running import answer, forked

_SMALL = {"depths": (1, 1, 1, 1), "widths": (4, 4, 4, 4), "stem": 4}


def build(folder):
    """Makes it all in a new folder, in processes of their own: one that has used torch should not be forked."""
    assert forked(_runs, folder) == 0
    words = [*TRAIN.split(), "--scales", "ones"]
    first = answer(words, folder)
    assert first.code == 0, first.err
    assert forked(_files, folder) == 0
    _pictures(folder / "images")
    expected = {}
    for target in TARGETS:
        copy = folder.with_name(f"{folder.name}-copy")
        shutil.copytree(folder, copy, symlinks=True)
        got = answer(target.command.format(material=folder).split(), copy, target.made)
        assert got.code == 0, (target.command, got.err)
        expected[target.command] = got.result
        if (copy / "cache").exists() and not (folder / "cache").exists():
            shutil.copytree(copy / "cache", folder / "cache")
        shutil.rmtree(copy)
    (folder / "expected.json").write_text(json.dumps(expected))


def _runs(folder):
    import torch

    from repopt.train.job import Job
    from repopt.train.recipe import demo
    from repopt.train.training import train_run

    torch.set_num_threads(1)
    recipe = dataclasses.replace(demo(), warmup_epochs=0, batch_size=8, lr_batch=8, lr=0.02, eval_batch=16)
    for name, method, epochs in (("finished", "repopt", 2), ("search", "search", 1), ("stopped", "repopt", 1)):
        job = Job(
            method=method,
            model="repopt_vgg_nano",
            data="fake:32,4,16",
            recipe=dataclasses.replace(recipe, epochs=epochs),
            scales="ones" if method == "repopt" else None,
            options=_SMALL,
        )
        train_run(job, folder / name, device="cpu", quiet=True)
    stopped = folder / "stopped"  # after one of two epochs
    for name in ("summary.json", "config.json", "model.safetensors"):
        (stopped / name).unlink()
    content = json.loads((stopped / "recipe.json").read_text())
    (stopped / "recipe.json").write_text(json.dumps({**content, "epochs": 2}, indent=2) + "\n")


def _files(folder):
    import torch
    from safetensors.torch import load_file

    from repopt.plans.scales import Scales

    files, trained = folder / "files", folder / "new"
    files.mkdir()
    shutil.copy(trained / "model.safetensors", files / "weights.safetensors")
    torch.save(load_file(trained / "model.safetensors"), files / "weights.pth")
    scales = Scales.load("repopt_vgg_nano")
    scales.save(files / "scales.safetensors")
    names = {"conv3x3": "scale_conv", "conv1x1": "scale_1x1", "identity": "scale_identity"}
    theirs = {
        f"{operator.removesuffix('.conv')}.{names[branch]}.weight": scale
        for operator, branches in scales.items()
        for branch, scale in branches.items()
    }
    torch.save(theirs, files / "authors.pth")
    (files / "mine.toml").write_text('base = "demo"\nlr = 0.1\nflip = true\nresized_crop = [0.5, 1.0]\n')
    shutil.copy(trained / "recipe.json", files / "mine.json")
    shutil.rmtree(trained)


def _pictures(folder):
    for part in ("train", "val"):
        for number, name in enumerate(("cat", "dog")):
            place = folder / part / name
            place.mkdir(parents=True)
            for count in range(8):
                path = place / f"{count}.png"
                Image.frombytes("RGB", (16, 16), bytes((number * 99 + count + i) % 256 for i in range(768))).save(path)
                os.utime(path, (0, 0))  # the cache's name has the time in it, and copies keep it
