"""The page around its sections: page.html and style.css, filled in and written in one move."""

from collections.abc import Iterable
from html import escape
from importlib import resources
from pathlib import Path
from string import Template


def filled_page(title: str, summary: str, sections: Iterable[str]) -> str:
    """The text of a page.

    Args:
        title: its headline.
        summary: what it says first.
        sections: HTML; empty ones are left out.
    """
    source = resources.files("repopt.report")
    return Template(source.joinpath("page.html").read_text(encoding="utf-8")).substitute(
        title=escape(title),
        style=source.joinpath("style.css").read_text(encoding="utf-8"),
        summary=escape(summary),
        sections="\n".join(part for part in sections if part),
    )


def write_page(path: Path, text: str) -> Path:
    """Writes a page, or a figure of it; no reader sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.part")
    unfinished.write_text(text, encoding="utf-8")
    return unfinished.replace(path)
