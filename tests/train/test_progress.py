import io
import threading

import pytest
from rich.console import Console

from repopt.train.progress import RunProgress, Scalars


def lines_shown(seconds, epochs=100, done=0):
    """What a file gets to see, where each epoch takes some seconds."""
    now, file = 0.0, io.StringIO()
    console = Console(file=file, force_terminal=False)
    with RunProgress("sgd", epochs=epochs, done=done, steps=1, console=console, clock=lambda: now) as progress:
        for epoch in range(done + 1, epochs + 1):
            now += seconds
            progress.epoch({"epoch": epoch, "train_loss": 0.5, "images_per_second": 900.0})
    return file.getvalue().splitlines()


def epochs_shown(seconds, epochs=100):
    """The epochs that a file gets a line for."""
    return [int(line.split("epoch ")[1].split("/")[0]) for line in lines_shown(seconds, epochs)]


def test_off_a_terminal_short_epochs_share_a_line_and_the_last_one_has_its_own():
    assert epochs_shown(0.5) == [*range(1, 100, 10), 100]


def test_off_a_terminal_each_epoch_of_some_seconds_has_a_line():
    assert epochs_shown(6.0, epochs=4) == [1, 2, 3, 4]


def test_off_a_terminal_a_line_has_the_time_left_by_the_epochs_of_this_start():
    first, *_, last = lines_shown(30.0, epochs=10, done=4)
    assert first == "sgd: epoch 5/10  loss 0.500  900 images/s  0:02:30 left"
    assert last == "sgd: epoch 10/10  loss 0.500  900 images/s"


def test_an_epochs_numbers_can_be_read_back(tmp_path):
    pytest.importorskip("tensorboard", reason="needs the extra tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    before, scalars = threading.active_count(), Scalars(tmp_path)
    for epoch in (1, 2):
        scalars.write({"epoch": epoch, "step": 7 * epoch, "train_loss": 0.5 / epoch, "val_accuracy": None})
    scalars.close()
    assert threading.active_count() == before
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert events.Tags()["scalars"] == ["train_loss"]
    assert [(event.step, event.value) for event in events.Scalars("train_loss")] == [(1, 0.5), (2, 0.25)]


def test_a_rank_that_writes_nothing_writes_no_scalars(tmp_path):
    scalars = Scalars(None)
    scalars.write({"epoch": 1, "train_loss": 0.5})
    scalars.close()
    assert not list(tmp_path.iterdir())
