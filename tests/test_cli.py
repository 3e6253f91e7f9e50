"""The real program, in a process of its own."""

import csv
import inspect
import json
import os
import re
import subprocess
import sys
from functools import partial
from importlib import import_module
from itertools import pairwise
from pathlib import Path

import pytest

from broken import break_the_multiplier
from interrupted import interrupt_in
from repopt.cli import COMMANDS, FIRST_COMMANDS, main
from train.program import heard as run


def test_verify_prints_a_table_and_succeeds():
    done = run("verify", "--steps", "2", env={"COLUMNS": "80"})
    assert done.returncode == 0, done.stderr
    assert "all equal" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


@pytest.mark.parametrize("args", [[], ["--version"], ["list", "--help"], ["list", "--scales", "--json"]], ids=str)
def test_a_reader_who_has_seen_enough_is_no_error(args):
    """As in `repopt list --json | true`."""
    reading, writing = os.pipe()
    os.close(reading)
    words = [sys.executable, "-m", "repopt", *args]
    done = subprocess.run(words, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_error_is_one_also_where_nobody_reads(monkeypatch, capfd):
    """Of a command that has printed something, which a closed pipe never took."""
    reading, writing = os.pipe()
    os.close(reading)
    words = "bench train --models repopt_vgg_nano other_nets:none --methods sgd --size 16 --batch-size 4 --classes 2"
    place = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    command = [sys.executable, "-m", "repopt", *words.split(), "--steps", "1", "--device", "cpu"]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, check=False, env=place)
    os.close(writing)
    assert done.returncode == 2, done.stderr
    assert "has no 'none'" in " ".join(done.stderr.split())


@pytest.mark.slow
def test_verify_speaks_json():
    done = run("verify", "--steps", "3", "--json")
    rows = json.loads(done.stdout)
    assert all(row["passed"] for row in rows)
    assert {row["exact"] for row in rows} == {True, False}


def test_a_broken_equality_is_exit_code_1():
    """The program is run with a multiplier that is off by one part in a million."""
    done = run("verify", "--steps", "2", prepare=break_the_multiplier)
    assert done.returncode == 1, done.stderr
    assert "BROKEN" in done.stdout


def test_bench_step_prints_and_appends_its_figures(tmp_path):
    out = tmp_path / "step.csv"
    done = run("bench", "step", "--model", "repopt_vgg_nano", "--repeats", "2", "--threads", "1", "--out", str(out))
    assert done.returncode == 0, done.stderr
    assert "sgd, fused: grad" in done.stdout
    with out.open() as file:
        rows = list(csv.DictReader(file))
    assert [row["way"] for row in rows] == ["stock", "grad", "closed"]
    assert all(row["hardware"] and row["torch"] and row["date"] and row["seed"] for row in rows)


def test_bench_step_speaks_json_on_channels_last():
    done = run(
        "bench", "step", "--model", "repopt_vgg_nano", "--repeats", "2", "--memory-format", "channels_last", "--json"
    )
    assert [row["memory_format"] for row in json.loads(done.stdout)] == ["channels_last"] * 3


def test_the_installed_script_says_its_version():
    script = Path(sys.executable).with_name("repopt")
    done = subprocess.run([script, "--version"], capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout.startswith("repopt 0.")


@pytest.mark.parametrize(
    "args", [[], ["--help"], ["bench"], ["verify", "--help"], ["--help", "list"], ["bench", "--help", "step"]]
)
def test_help_is_there_for_a_newcomer(args):
    done = run(*args)
    assert done.returncode == 0
    assert "usage: repopt" in done.stdout


@pytest.mark.parametrize("name", ["", "bench", *COMMANDS])
def test_help_fits_80_columns_and_breaks_no_line_early(name, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit, match="0"):
        main([*name.split(), "--help"])
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert max(map(len, lines)) <= 80
    for line, after in pairwise(lines):
        goes_on = re.match(r"[│ ]( {9,})(\S+)", after)
        if goes_on and line[: goes_on.start(2)].endswith("  "):  # the text of a flag begins or goes on there
            assert len(f"{line.rstrip('│ ')} {goes_on[2]}") > 78, line


def test_a_newcomer_sees_three_commands_to_start_with_and_their_flags_exist(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit, match="0"):
        main([])
    lines = capsys.readouterr().out.splitlines()
    assert len(FIRST_COMMANDS) == 3
    for words, about in FIRST_COMMANDS.items():
        assert [line for line in lines if words in line and about in line], "on one line"
        _, name, *flags = words.split()
        home, function = COMMANDS[name][0].split(":")
        taken = inspect.signature(getattr(import_module(f"repopt.cli.{home}"), function)).parameters
        assert {flag[2:] for flag in flags[::2]} <= set(taken)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_of_commands_says_what_each_says_of_itself(name):
    home, function = COMMANDS[name][0].split(":")
    said = getattr(import_module(f"repopt.cli.{home}"), function).__doc__
    assert said.splitlines()[0] == COMMANDS[name][1]


def test_a_misspelt_flag_is_answered_with_those_of_its_command_alone():
    said = run("train", "--epoch", "1").stderr
    assert "--epochs INT" in said
    assert "repopt train --help" in said
    assert not [other for other in ("demo", "quantize", "search") if other in said]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["bench", "step", "--model", "nope"], "there is no model 'nope'"),
        (["verify", "--steps", "0"], "steps must be at least 1"),
        (["bench", "step", "--repeats", "0"], "repeats must be at least 1"),
        (["bench", "step", "--device", "cuda", "--model", "repopt_vgg_nano"], "CUDA"),
        (["bench", "step", "--model", "repopt_vgg_nano", "--rules"], "--rules names nothing"),
        (["bench", "train", "--models"], "--models names nothing"),
        (["bench", "step", "--model", "repopt_vgg_nano", "--out", "."], "'.' is a folder: give --out a CSV file"),
        (["nonsense"], "nonsense"),
        (["bench", "stp"], "did you mean 'bench step'?"),
        (["reproduce"], "python -m paper"),
    ],
)
def test_what_a_user_can_mend_is_a_sentence_and_exit_code_2(args, words):
    done = run(*args)
    if "cuda" in args and done.returncode == 0:
        pytest.skip("this machine has CUDA, so asking for it is no error")
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr


RUN = str(Path(__file__).parent / "train" / "old_runs" / "finished_sgd")


@pytest.mark.parametrize(
    ("args", "function"),
    [
        (["--help"], "_list_commands"),
        (["list"], "import_module"),
        (["verify"], "run_matrix"),
        (["train", "--data", "fake:64,4,16", "--out", "run"], "load_data"),
        (["search", "--data", "fake:64,4,16", "--out", "run"], "create_model"),
        (["eval", RUN], "evaluate"),
        (["quantize", RUN, "--out", "int8"], "load_run"),
        (["export", RUN, "--format", "safetensors", "--out", "here"], "_write_weights"),
        (["report", RUN], "write_report"),
        (["bench", "step", "--model", "repopt_vgg_nano"], "measure_step"),
    ],
)
def test_ctrl_c_is_one_line_and_exit_code_130(args, function, tmp_path):
    done = run(*args, cwd=tmp_path, prepare=partial(interrupt_in, function))
    assert (done.returncode, done.stderr) == (130, "repopt: interrupted\n")
