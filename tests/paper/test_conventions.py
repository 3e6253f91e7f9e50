"""Conventions: each method's ways, the best first."""

from made_up import line
from paper import TABLES


def test_the_best_way_of_a_method_stands_first_and_has_no_difference_to_itself():
    accuracies = {"authors": 80, "paper": 90}
    rows = [
        line(method="sgd", model="repopt_vgg_b0", init=init, starts="", counting="", search="", val_accuracy=value)
        for init, value in accuracies.items()
    ]
    part = TABLES["conventions"].part(rows)
    best, other = (
        part.index(f"| plain SGD | {init} | 1 | {cells} |")
        for init, cells in (("He's", "90.00 | "), ("torch's", "80.00 | -10.00"))
    )
    assert best + 1 == other
