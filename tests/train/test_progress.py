import pytest

from repopt.train.progress import scalar_writer


def test_an_epochs_numbers_can_be_read_back(tmp_path):
    pytest.importorskip("tensorboard", reason="needs the extra tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    write = scalar_writer(tmp_path)
    for epoch in (1, 2):
        write({"epoch": epoch, "step": 7 * epoch, "train_loss": 0.5 / epoch, "val_accuracy": None})
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert events.Tags()["scalars"] == ["train_loss"]
    assert [(event.step, event.value) for event in events.Scalars("train_loss")] == [(1, 0.5), (2, 0.25)]


def test_a_rank_that_writes_nothing_writes_no_scalars(tmp_path):
    scalar_writer(None)({"epoch": 1, "train_loss": 0.5})
    assert not list(tmp_path.iterdir())
