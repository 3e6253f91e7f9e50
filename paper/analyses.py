"""The analyses as sections: each is written as a page of its own, and goes into the report of the run that holds it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from paper import panels
from paper.kernels import POSITIONS, RunKernels, spread
from paper.ranks import RankCorrelation
from repopt.report.drawing import standing_alone
from repopt.report.markup import cell, figure, section, table
from repopt.report.searches import Search
from repopt.report.template import filled_page, write_page
from repopt.report.wording import ABSENT

FOLDER = "analysis"  # in a run's folder
_NAMES = ("kernels", "scales", "variance")


@dataclass(frozen=True, kw_only=True)
class Analysis:
    """A section about an analysis.

    Attributes:
        name: of its files.
        title: what is analyzed.
        note: how to read it.
        table: HTML.
        figures: {name of the file: (caption, SVG)}.
    """

    name: str
    title: str
    note: str
    table: str = ""
    figures: Mapping[str, tuple[str, str]] = field(default_factory=dict)


def kernels_analysis(runs: Sequence[RunKernels]) -> Analysis:
    rows = [
        [
            cell(escape(run.run), head=True),
            cell(f"<code>{escape(run.layer.name)}</code>"),
            cell(kernel.name),
            *(cell(f"{value:.4f}", number=True) for value in vars(spread(kernel.trained)).values()),
            *(cell(f"{value:.4f}", number=True) for value in vars(spread(kernel.start)).values()),
        ]
        for run in runs
        for kernel in run.kernels
    ]
    names = ["run", "layer", "kernel", *POSITIONS, *(f"{position} at init" for position in POSITIONS)]
    return Analysis(
        name="kernels",
        title="Spread of the 3x3 kernels",
        note=(
            "Standard deviations of one layer's kernel, as in Table 8 and appendix C: trained, and at initialization. "
            "A run's last kernel is what is deployed and quantized. In the histograms an outline is the kernel at "
            "initialization; heights are relative, and the range is the same everywhere."
        ),
        table=table(names, rows, numbers_from=3),
        figures={"kernels": ("Distribution of the numbers", panels.kernel_histograms(runs))},
    )


def variance_analysis(means: Mapping[str, Mapping[int, tuple[float, float]]], setting: str) -> Analysis:
    """Appendix B's figure.

    Args:
        means: the ratios, as `over_seeds` gives them.
        setting: what was measured, in a sentence.
    """
    note = (
        f"The variance of the identity path over that of the sum, at initialization, as in appendix B. {setting} Bands "
        "are one standard deviation over the seeds."
    )
    return Analysis(
        name="variance",
        title="Identity variance at initialization",
        note=note,
        figures={"variance": ("Ratio by depth", panels.identity_ratios(means, setting))},
    )


def scales_analysis(searches: Sequence[Search], correlations: Sequence[RankCorrelation], operator: str) -> Analysis:
    rows = [
        [
            cell(f"{escape(each.first)} and {escape(each.second)}", head=True),
            cell(escape(each.branch)),
            *(
                cell(ABSENT if value is None else f"{value:.3f}", number=True)
                for value in (each.channels, each.operators, each.moved)
            ),
        ]
        for each in correlations
    ]
    names = ["searches", "branch", "rank correlation over channels", "over operators' means", "of the change"]
    return Analysis(
        name="scales",
        title="Searched scales side by side",
        note=(
            "Means over channels, as in appendix E. Curves by depth break where a stage starts, as an operator that "
            "changes the shape has no identity. Spearman's correlation is 1 where two searches put the scales of a "
            "branch into the same order; the last column is of how far each scale came from where it started, as "
            "scales that start by depth are alike before any search."
        ),
        table=table(names, rows, numbers_from=2) if rows else "",
        figures={
            "scales_over_epochs": (f"Scales of {operator} over epochs", panels.scales_over_epochs(searches, operator)),
            "scales_by_depth": ("Scales by depth after the last epoch", panels.scales_by_depth(searches)),
        },
    )


def write_analysis(analysis: Analysis, folder: Path) -> list[Path]:
    """Writes the figures and a page with all of the analysis.

    Returns:
        The paths, the page's last.
    """
    drawn = [write_page(folder / f"{name}.svg", standing_alone(svg)) for name, (_, svg) in analysis.figures.items()]
    cards = "".join(figure(caption, svg, broad=True) for caption, svg in analysis.figures.values())
    text = filled_page(
        f"Analysis: {analysis.name}", "", [section(analysis.title, analysis.table + cards, note=analysis.note)]
    )
    return [*drawn, write_page(folder / f"{analysis.name}.html", text)]


def analysis_sections(run: Path) -> list[str]:
    """The sections of the analyses that a run's folder holds."""
    pages = [run / FOLDER / f"{name}.html" for name in _NAMES]
    return [_section(page.read_text(encoding="utf-8")) for page in pages if page.is_file()]


def _section(page: str) -> str:
    """What a page of `write_analysis` has between its header and its end."""
    start, end = page.find("<section>"), page.rfind("</section>")
    return page[start : end + len("</section>")] if 0 <= start < end else ""
