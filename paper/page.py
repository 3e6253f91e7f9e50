"""docs/results.md, from the CSV files alone: what was run, on what, and what came out beside the paper's figures."""

from collections.abc import Collection, Mapping
from pathlib import Path

from paper.claims import beside_the_paper
from paper.scope import Scope
from paper.tables import Table, read_rows, work_left

_HEAD = """<!-- made by `repopt reproduce` and `make docs` from results/*.csv: change those, not this -->

# The paper's tables, on public data

Each part is made by one command from the rows of `results/NAME.csv`, and every row there carries its seed, hardware,
versions, commit (of the earliest rows, the one that followed) and date. The paper trains on ImageNet for days. We train
on Imagenette (ten of its classes, at 96 pixels) and CIFAR-100 for seconds to minutes: compare differences between
methods with the paper's, not accuracies. VGGs are trained by the paper's recipe (SGD, momentum 0.9, cosine from 0.1
after 5 epochs of warm-up, weight decay 4e-5, label smoothing 0.1) but for these: torch's init unless said, as in the
authors' code, where the paper's text has He's, on which much depends ([Which conventions?](#which-conventions)); no
decay of norms and biases; Nesterov's momentum; crops of a quarter of an image or more (on CIFAR-100 of its padded 40
pixels); no RandAugment; fewer epochs. The paper's Table 7, detection and segmentation, was not attempted.

- ± behind an accuracy is the deviation over seeds. Behind a difference it is the standard error of two means, not
  paired: on a GPU the same seed, trained twice, differs about as much as two seeds do. Other test images would move
  an accuracy too, on Imagenette by about 0.6 points.
- With three seeds on either side, two standard errors hold 82 to 88% and not 95%, with two seeds fewer still, and of
  many comparisons some are wrong. Some runs stand in several tables, so that these are not independent.
- Tables 5 and 6, Appendix B and a part of Table 4 have A0. It was chosen because seeds 0 to 2 told its constants apart,
  and those of B1 did not; a choice like that favours luck. So what is said of A0's constants in words, and beside the
  paper, is of seeds 3 to 5 alone, trained after the choice: they tell less apart. Tables have all seeds.
- How much two searches differ is in no ±. Where a table has `searched again`, see whether a difference holds for both
  searches.
- Ways are chosen on the test images that they are compared on.
"""

_QUICK = (
    "**A quick run: nano on a few digits, whatever is said below. It shows that the code works, and nothing else.**"
)

_AGAIN = """## Run it yourself

```
repopt reproduce                     # which tables there are, and what stands
repopt reproduce table4 --cifar100 DIR --imagenette DIR --authors DIR
```

CIFAR-100 is an archive from https://www.cs.toronto.edu/~kriz/cifar.html, binary or python, packed or not. Imagenette
is any release from https://github.com/fastai/imagenette: its images are brought to 96 pixels (ours were stored so; a
digest of the images is in each row). The authors' scales are in https://github.com/DingXiaoH/RepOptimizers. Rows that
stand are not measured again: for figures of your own give `--out` another folder. The command may be started several
times at once, to share the rows, and again after an interruption. Searched scales are left in `zoo` among the
runs."""


def results_page(
    tables: Mapping[str, Table], results: Path, scope: Scope | None = None, *, drawings: Collection[str] = ()
) -> str:
    """The page, as text.

    Args:
        tables: by name.
        results: folder of their CSV files.
        scope: that the tables are complete within; the full one unless given.
        drawings: the files of figures that lie in the page's folder, as `drawings_in` finds them.
    """
    scope = Scope() if scope is None else scope
    found = {name: read_rows(results / f"{name}.csv") for name in tables}
    parts = [_QUICK] if scope.quick else []
    verdicts = [table.verdict(found[name]) for name, table in tables.items() if found[name]]
    if any(verdicts):
        parts.append("\n".join(["## In short", "", *(f"- {verdict}" for verdict in verdicts if verdict)]))
    claims = [claim for name, table in tables.items() if found[name] for claim in table.claims(found[name])]
    if claims:
        parts.append("\n".join(["## Beside the paper", "", *beside_the_paper(claims)]))
    for name, table in tables.items():
        if found[name]:
            lines = [f"## {table.title}", "", _command(table, scope, results), "", *table.part(found[name])]
            shown = [file for file in drawings if Path(file).stem.partition("-")[0] == name]
            lines += [line for file in shown for line in ("", f"![{Path(file).stem}]({file})")]
            parts.append("\n".join(lines))
    missing = [f"`{name}`" for name in tables if not found[name]]
    if missing:
        parts.append(f"## Not run yet\n\n{', '.join(missing)}.")
    parts.append(_AGAIN)
    return "\n\n".join([_HEAD.rstrip("\n"), *parts]) + "\n"


def drawings_in(folder: Path) -> list[str]:
    """The figures that lie beside a page, as paths from its folder."""
    return sorted(f"figures/{path.name}" for path in (folder / "figures").glob("*.svg"))


def write_drawings(tables: Mapping[str, Table], results: Path, folder: Path) -> None:
    """Draws the figures of all tables that have some.

    Raises:
        ImportError: matplotlib is not installed.
    """
    for name, table in tables.items():
        rows = read_rows(results / f"{name}.csv")
        for kind, svg in (table.drawings(rows) if table.drawings and rows else {}).items():
            path = folder / "figures" / f"{name}-{kind}.svg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(svg)


def _command(table: Table, scope: Scope, results: Path) -> str:
    """How to make the part, and what of it is still missing."""
    work = work_left(table, scope, results / f"{table.name}.csv")
    missing = f" Still to be measured: {len(work.rows)} of {len(work.rows) + work.standing} rows." if work.rows else ""
    return f"`repopt reproduce {table.name}`.{missing}"
