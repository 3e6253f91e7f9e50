"""The scales that ship: a Hyper-Search on CIFAR-100 for every model, each family by its own recipe."""

from paper.jobs import Training, search_recipe_of
from paper.tables import Table
from paper.view import View, accuracy

_VGGS = ("nano", "a0", "a1", "a2", "b0", "b1", "b2", "b3", "l1", "l2")
_GHOSTNETS = ("repopt_ghostnet_050", "repopt_ghostnet_100")

TABLE = Table(
    title="Searched scales",
    keys=("model", "recipe", "seed"),
    trainings=[
        Training(model=name, key={"recipe": search_recipe_of(name)}, method="search", data="cifar100")
        for name in (*_VGGS, *_GHOSTNETS)
    ],
    view=View(
        order={"model": [*(f"repopt_vgg_{size}" for size in _VGGS), *_GHOSTNETS]},
        columns=["model", "recipe", "seed", accuracy("search accuracy"), "precision", "hardware", "date"],
    ),
)
