import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from PIL import ImageFile

from data.pictures import class_folders, picture, reader_of, truncate
from forked import event, fork
from repopt.data import processes
from repopt.data.processes import decode, find_broken


@pytest.fixture
def paths(tmp_path):
    return sorted(class_folders(tmp_path / "pets", 20, 10, size=(24, 20)).rglob("*.*"))


def workers_of(pid):
    """The processes that decode for this one."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if f'"parent": {pid},'.encode() in entry.read_bytes():
                found.append(int(entry.parent.name))
        except OSError:  # ended in the meantime
            continue
    return found


def wait_until(condition):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.parametrize("count", [1, 3])
def test_processes_decode_what_this_one_decodes(paths, count):
    here, there = decode(paths, 16), decode(paths, 16, processes=count)
    assert torch.equal(here[0], there[0])
    assert here[1] == there[1] == {}
    assert workers_of(os.getpid()) == []


def test_broken_images_are_left_out_and_named_alike(paths):
    for place in (3, 31):
        truncate(paths[place])
    paths[7].write_bytes(b"no image")
    here, there = decode(paths, 16), decode(paths, 16, processes=2)
    assert list(there[1]) == [3, 7, 31]
    assert there[1] == here[1] == find_broken(paths) == find_broken(paths, processes=2)
    assert str(paths[7]) in there[1][7]
    assert torch.equal(here[0], there[0])
    assert len(there[0]) == len(paths) - 3


def test_names_in_bytes_and_pillows_settings_reach_the_processes(tmp_path, monkeypatch):
    path = picture(tmp_path / os.fsdecode(b"caf\xe9 \n.jpg"), size=(64, 64))
    path.write_bytes(path.read_bytes()[:-40])
    assert list(decode([path], 16, processes=1)[1]) == [0]
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    there, broken = decode([path], 16, processes=1)
    assert broken == {}
    assert torch.equal(there, decode([path], 16)[0])


def test_a_moments_work_is_done_here(paths, monkeypatch):
    monkeypatch.setattr(processes, "_START", "raise SystemExit('started')")
    assert len(decode(paths[:4], 16)[0]) == 4


@pytest.mark.parametrize(
    ("seconds", "done", "count", "short"),
    [(9.0, 0, 10**6, True), (0.05, 32, 10**6, True), (0.2, 1000, 2000, True), (0.2, 1000, 10**6, False)],
)
def test_work_is_judged_by_its_beginning(seconds, done, count, short):
    assert processes._is_short(seconds, done, count) == short


def test_what_was_begun_here_is_finished_by_processes(paths, monkeypatch):
    expected = decode(paths, 16)
    monkeypatch.setattr(processes, "_HERE", 7)
    monkeypatch.setattr(processes, "cores", lambda: 2)
    monkeypatch.setattr(processes, "_is_short", lambda seconds, done, count: done < 14)
    made = decode(paths, 16)
    assert torch.equal(made[0], expected[0])


def test_a_process_that_fails_is_a_sentence(paths, monkeypatch):
    monkeypatch.setattr(processes, "_START", "raise SystemExit('no such library')")
    with pytest.raises(RuntimeError, match=r"a process that decodes images failed \(no such library\): see whether"):
        decode(paths, 16, processes=2)
    assert workers_of(os.getpid()) == []


SCRIPT = """
import sys
import torch
from pathlib import Path
from repopt.data.processes import decode
print("run")
torch.ones(300, 300) @ torch.ones(300, 300)  # torch's threads are there
paths = sorted(Path(sys.argv[1]).rglob("*.*"))
assert torch.equal(decode(paths, 16, processes=2)[0], decode(paths, 16)[0])
print(len(paths))
"""


def test_a_script_without_a_guard_runs_once_and_nothing_is_loaded_from_its_folder(paths, tmp_path):
    place = tmp_path / "elsewhere"
    (place / "PIL").mkdir(parents=True)
    for name in ("PIL/__init__.py", "runpy.py", "struct.py", "repopt.py"):
        (place / name).write_text("raise SystemExit('loaded from the working directory')")
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "pets")], capture_output=True, text=True, cwd=place, timeout=120
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, f"run\n{len(paths)}\n", "")


def decode_for_long(path, begun):
    begun.set()
    decode([path] * 3_000_000, 2, processes=2)


def decode_one(path):
    decode([path], 16, processes=1)


def interrupted(path, begun):
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        decode_for_long(path, begun)
    except KeyboardInterrupt:
        wait_until(lambda: not workers_of(os.getpid()))  # one that was just starting finds no tasks, and ends
        os._exit(7)


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="looks for processes in /proc")
@pytest.mark.parametrize(
    ("work", "number", "code"), [(decode_for_long, signal.SIGKILL, -9), (interrupted, signal.SIGINT, 7)]
)
def test_processes_end_with_the_one_that_started_them(tmp_path, work, number, code):
    path, begun = picture(tmp_path / "a.jpg"), event()
    process = fork(work, path, begun, killed=True)
    assert begun.wait(60)
    wait_until(lambda: len(workers_of(process.pid)) == 2)
    os.kill(process.pid, number)
    process.join(60)
    assert process.exitcode == code
    wait_until(lambda: not workers_of(process.pid))


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a process ends once it is done with an image")
def test_a_process_that_is_held_up_by_a_file_ends_with_the_one_that_started_it(tmp_path):
    os.mkfifo(tmp_path / "a.jpg")
    process = fork(decode_one, tmp_path / "a.jpg", killed=True)
    with reader_of(tmp_path / "a.jpg") as gone:
        process.kill()
        process.join(60)
        assert gone()
