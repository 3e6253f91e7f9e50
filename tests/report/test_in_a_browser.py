"""Both pages as a browser shows them: on a phone and a desk, light and dark."""

import itertools
import shutil

import pytest

from made_up import measured_way
from repopt.compare.overview import table_of
from repopt.compare.verdict import sentences
from repopt.report.page import Overview, write_report
from report.folders import add_int8, three_methods, write_run

pytest.importorskip("matplotlib")
sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright, of the extra dev")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs a Chromium on the PATH")

PHONE, DESK = 400, 1280
# elements that reach beyond the screen, and none of whose boxes scrolls
BEYOND = """() => [...document.querySelectorAll("main *")]
    .filter(each => each.getBoundingClientRect().right > innerWidth + 1 && !each.closest(".wide"))
    .map(each => each.outerHTML)"""
# tables that must be scrolled sideways to be read
CUT = """() => [...document.querySelectorAll(".wide")].filter(box => box.scrollWidth > box.clientWidth + 1)
    .map(box => box.innerText)"""


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as playwright:
        # no sandbox: a container's root may not make one, and the pages are our own
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Reports of a comparison and of all that a run may have, and the page of `repopt compare`."""
    root = tmp_path_factory.mktemp("pages")
    methods = three_methods(root / "methods")
    odd = [write_run(root / "sgd", "sgd"), write_run(root / "repopt", epochs=7, finished=False, recipe={"lr": 0.2})]
    odd.append(write_run(root / "search", "search", epochs=240, train_images=50_000, recipe={"epochs": 240}))
    add_int8(odd[0])
    found = [measured_way(name) for name in ("sgd", "repopt:a-long-name-of-scales", "qarepvgg")]
    heads, rows = table_of(found)
    command = f"repopt train --data {'/photos' * 20} --out runs/sgd"
    overview = Overview(
        sentences=sentences(found, guessing=10), heads=heads, rows=rows, notes=["a note"], command=command
    )
    return {
        "methods": write_report(methods, root / "methods.html"),
        "odd": write_report(odd, root / "odd.html"),
        "compare": write_report(methods[1:], root / "compare.html", overview=overview),
    }


@pytest.fixture(scope="module", params=itertools.product(["methods", "odd", "compare"], [PHONE, DESK]), ids=str)
def seen(request, browser, pages):
    """A page at a width: what the browser asked for and complained about, and how it looks in light and dark."""
    name, width = request.param
    page = browser.new_page(viewport={"width": width, "height": 800})
    asked, said, looks = [], [], {}
    page.on("request", lambda each: asked.append(each.url))
    page.on("console", lambda each: said.append(each.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto(pages[name].as_uri())
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        looks[scheme] = page.evaluate(
            "[document.body, document.querySelector('section')].map(each => "
            "[getComputedStyle(each).backgroundColor, getComputedStyle(each).color])"
        )
    page.locator("details").evaluate_all("all => all.forEach(each => each.open = true)")
    yield page, asked, said, looks
    page.close()


def test_a_page_asks_for_nothing_and_has_no_errors(seen):
    page, asked, said, _ = seen
    assert asked == [page.url]
    assert said == []


def test_dark_mode_is_light_text_on_dark_ground(seen):
    *_, looks = seen
    for light, dark in zip(looks["light"], looks["dark"], strict=True):
        assert brightness(light[0]) > 200 > 80 > brightness(light[1])
        assert brightness(dark[0]) < 80 < 200 < brightness(dark[1])


def test_nothing_is_wider_than_the_screen(seen):
    page, *_ = seen
    assert page.evaluate("document.documentElement.scrollWidth") <= page.viewport_size["width"]
    assert page.evaluate(BEYOND) == []
    assert page.evaluate(CUT) == []


def test_on_a_phone_each_figure_of_a_table_stands_beside_its_name(seen):
    page, *_ = seen
    labels = page.locator(".cards td:visible").evaluate_all(
        "all => all.map(each => getComputedStyle(each, '::before').content)"
    )
    is_phone = page.viewport_size["width"] == PHONE
    assert labels
    assert all((label not in ("none", '""')) == is_phone for label in labels)


def brightness(colour):
    return sum(map(int, colour.removeprefix("rgb(").removesuffix(")").split(","))) / 3
