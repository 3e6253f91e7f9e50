"""The few pieces of HTML that the report is made of; what they are given is HTML already, unless they say otherwise."""

from collections.abc import Iterable, Sequence
from html import escape


def cell(content: str, *, head: bool = False, number: bool = False, strong: bool = False) -> str:
    classes = " ".join(name for name, on in (("number", number), ("strong", strong)) if on)
    tag = "th" if head else "td"
    return f'<{tag} class="{classes}">{content}</{tag}>' if classes else f"<{tag}>{content}</{tag}>"


def table(names: Sequence[str], rows: Iterable[Sequence[str]], *, numbers_from: int = 99, numbers_to: int = 99) -> str:
    heads = "".join(
        cell(name, head=True, number=numbers_from <= index < numbers_to) for index, name in enumerate(names)
    )
    body = "".join(f"<tr>{''.join(row)}</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>'


def fields(pairs: Iterable[tuple[str, str]], columns: int = 2) -> str:
    rows = "".join(f"<div><dt>{escape(name)}</dt><dd>{value}</dd></div>" for name, value in pairs)
    return f'<dl class="fields{"" if columns > 1 else " single"}">{rows}</dl>'


def figure(caption: str, svg: str, *, broad: bool = False) -> str:
    kind = ' class="broad"' if broad else ""
    return f"<figure{kind}><figcaption>{escape(caption)}</figcaption>{svg}</figure>"


def grid(cards: Iterable[str]) -> str:
    return f'<div class="figures">{"".join(cards)}</div>'


def section(name: str, body: str, *, note: str = "") -> str:
    return f"<section><h2>{name}</h2>{f'<p>{note}</p>' if note else ''}{body}</section>"
