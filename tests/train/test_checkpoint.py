"""A checkpoint takes its name in one move, and holds the random numbers to come."""

import pytest
import torch

from repopt.files import UNFINISHED
from repopt.train.runs import CHECKPOINT, load_checkpoint, random_state, save_checkpoint, set_random_state

CPU = torch.device("cpu")


def test_what_was_saved_last_is_loaded(tmp_path):
    for value in (1.0, 2.0):
        save_checkpoint(tmp_path, {"value": torch.tensor(value)})
    assert load_checkpoint(tmp_path, CPU)["value"] == 2
    assert [path.name for path in tmp_path.iterdir()] == [CHECKPOINT]


def test_where_nothing_was_saved_nothing_is_loaded(tmp_path):
    assert load_checkpoint(tmp_path, CPU) is None


def test_what_a_killed_process_left_half_written_is_not_looked_at_and_removed(tmp_path):
    save_checkpoint(tmp_path, {"value": torch.tensor(1.0)})
    half = (tmp_path / CHECKPOINT).read_bytes()[:200]
    (tmp_path / f"{UNFINISHED}{CHECKPOINT}").write_bytes(half)
    assert load_checkpoint(tmp_path, CPU)["value"] == 1
    assert [path.name for path in tmp_path.iterdir()] == [CHECKPOINT]


def test_an_error_while_it_is_written_keeps_the_last_one(tmp_path):
    save_checkpoint(tmp_path, {"value": torch.tensor(1.0)})
    with pytest.raises(TypeError, match="pickle"):
        save_checkpoint(tmp_path, {"value": (number for number in range(3))})
    assert load_checkpoint(tmp_path, CPU)["value"] == 1
    assert [path.name for path in tmp_path.iterdir()] == [CHECKPOINT]


@pytest.mark.parametrize("content", [b"", b"no checkpoint", b"PK\x03\x04"])
def test_a_checkpoint_that_cannot_be_read_is_one_sentence(content, tmp_path):
    (tmp_path / CHECKPOINT).write_bytes(content)
    with pytest.raises(ValueError, match="cannot be read") as caught:
        load_checkpoint(tmp_path, CPU)
    assert "\n" not in str(caught.value)


def test_the_random_numbers_go_on(tmp_path):
    save_checkpoint(tmp_path, random_state(CPU))
    expected = torch.rand(5)
    set_random_state(load_checkpoint(tmp_path, CPU), CPU)
    assert torch.equal(torch.rand(5), expected)
