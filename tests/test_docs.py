"""Every snippet of the README and of the docs runs, every command parses; numbers that were measured come from rows."""

import functools
import re
import shlex
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import repopt
import repopt.models
import repopt.optim
from paper.pages import RESULTS, ROOT, fill, pages
from paper.tables import NAMES
from repopt.cli import COMMANDS, main
from repopt.train.recipe import Recipe

PAGES = [str(path.relative_to(ROOT)) for path in pages()]
WITH_LINKS = [*PAGES, "CONTRIBUTING.md", "CHANGELOG.md"]


# {page: placeholders that it has at the least}
MEASURED = {"paper-tables.md": 30, "results.md": 6, "results-tables.md": 6}


def fences(page, language):
    """The blocks of code of a page in a language."""
    blocks = re.findall(r"^```(\S*)\n(.*?)^```$", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)
    return [code for named, code in blocks if named == language]


def commands(page):
    """The commands of repopt on a page, in words, without what a shell or Slurm puts before them."""
    lines = "".join(fences(page, "") + fences(page, "bash")).replace("\\\n", " ").splitlines()
    found = [re.search(r"(?:^|-m )repopt +(.*)", line) for line in lines]
    return [shlex.split(each[1], comments=True) for each in found if each and "..." not in each[1]]


@pytest.fixture
def photos(tmp_path, monkeypatch):
    """What docs/start.md has before its snippet: a folder of photos, and an exported model."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos" / "church").mkdir(parents=True)
    Image.fromarray(np.zeros((40, 60, 3), np.uint8)).save("photos/church/a.jpg")
    net = repopt.create_model("repopt_vgg_nano", num_classes=2, depths=(1, 1, 1, 1))
    about = {"classes": ["church", "golf_ball"], "size": 32, "input": "0..1"}
    repopt.export_model(net, "runs/photos/model-int8.onnx", torch.rand(2, 3, 32, 32), metadata=about)


@pytest.mark.no_cover  # what a snippet calls has tests of its own
@pytest.mark.parametrize("page", [page for page in PAGES if fences(page, "python")])
def test_every_snippet_runs(page, tmp_path, monkeypatch, request):
    """Those of one page in one namespace."""
    monkeypatch.chdir(tmp_path)
    if page == "docs/start.md":
        request.getfixturevalue("photos")
    namespace: dict[str, object] = {"__name__": "__main__"}
    for snippet in fences(page, "python"):
        exec(compile(snippet, page, "exec"), namespace)


@pytest.mark.parametrize("page", [page for page in PAGES if fences(page, "py")])
def test_a_snippet_that_needs_what_is_not_installed_is_python(page):
    for snippet in fences(page, "py"):
        compile(snippet, page, "exec")


@pytest.mark.parametrize("page", [page for page in PAGES if commands(page)])
def test_every_command_is_one_that_repopt_takes(page, tmp_path, monkeypatch):
    """Its flags and their values; nothing is trained."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("repopt.cli._base_recipe", lambda command, given: Recipe())
    for home, function in (about[0].split(":") for about in COMMANDS.values()):
        module = import_module(f"repopt.cli.{home}")
        monkeypatch.setattr(module, function, functools.wraps(getattr(module, function))(lambda *_, **__: 0))
    for words in (words for words in commands(page) if " ".join(words) not in COMMANDS):
        with pytest.raises(SystemExit) as end:
            main(words)
        assert not end.value.code, f"repopt {shlex.join(words)}"


@pytest.mark.parametrize("page", PAGES)
def test_every_page_is_filled(page):
    assert (ROOT / page).read_text() == fill((ROOT / page).read_text()), f"run `make docs`: {page} is not up to date"


@pytest.mark.parametrize("page", WITH_LINKS)
def test_every_link_leads_somewhere(page):
    for target, _, anchor in re.findall(r"\]\(([^)#:]*)(#([^)]*))?\)", (ROOT / page).read_text()):
        path = (ROOT / page).parent / target if target else ROOT / page
        assert path.exists(), target
        assert not anchor or anchor in _anchors(path), f"{target}#{anchor}"


