"""Sixty cases of the fuzzer; `make fuzz` runs a thousand others."""

import json

import pytest

from forked import fork
from fuzz.campaign import tried
from fuzz.material import build

CASES, AT_ONCE = 60, 10


def write_material(folder):
    folder.mkdir()
    build(folder)


def write_failures(seeds, material, path):
    results = [tried(seed, material) for seed in seeds]
    path.write_text(json.dumps([result for result in results if result[2] is not None]))


def wait(process):
    process.join(300)
    assert process.exitcode == 0


@pytest.fixture(scope="module")
def material(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fuzz") / "material"
    wait(fork(write_material, folder, killed=True))
    return folder


@pytest.mark.parametrize("first", range(0, CASES, AT_ONCE))
def test_mangled_files_and_flags_get_an_answer(first, material, tmp_path):
    wait(fork(write_failures, range(first, first + AT_ONCE), material, tmp_path / "failures.json", killed=True))
    failures = json.loads((tmp_path / "failures.json").read_text())
    assert failures == [], "rerun one alone: make fuzz SEED=..."
