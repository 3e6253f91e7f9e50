"""Appendix E: a search's means at shares of its epochs, and how alike two searches rank their operators."""

from made_up import line
from paper import TABLES, drawings_in, results_page, write_drawings
from paper.figure_e import _search
from repopt.files import append_csv

OPERATORS = ("stage1.1.conv", "stage1.2.conv", "stage1.3.conv")  # they start at 1.414, 1 and 0.816


def points(source, means):
    """A search of 20 epochs whose last operator grows by a hundredth an epoch."""
    about = {"source": source, "model": "repopt_vgg_nano", "branch": "conv3x3"}
    over = [
        line(curve="over epochs", operator=OPERATORS[-1], epoch=epoch, mean=epoch / 100, **about) for epoch in range(21)
    ]
    deep = zip(OPERATORS, means, strict=True)
    return over + [line(curve="by depth", operator=name, epoch=20, mean=mean, **about) for name, mean in deep]


def part(*rows):
    return TABLES["figureE"].part(rows)


def test_a_curve_is_shown_at_shares_of_its_epochs():
    shown = part(*points("cifar100", (1, 2, 3)))
    assert "| searched on | branch | 0% | 10% | 25% | 50% | 75% | 100% |" in shown
    assert "| cifar100 | conv3x3 | 0.000 | 0.020 | 0.050 | 0.100 | 0.150 | 0.200 |" in shown
    assert "Rank correlation" not in "\n".join(shown)


def test_two_searches_are_compared_by_the_ranks_of_their_operators():
    ranks = {
        ((1, 2, 3), (10, 20, 30)): "1.00 and 1.00",
        ((1, 2, 3), (3, 2, 1)): "-1.00 and -1.00",
        ((1, 2, 3), (2, 1, 3)): "0.50 and 0.50",
        ((1.5, 1.0, 0.7), (1.4, 1.1, 1.0)): "1.00 and -1.00",  # alike only in where they started
    }
    for (one, other), correlations in ranks.items():
        shown = part(*points("cifar100", one), *points("imagenette", other))
        assert shown[-1].endswith(f"the start that both share: conv3x3 {correlations}.")


def test_a_search_is_read_back_from_its_points():
    search = _search("cifar100", points("cifar100", (1, 2, 3)))
    assert list(search.history) == list(range(21))  # a curve is drawn in this order
    assert {epoch: means[OPERATORS[-1]]["conv3x3"] for epoch, means in search.history.items() if epoch < 20} == {
        epoch: epoch / 100 for epoch in range(20)
    }
    assert list(search.means) == list(OPERATORS)


def test_both_figures_are_drawn_beside_the_page(tmp_path):
    rows = [*points("cifar100", (1, 2, 3)), *points("imagenette", (3, 2, 1))]
    append_csv(tmp_path / "figureE.csv", rows)
    write_drawings(TABLES, tmp_path, tmp_path / "docs")
    drawings = drawings_in(tmp_path / "docs")
    assert drawings == ["figures/figureE-depth.svg", "figures/figureE-epochs.svg"]
    assert all((tmp_path / "docs" / name).read_text().startswith("<svg") for name in drawings)
    page = results_page(TABLES, tmp_path, drawings=drawings)
    assert "\n![figureE-depth](figures/figureE-depth.svg)\n\n![figureE-epochs](figures/figureE-epochs.svg)\n" in page
    assert "![" not in results_page(TABLES, tmp_path)
