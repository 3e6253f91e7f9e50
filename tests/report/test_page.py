import importlib.util
import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser

import pytest

from repopt.report import figures, write_report
from repopt.report.page import FILTERS
from report.folders import add_int8, three_methods, write_run

pytest.importorskip("matplotlib")

VOID = {"meta", "br"}


class Page(HTMLParser):
    """The text of a page, and its tags; fails where they are not closed in order."""

    def __init__(self, path):
        super().__init__()
        self.open, self.tags, self.attributes, self.words = [], [], [], []
        self.feed(path.read_text())
        assert self.open == []
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data):
        if self.open[-1:] != ["style"]:
            self.words.append(data)


@pytest.fixture(scope="module")
def comparison(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    return Page(write_report(three_methods(root), root / "out" / "report.html"))


def test_a_page_needs_nothing_but_itself(comparison, tmp_path):
    assert not {"script", "link", "img", "iframe"} & set(comparison.tags)
    outside = [value for name, value in comparison.attributes if name.endswith(("href", "src")) and value[0] != "#"]
    assert outside == []
    source = write_report([write_run(tmp_path / "a")], tmp_path / "report.html").read_text()
    assert not re.search(r"@import|url\((?!#)", source)


def test_ids_are_used_once_and_what_is_pointed_at_is_there(comparison):
    ids = [value for name, value in comparison.attributes if name == "id"]
    links = {value[1:] for name, value in comparison.attributes if name.endswith("href")}
    clips = {value[5:-1] for name, value in comparison.attributes if name == "clip-path"}
    assert len(ids) == len(set(ids))
    assert links | clips <= set(ids)


def test_a_comparison_shows_runs_searches_and_figures(comparison):
    assert "10 runs of repopt_vgg_nano on digits (1,437 training and 360 validation images at 32 px)" in comparison.text
    assert "Scales of stage3.15.conv over epochs" in comparison.text
    assert "unfinished" not in comparison.text
    assert comparison.tags.count("figure") == 5


def test_the_mean_and_deviation_are_those_of_the_files(tmp_path):
    folders = [write_run(tmp_path / str(seed), seed=seed) for seed in range(2)]
    for folder, value in zip(folders, (90.0, 92.0), strict=True):
        summary = json.loads((folder / "summary.json").read_text())
        memory = {"peak_memory_bytes": 3 * 2**30}
        (folder / "summary.json").write_text(json.dumps({**summary, "val_accuracy": value, **memory}))
    page = Page(write_report(folders, tmp_path / "report.html"))
    assert "RepOpt 2 91.00 ± 1.41 900 3.0 GiB 350,384" in page.text


def test_a_single_run_has_a_page_of_its_own(tmp_path):
    page = Page(write_report([write_run(tmp_path / "a", "sgd")], tmp_path / "report.html", title="Mine & yours"))
    assert "Mine & yours" in page.text
    assert "1 run of repopt_vgg_nano" in page.text
    assert page.tags.count("figure") == 2


def test_unfinished_runs_are_shown_and_marked(tmp_path):
    folders = [write_run(tmp_path / "a"), write_run(tmp_path / "b", seed=1, epochs=7, finished=False)]
    cifar = {"train_images": 50_000, "recipe": {"epochs": 240}}
    folders.append(write_run(tmp_path / "c", "search", epochs=40, finished=False, **cifar))
    page = Page(write_report(folders, tmp_path / "report.html"))
    assert "2 runs are not finished and marked so" in page.text
    assert "1 of 2 unfinished" in page.text
    assert "b unfinished, 7 of 15 epochs" in page.text
    assert "what this search cost so far (unfinished, 40 of 240 epochs)" in page.text


def test_a_run_that_has_only_begun_has_a_page(tmp_path):
    folder = write_run(tmp_path / "a", finished=False)
    (folder / "metrics.jsonl").unlink()
    page = Page(write_report([folder], tmp_path / "report.html"))
    assert "Nothing was evaluated yet." in page.text
    assert "unfinished, 0 of 15 epochs" in page.text
    assert "figure" not in page.tags


@pytest.mark.parametrize(
    ("images", "epochs", "share"),
    [(1437, 15, None), (1437, 240, None), (50_000, 2, None), (50_000, 240, "0.16%"), (50_000, 30, "0.020%")],
)
def test_a_search_has_a_share_of_imagenet_s_cost_unless_it_is_a_trial(tmp_path, images, epochs, share):
    folder = write_run(tmp_path / "a", "search", epochs=epochs, train_images=images, recipe={"epochs": epochs})
    page = Page(write_report([folder], tmp_path / "report.html"))
    assert ("ImageNet" in page.text) == ("0.18%" in page.text) == (share is not None)
    assert share is None or f"{share} of the paper's ImageNet training" in page.text
    assert page.tags.count("figure") == 4  # the scales are shown either way


@pytest.mark.parametrize(
    ("done", "frozen", "searched"),
    [(20, 20, "20"), (40, 24, "24"), (240, 24, "24"), (240, 18, "18"), (240, 60, "59")],  # some before other --epochs
)
def test_scales_that_are_learned_cost_the_epochs_until_they_are_frozen(tmp_path, done, frozen, searched):
    about = {
        "epochs": done,
        "finished": done == 240,
        "train_images": 50_000,
        "recipe": {"epochs": 240, "freeze_at": 0.1},
    }
    folder = write_run(tmp_path / "a", **about)
    search = write_run(tmp_path / "search", "search", **about)
    records = [json.loads(line) for line in (search / "scales.jsonl").read_text().splitlines()]
    settled = [{**each, "scales": records[min(each["epoch"], frozen)]["scales"]} for each in records]
    (folder / "scales.jsonl").write_text("".join(json.dumps(each) + "\n" for each in settled))
    page = Page(write_report([folder], tmp_path / "report.html"))
    assert f"{searched} / 120 epochs" in page.text


def test_a_comparison_says_that_one_seed_tells_little(tmp_path):
    one, two = write_run(tmp_path / "a", "sgd"), write_run(tmp_path / "b")
    other = write_run(tmp_path / "c", seed=1)
    said = {tuple(runs): Page(write_report(runs, tmp_path / "page.html")).text for runs in [[one], [one, two]]}
    assert "cannot say" not in said[one,]
    assert "There is one seed of each method" in said[one, two]
    assert "There is one seed of SGD:" in Page(write_report([one, two, other], tmp_path / "page.html")).text


def test_a_recipe_s_differences_stand_apart(tmp_path):
    one, other = write_run(tmp_path / "a"), write_run(tmp_path / "b", recipe={"lr": 0.2, "crop": [0.08, 1.0]})
    page = Page(write_report([one, other], tmp_path / "report.html"))
    assert (
        "What differs field RepOpt (lr 0.1) RepOpt (lr 0.2, crop [0.08, 1.0]) lr 0.1 0.2 crop none 0.08, 1" in page.text
    )


def test_int8_stands_beside_float_and_by_layer(tmp_path):
    folder = write_run(tmp_path / "a")
    add_int8(folder)
    page = Page(write_report([folder], tmp_path / "report.html"))
    how = "PTQ, histogram, per-channel weights, deployed, x86"
    assert f"a {how} 97.00 96.50 0.50 0.89 0.81 6,821 – 11,136" in page.text
    assert f"By layer: a, {how} layer" in page.text
    assert "stem.conv 99.5 31.2 –" in page.text


def test_whatever_the_files_hold_is_text(tmp_path):
    evil = "<script>alert('$x$')</script>&\""
    folder = write_run(
        tmp_path / "<b>", "search", recipe={evil: evil}, model=evil, data=evil, kernel=evil, hardware=evil
    )
    records = (folder / "scales.jsonl").read_text().replace("stage3.15.conv", "<i>$").replace("conv1x1", "<u>")
    (folder / "scales.jsonl").write_text(records)
    other = write_run(tmp_path / "b", evil, hardware="<img src=x>", data_digest="<br><br><br>")
    page = Page(write_report([folder, other], tmp_path / "report.html"))
    assert not {"script", "u", "img"} & set(page.tags)
    assert page.text.count("alert('$x$')") > 5
    assert "Scales of <i>$ over epochs" in page.text


@pytest.mark.parametrize(
    "name", ["<img src=x onerror=alert(1)>", "font: 1px x", "var(--none)", "$\\none$", "a\x01b", '" onload="alert(1)']
)
def test_whatever_a_figure_labels_is_text(name):
    """In the drawing, and in what is said of it to those who cannot see it."""
    figure, axes = figures.new_figure()
    axes.annotate(name, (0, 0))
    figures.key(axes, [name])
    drawn = ElementTree.fromstring(figures.standing_alone(figures.to_svg(figure, name)))
    shown = name.replace("\x01", "\N{REPLACEMENT CHARACTER}")
    assert [text.text for text in drawn.iter("{http://www.w3.org/2000/svg}text")].count(shown) == 2
    assert drawn.get("aria-label") == shown
    assert drawn.get("onload") is None


def test_a_loss_that_is_not_finite_does_not_stop_the_report(tmp_path):
    folder = write_run(tmp_path / "a", finished=False)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"epoch": 16, "train_loss": NaN, "val_accuracy": 10.0}\n{"epoch": 17, "train_loss": Infinity}\n')
    assert Page(write_report([folder], tmp_path / "report.html")).tags.count("figure") == 2


