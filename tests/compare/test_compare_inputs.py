"""Whatever a user asks `repopt compare` for, the answer is one sentence, before anything is trained."""

import json
from pathlib import Path

import pytest

from repopt.cli import main

BASE = "compare --data fake:32,4,16 --device cpu --out x"


def file(path, text=""):
    def make():
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(text)

    return make


# what the case is -> what prepares it, the command, and words of the sentence
CASES = {
    "a method that is none": (None, f"{BASE} --methods magic", "--methods has no 'magic': choose sgd, dirac"),
    "a misspelt method": (None, f"{BASE} --methods repotp", "did you mean repopt"),
    "a method that is a search": (None, f"{BASE} --methods search", "--methods has no 'search'"),
    "a method twice": (None, f"{BASE} --methods sgd sgd", "--methods has 'sgd' twice"),
    "scales that are none": (None, f"{BASE} --methods repopt:magic", "--methods has no 'repopt:magic'"),
    "scales for nobody": (None, f"{BASE} --methods sgd --scales ones", "add it to --methods"),
    "scales that are not there": (None, f"{BASE} --methods repopt --scales none.safetensors", "none.safetensors"),
    "no seeds": (None, f"{BASE} --seeds 0", "--seeds must be at least 1, not 0"),
    "no minutes": (None, f"{BASE} --minutes 0", "--minutes must be more than 0, not 0"),
    "minutes that are no number": (None, f"{BASE} --minutes nan", "--minutes must be more than 0, not nan"),
    "no epochs": (None, f"{BASE} --epochs 0", "epochs must be at least 1"),
    "a list of rates with a negative one": (None, f"{BASE} --lr 0.1 -0.2", "lr must be more than 0"),
    "a rate of 0": (None, f"{BASE} --lr 0", "lr must be more than 0"),
    "a method of other models": (
        None,
        f"{BASE} --model timm:resnet18 --methods sgd repvgg",
        "repvgg is for repopt's own models",
    ),
    "a form that there is not": (
        None,
        f"{BASE} --model repopt_ghostnet_050 --methods qarepvgg",
        "qarepvgg is for VGGs",
    ),
    "a model with real branches": (None, f"{BASE} --model repvgg_a0", "give --model repopt_vgg_a0"),
    "a model that is none": (None, f"{BASE} --model repopt_vgg_z9", "there is no model 'repopt_vgg_z9'"),
    "nothing to plan": (
        file("flat_net.py", "from torch import nn\ndef net(): return nn.Sequential(nn.Flatten(), nn.Linear(768, 4))"),
        f"{BASE} --model flat_net:net --methods dirac",
        "finds nothing to plan",
    ),
    "branches of no kind": (None, f"{BASE} --branches vgg", "--branches takes repvgg, acnet or a .toml file"),
    "a recipe that is none": (None, f"{BASE} --recipe magic", "'magic' is neither a recipe nor a .toml file"),
    "data that are not there": (None, "compare --data nowhere --out x", "nowhere"),
    "a file for a folder": (file("x"), BASE, "is a file: give --out a folder"),
    "a folder of something else": (file("x/notes.txt"), BASE, "holds something that is no comparison"),
    "settings that are none": (file("x/settings.json", json.dumps({"request": 1})), BASE, "settings.json"),
}


@pytest.mark.parametrize("case", CASES)
def test_misuse_is_answered_with_a_sentence(case, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    prepare, command, words = CASES[case]
    if prepare is not None:
        prepare()
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(SystemExit, match="2"):
        main(command.split())
    said = capsys.readouterr().err
    assert words in said
    assert len(said.strip().splitlines()) == 1
    assert [path for path in sorted(tmp_path.rglob("*")) if "__pycache__" not in str(path)] == before
