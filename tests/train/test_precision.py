"""Half precision: what GradScaler does to a step must leave no trace in the next."""

import dataclasses

import pytest
import torch

from repopt.data import load_data
from repopt.train.job import Job
from repopt.train.loop import Trainer
from repopt.train.notes import about_precision
from repopt.train.recipe import demo, usual_precision
from repopt.train.training import build

DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=[pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")],
    ),
]


@pytest.mark.parametrize("method", ["sgd", "repopt"])
@pytest.mark.parametrize("clip", [None, 1.0])
@pytest.mark.parametrize("device", DEVICES)
def test_a_step_that_overflows_in_fp16_is_as_if_it_had_not_been(device, clip, method):
    """Its gradient is dropped, and the momentum of the next step starts from that step's gradient alone."""
    chosen = torch.device(device)
    recipe = dataclasses.replace(demo(), precision="fp16", batch_size=32, warmup_epochs=0, clip=clip, compile=False)
    data = load_data("fake:64,4,32")
    job = Job(method=method, model="repopt_vgg_nano", data=data.name, recipe=recipe, scales="ones")
    runs = [Trainer(build(job, data, chosen), data, recipe, None, device=chosen, quiet=True) for _ in range(2)]
    (x, y), *_ = runs[0].batches.pixels(0)
    scaler = runs[0].step.scaler
    scaler.load_state_dict({**scaler.state_dict(), "scale": 2.0**120, "backoff_factor": 2.0**-112})
    start = [param.detach().clone() for param in runs[0].subject.model.parameters()]
    buffers = [buffer.clone() for buffer in runs[0].subject.model.buffers()]
    with runs[0].arithmetic():
        runs[0].train_on(x, y, 0, 0)
    assert all(map(torch.equal, runs[0].subject.model.parameters(), start))
    for buffer, before in zip(runs[0].subject.model.buffers(), buffers, strict=True):
        buffer.copy_(before)  # the batch norms have seen the batch
    runs[1].step.scaler.load_state_dict({**scaler.state_dict(), "scale": 2.0**8})
    for run in runs:
        with run.arithmetic():
            run.train_on(x, y, 0, 0)
    assert runs[0].step.totals.first_bad_step() is None
    for ours, theirs in zip(*(run.subject.model.parameters() for run in runs), strict=True):
        torch.testing.assert_close(
            ours, theirs, rtol=1e-3 if device == "cuda" else 0, atol=1e-6 if device == "cuda" else 0
        )


@pytest.mark.parametrize("device", DEVICES)
def test_fp32_is_said_to_be_slow_where_the_device_is_made_for_less(device):
    chosen = torch.device(device)
    said = about_precision(dataclasses.replace(demo(), precision="fp32"), chosen)
    faster = usual_precision(chosen)
    assert said is None if faster == "fp32" else f"--precision {faster} is faster" in said
    assert about_precision(dataclasses.replace(demo(), precision="bf16"), chosen) is None