def test_the_same_runs_give_the_same_page(tmp_path):
    folder = write_run(tmp_path / "a", "search")
    first, second = (write_report([folder], tmp_path / name).read_text() for name in ("1.html", "2.html"))
    assert first == second
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1.html", "2.html", "a"]


def test_wrong_input_is_refused_with_a_sentence(tmp_path):
    folder = write_run(tmp_path / "a")
    with pytest.raises(ValueError, match="at least one run, and none was given"):
        write_report([], tmp_path / "report.html")
    with pytest.raises(ValueError, match="a' is given twice: name each folder once"):
        write_report([folder, tmp_path / "b" / ".." / "a"], tmp_path / "report.html")
    with pytest.raises(ValueError, match=r"is a folder: name the page's file, as '.*report\.html'"):
        write_report([folder], tmp_path)


def test_without_matplotlib_a_sentence_says_what_to_install(tmp_path):
    write_run(tmp_path / "a")
    program = (
        "import sys; sys.modules['matplotlib'] = None\n"
        "from repopt.report import write_report\n"
        f"write_report([{str(tmp_path / 'a')!r}], {str(tmp_path / 'report.html')!r})"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert found.stderr.strip().endswith("which is not installed: pip install -e '.[report]' from a checkout")
    assert not (tmp_path / "report.html").exists()


def test_importing_the_report_does_not_import_matplotlib():
    program = "import sys, repopt.report; sys.exit('matplotlib' in sys.modules)"
    assert importlib.util.find_spec("matplotlib")
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


@pytest.mark.parametrize(
    ("name", "values", "texts"),
    [
        ("percent", (0.0018, 0.0000029, 0.25, 0.0), ["0.18%", "0.00029%", "25.0%", "0%"]),
        ("duration", (9.44, 59.6, 185, 7625, None), ["9.4 s", "1 min 0 s", "3 min 5 s", "2 h 7 min", "–"]),
        ("memory", (512 * 2**20, 3.4 * 2**30, None), ["512 MiB", "3.4 GiB", "–"]),
        ("count", (1437, 1436.6, 7, 7.25, None), ["1,437", "1,437", "7", "7.2", "–"]),
        ("listed", ("a", "ab", "aba", "abc"), ["a", "a and b", "a and b", "a, b and c"]),
        ("value", (None, True, 4e-5, [0.08, 1.0], "SGD"), ["none", "yes", "4e-05", "0.08, 1", "SGD"]),
    ],
)
def test_numbers_read_well(name, values, texts):
    assert [FILTERS[name](value) for value in values] == texts


def test_runs_in_folders_of_one_name_are_told_apart(tmp_path):
    runs = [write_run(tmp_path / place / "x", method) for place, method in (("one", "sgd"), ("other", "repopt"))]
    for run in runs:
        add_int8(run)
    text = Page(write_report(runs, tmp_path / "page.html")).text
    assert all(text.count(str(run)) >= 2 for run in runs)  # in the tables of INT8 and of all runs


def test_no_two_of_64_series_look_alike():
    looks = {(series % len(figures.SERIES), figures.marker(series)) for series in range(64)}
    assert len(looks) == 64
