"""What the tests of exports share: a small run, trained in seconds until it knows the digits, and ONNX files."""

import io
import json
import os
import zipfile
from dataclasses import replace

import onnx
import torch

from repopt.train.job import Job
from repopt.train.recipe import demo
from repopt.train.training import train_run


def small_run(folder, *, method="repvgg", epochs=4, depths=(1, 1, 1, 1)):
    recipe = replace(demo(), epochs=epochs, warmup_epochs=1)
    options = {} if depths is None else {"depths": depths}
    job = Job(method=method, model="repopt_vgg_nano", data="digits", recipe=recipe, options=options)
    train_run(job, folder, device="cpu", quiet=True)
    return folder


def onnx_metadata(path):
    """The text by name that a file holds."""
    return {entry.key: entry.value for entry in onnx.load(path).metadata_props}


def hostile_archive(path):
    """A .pt2 archive with a pickle for one of its weights, and the folder that is made if the pickle is executed."""
    trap = path.with_name("trapped")

    class Trap:
        def __reduce__(self):
            return os.mkdir, (str(trap),)

    code = io.BytesIO()
    torch.save(Trap(), code)
    torch.export.save(torch.export.export(torch.nn.Linear(2, 2), (torch.ones(2, 2),)), path)
    with zipfile.ZipFile(path) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    (listed,) = (name for name in content if name.endswith("model_weights_config.json"))
    weights = json.loads(content[listed])
    first = next(iter(weights["config"].values()))
    first["use_pickle"] = True
    content[listed] = json.dumps(weights).encode()
    content[listed.replace("model_weights_config.json", first["path_name"])] = code.getvalue()
    with zipfile.ZipFile(path, "w") as archive:
        for name, each in content.items():
            archive.writestr(name, each)
    return path, trap
