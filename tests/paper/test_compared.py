"""What `repopt compare` wrote on a GPU becomes a table and a figure."""

import json
import xml.etree.ElementTree as ElementTree

import pytest

from paper import compared
from paper.front_figures import compared as drawn
from paper.front_figures import front
from paper.pages import fill


def method(name, accuracy, int8):
    figures = {"accuracy": accuracy, "standard_error": 0.25, "int8_accuracy": int8, "int8_standard_error": 0.5}
    speeds = {"images_per_second": 28_000.4, "peak_bytes": 2_500_000_000, "inference": 51_000.0}
    return {"name": name, "lr": 0.1, "accuracies": [accuracy] * 3, **figures, **speeds}


@pytest.fixture
def study():
    return {"methods": [method("sgd", 61.5, 61.25), method("repopt", 64.125, None)]}


def test_a_study_is_a_table(study, tmp_path):
    (tmp_path / "compare-photos.json").write_text(json.dumps(study))
    assert [row["study"] for row in compared.rows(tmp_path)] == ["photos", "photos"]
    page = fill('<!--= table("compare", study="photos") --><!--/-->', tmp_path)
    assert "| plain SGD | 0.1 | 3 | 61.50 ± 0.25 | 61.25 ± 0.50 | 28,000 | 2.5 | 51,000 |" in page
    assert "| RepOpt | 0.1 | 3 | 64.12 ± 0.25 |  | 28,000 | 2.5 | 51,000 |" in page


def texts_of(svg):
    return [each.text for each in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]


def test_a_study_is_a_figure_with_the_best_on_top(study):
    pytest.importorskip("matplotlib")
    study["methods"][1] |= {"int8_accuracy": 63.5}
    texts = texts_of(drawn(study))
    assert texts.index("plain SGD") < texts.index("RepOpt")
    assert (texts.count("28,000"), texts.count("63.5")) == (2, 1)


def test_a_figure_without_int8_has_no_column_for_it(study):
    pytest.importorskip("matplotlib")
    for each in study["methods"]:
        each["int8_accuracy"] = None
    assert "INT8" not in texts_of(drawn(study))


def test_the_front_figure_has_accuracies_of_the_best_runs_and_speeds_of_a_study(study):
    """Of a way that was quantized at two learning rates; the other one was not quantized and is left out."""
    pytest.importorskip("matplotlib")
    by = {"way": "RepOpt, learned", "backend": "onnxruntime", "weights": "channel", "images": "1000"}
    runs = [("0.1", 50, 48), ("0.1", 52, 46), ("0.2", 49, 49)]
    rows = [{**by, "rate": rate, "float_accuracy": str(at), "int8_accuracy": str(int8)} for rate, at, int8 in runs]
    texts = texts_of(front(rows, study))
    assert (texts.count("51.0"), texts.count("47.0"), texts.count("28,000")) == (1, 1, 1)
    assert "plain SGD" not in texts
