"""Scales say where they come from."""

import json
from dataclasses import asdict

import pytest

from repopt.cli import main
from repopt.plans.provenance import provenance
from repopt.plans.scales import ZOO, Scales, shipped


@pytest.mark.parametrize("name", shipped())
def test_shipped_scales_know_their_search(name):
    origin = provenance(Scales.load(name))
    assert (origin.model, origin.data) == (name, "cifar100")
    assert 20 < origin.accuracy < 80
    assert len(origin.data_digest) == 64


def test_scales_that_no_search_wrote_have_none(tmp_path):
    assert provenance(Scales({"a": {"conv3x3": 1.0}})) is None
    for run in ("[]", "{}", "not JSON"):
        assert provenance(Scales({}, {"run": run, "recipe": "{}"})) is None
    Scales.load("repopt_vgg_b1").save(tmp_path / "copy.safetensors")
    assert provenance(Scales.load(tmp_path / "copy.safetensors")) == provenance(Scales.load("repopt_vgg_b1"))


def test_the_list_of_scales_says_where_they_come_from(capsys):
    for words in (["list", "--scales"], ["list", "--scales", "--json"]):
        with pytest.raises(SystemExit, match="0"):
            main(words)
    text, _, records = capsys.readouterr().out.partition("[")
    listed = json.loads(f"[{records}")
    assert [record["name"] for record in listed] == shipped()
    for record in listed:
        line = next(line for line in text.splitlines() if record["name"] in line.split())
        assert f"{record['accuracy']:.2f}" in line
        assert record == {"name": record["name"], **asdict(provenance(Scales.load(record["name"])))}


def test_what_ships_is_small():
    assert sum(path.stat().st_size for path in ZOO.glob("*.safetensors")) < 5e6
