"""What the tests of exports share: a small run, trained in seconds until it knows the digits, and ONNX files."""

from dataclasses import replace

import onnx

from repopt.train.recipe import demo
from repopt.train.training import Job, train_run


def small_run(folder, *, method="repvgg", epochs=4, depths=(1, 1, 1, 1)):
    recipe = replace(demo(), epochs=epochs, warmup_epochs=1)
    options = {} if depths is None else {"depths": depths}
    job = Job(method=method, model="repopt_vgg_nano", data="digits", recipe=recipe, options=options)
    train_run(job, folder, device="cpu", quiet=True)
    return folder


def onnx_metadata(path):
    """The text by name that a file holds."""
    return {entry.key: entry.value for entry in onnx.load(path).metadata_props}
