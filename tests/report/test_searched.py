from repopt.report.searched import PAPERS_SHARE, cost_share
from repopt.report.wording import percent_of


def test_the_paper_s_search_costs_0_18_percent_of_its_training():
    assert f"{cost_share(50_000, 240, 32) * 10 / 9:.2%}" == percent_of(PAPERS_SHARE) == "0.18%"
