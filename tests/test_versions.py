"""constraints.txt has one version of every package that an install or a build pulls in."""

import re
import tomllib
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
BUILD = PROJECT["build-system"]["requires"]
PINS = {
    canonicalize_name(name): version
    for name, version in re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
}


def whole_tree(names):
    """What the requirements need here, and what these need in turn, as far as it is installed."""
    found, left = set(), [Requirement(name) for name in names]
    while left:
        wanted = left.pop()
        if (wanted.name, *sorted(wanted.extras)) in found:
            continue
        found.add((wanted.name, *sorted(wanted.extras)))
        try:
            needed = map(Requirement, requires(wanted.name) or ())
        except PackageNotFoundError:
            continue
        extras = wanted.extras or {""}
        left += [each for each in needed if not each.marker or any(each.marker.evaluate({"extra": e}) for e in extras)]
    return {canonicalize_name(name) for name, *_ in found}


def test_nobody_is_sent_to_an_index_for_an_extra():
    # repopt is on no index yet, so that `pip install 'repopt[int8]'` would find nothing
    said = [*ROOT.glob("src/**/*.py"), *ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
    assert [path.name for path in said if re.search(r"install\b.*repopt\[", path.read_text())] == []


@pytest.mark.parametrize("group", ["dependencies", "build", *PROJECT["project"]["optional-dependencies"]])
def test_every_package_of_an_install_and_of_a_build_is_pinned(group):
    project = PROJECT["project"]
    groups = {"dependencies": project["dependencies"], "build": BUILD, **project["optional-dependencies"]}
    unpinned = whole_tree(groups[group]) - set(PINS)
    assert not {name for name in unpinned if not name.startswith(("nvidia-", "cuda-", "triton"))}  # torch pins its own


def test_an_isolated_build_has_the_versions_of_the_constraints():
    built = {canonicalize_name(each.name): str(each.specifier) for each in map(Requirement, BUILD)}
    assert built == {name: f"=={PINS[name]}" for name in whole_tree(BUILD)}
