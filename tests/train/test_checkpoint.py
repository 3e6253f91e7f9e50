"""A checkpoint is written whole and read whole: damage is noticed, and the one before it is there to go on from."""

import random

import pytest
import torch

from repopt.files import UNFINISHED
from repopt.train.checkpoint import (
    CHECKPOINT,
    PREVIOUS,
    load_checkpoint,
    random_state,
    save_checkpoint,
    set_random_state,
)

CPU = torch.device("cpu")


def save_two(folder):
    """Saves 1 and then 2; the bytes of the last checkpoint."""
    for value in (1.0, 2.0):
        save_checkpoint(folder, {"value": torch.full((500,), value), "position": {"epoch": int(value)}})
    return (folder / CHECKPOINT).read_bytes()


def flipped(content, draw):
    place = draw.randrange(len(content))
    return content[:place] + bytes([content[place] ^ 1 << draw.randrange(8)]) + content[place + 1 :]


def zeroed(content, draw):
    start, size = draw.randrange(len(content)), draw.choice([64, 512, 4096])
    gone = content[start : start + size]
    return content[:start] + bytes(len(gone)) + content[start + size :]


def test_what_was_saved_last_is_loaded_and_what_was_saved_before_it_is_kept(tmp_path):
    save_two(tmp_path)
    assert load_checkpoint(tmp_path, CPU)["value"][0] == 2
    assert {path.name for path in tmp_path.iterdir()} == {CHECKPOINT, PREVIOUS}
    (tmp_path / CHECKPOINT).unlink()  # as a kill between the two moves leaves it
    assert load_checkpoint(tmp_path, CPU)["value"][0] == 1


def test_torch_reads_a_checkpoint_without_us(tmp_path):
    save_two(tmp_path)
    assert torch.load(tmp_path / CHECKPOINT, weights_only=True)["position"] == {"epoch": 2}


def test_where_nothing_was_saved_nothing_is_loaded(tmp_path):
    assert load_checkpoint(tmp_path, CPU) is None


@pytest.mark.parametrize("damage", [flipped, zeroed])
@pytest.mark.parametrize("count", [30, pytest.param(300, marks=pytest.mark.slow)])
def test_damage_anywhere_is_said_and_the_run_goes_on_from_the_checkpoint_before(damage, count, tmp_path):
    content, draw = save_two(tmp_path), random.Random(count)
    before = (tmp_path / PREVIOUS).read_bytes()
    for _ in range(count):
        damaged = damage(content, draw)
        if damaged == content:  # zeros that were zeros
            continue
        (tmp_path / CHECKPOINT).write_bytes(damaged)
        (tmp_path / PREVIOUS).write_bytes(before)
        with pytest.warns(UserWarning, match=r"checkpoint\.pt' .*: the run goes on from the checkpoint before it"):
            assert load_checkpoint(tmp_path, CPU)["position"] == {"epoch": 1}
        assert (tmp_path / CHECKPOINT).read_bytes() == before  # so that the next checkpoint keeps it
        (tmp_path / CHECKPOINT).write_bytes(damaged)
        with pytest.raises(ValueError, match=r"checkpoint\.pt' .*: bring it back from a copy"):
            load_checkpoint(tmp_path, CPU)


def test_where_both_are_damaged_nothing_is_loaded(tmp_path):
    content, draw = save_two(tmp_path), random.Random(0)
    for name in (CHECKPOINT, PREVIOUS):
        (tmp_path / name).write_bytes(flipped(content, draw))
    with pytest.raises(ValueError, match=r"checkpoint\.pt' .* and .*checkpoint\.previous\.pt' .*: bring it back"):
        load_checkpoint(tmp_path, CPU)


def test_a_checkpoint_of_an_earlier_version_is_loaded_with_a_sentence(tmp_path):
    torch.save({"value": torch.tensor(1.0)}, tmp_path / CHECKPOINT)
    with pytest.warns(UserWarning, match="by an earlier version, without a checksum: .* cannot be checked"):
        assert load_checkpoint(tmp_path, CPU, {"id": None})["value"] == 1
    with pytest.raises(ValueError, match="has lost its checksum"):  # a run with an id was never of that version
        load_checkpoint(tmp_path, CPU, {"id": "a"})


def test_a_checkpoint_of_another_run_or_of_other_settings_is_refused(tmp_path):
    save_checkpoint(tmp_path, {"value": 1}, {"id": "a", "lr": 0.1})
    assert load_checkpoint(tmp_path, CPU, {"id": "a", "lr": 0.1}) == {"value": 1}
    with pytest.raises(ValueError, match=r"checkpoint\.pt' is another run's"):
        load_checkpoint(tmp_path, CPU, {"id": "b", "lr": 0.1})
    with pytest.raises(ValueError, match=r"was trained with lr 0\.1, and now the run folder says 0\.2"):
        load_checkpoint(tmp_path, CPU, {"id": "a", "lr": 0.2})


def test_an_error_while_it_is_written_keeps_the_last_one(tmp_path):
    save_checkpoint(tmp_path, {"value": torch.tensor(1.0)})
    with pytest.raises(TypeError, match="pickle"):
        save_checkpoint(tmp_path, {"value": (number for number in range(3))})
    assert load_checkpoint(tmp_path, CPU)["value"] == 1
    assert [path.name for path in tmp_path.iterdir()] == [CHECKPOINT]


@pytest.mark.parametrize("content", [b"", b"no checkpoint", b"PK\x03\x04"])
def test_a_checkpoint_that_cannot_be_read_is_one_sentence_with_a_reason(content, tmp_path):
    (tmp_path / CHECKPOINT).write_bytes(content)
    with pytest.raises(ValueError, match=r"cannot be read \(.+\)") as caught:
        load_checkpoint(tmp_path, CPU)
    assert "\n" not in str(caught.value)


def test_a_link_at_the_name_of_a_half_written_checkpoint_is_not_followed(tmp_path):
    precious = tmp_path / "precious"
    precious.write_text("mine")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / f"{UNFINISHED}{CHECKPOINT}").symlink_to(precious)
    save_checkpoint(tmp_path / "run", {"value": 1})
    assert precious.read_text() == "mine"
    assert [path.name for path in (tmp_path / "run").iterdir()] == [CHECKPOINT]


def test_the_random_numbers_go_on(tmp_path):
    save_checkpoint(tmp_path, random_state(CPU))
    expected = torch.rand(5)
    set_random_state(load_checkpoint(tmp_path, CPU), CPU)
    assert torch.equal(torch.rand(5), expected)