def test_the_page_of_commands_has_the_help_of_each_whatever_the_terminal(monkeypatch):
    page = (ROOT / "docs" / "commands.md").read_text()
    assert re.findall(r"^<!--= help\(\"(.+)\"\) -->$", page, re.MULTILINE) == list(COMMANDS)
    for variable, value in {"COLUMNS": "132", "FORCE_COLOR": "1", "TERM": "xterm-256color", "LC_ALL": "C"}.items():
        monkeypatch.setenv(variable, value)
    assert fill(page) == page
    assert max(len(line) for block in fences("docs/commands.md", "text") for line in block.splitlines()) <= 80


def test_every_page_is_in_the_navigation_of_the_site():
    toctrees = "\n".join(fences("docs/index.md", "{toctree}") + fences("docs/api/index.md", "{toctree}"))
    listed = {re.sub(r".*<(.+)>", r"\1", line).removeprefix("api/") for line in toctrees.splitlines()}
    assert {Path(page).stem for page in PAGES if page.startswith("docs/")} - {"index"} <= listed


@pytest.mark.parametrize("module", [repopt, repopt.optim, repopt.models])
def test_every_public_name_has_its_place_in_the_api_reference(module):
    reference = "".join(path.read_text() for path in (ROOT / "docs" / "api").glob("*.md"))
    documented = {name.rpartition(".")[2] for name in re.findall(r"^\.\. (?:auto|py:)\w+:: ([\w.]+)", reference, re.M)}
    assert {name for name in module.__all__ if name != "optim"} <= documented


@pytest.mark.slow
@pytest.mark.skipif(not find_spec("furo"), reason="needs the extra `site`")
def test_the_site_builds_without_a_warning(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-n", "-q", "-d", tmp_path / "cache", "docs", tmp_path],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "repopt.reparameterize" in (tmp_path / "api" / "train.html").read_text()


def _anchors(path: Path) -> set[str]:
    """Of the headings of a page, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES)
def test_a_placeholder_within_a_sentence_does_not_begin_a_line(page):
    """Markdown would end the paragraph there."""
    for line in (ROOT / page).read_text().splitlines():
        line = line.lstrip()
        assert not line.startswith("<!--=") or re.fullmatch(r"<!--= (table|help)\(.*\) -->", line), line


@pytest.mark.parametrize("name", [name for name in NAMES if (RESULTS / f"{name}.csv").exists()])
def test_other_numbers_in_the_rows_are_other_numbers_on_the_page(name, tmp_path):
    page = "".join((ROOT / "docs" / each).read_text() for each in MEASURED)
    shown = re.findall(rf'<!--= \w+\("{name}".*?<!--/-->', page, re.DOTALL)
    assert fill("".join(shown)) == "".join(shown)
    changed = re.sub(r"(?<=,)\d+\.\d{2,}(?=,)", "7.7777", (RESULTS / f"{name}.csv").read_text())
    (tmp_path / f"{name}.csv").write_text(changed)
    assert fill("".join(shown), tmp_path) != "".join(shown)


@pytest.mark.parametrize(("name", "numbers"), MEASURED.items())
def test_no_number_that_was_measured_is_written_by_hand(name, numbers, tmp_path):
    """Without rows there is none on the page."""
    page = fill((ROOT / "docs" / name).read_text(), tmp_path)
    page = re.sub(r"https?:\S+|<!--=.*?-->", "", page)
    assert page.count("(not measured yet)") >= numbers
    assert not re.findall(r"\d\.\d\d", re.sub(r"```.*?```", "", page, flags=re.DOTALL))


def test_the_readme_has_no_number_of_its_own():
    made = r"<!--= .+? -->.*?<!--/-->|```.*?```"
    made += r"|(Python|torch) \d\.\d+|https?:\S+"
    assert not re.findall(r"\d\.\d\d", re.sub(made, "", (ROOT / "README.md").read_text(), flags=re.DOTALL))
