"""What the tables are run on: the paper's models on public data, or the smallest model on the embedded images."""

import dataclasses
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from repopt.train.recipe import Precision, Recipe

# a quick run shows that a table's code works, and nothing else
_QUICK: dict[str, Any] = {
    "epochs": 1,
    "batch_size": 16,
    "lr_batch": 16,
    "warmup_epochs": 0,
    "eval_batch": 64,
    "eval_every": 1,
}
_QUICK_IMAGES = 48


@dataclass(frozen=True, kw_only=True)
class Scope:
    """What a table is run on.

    Attributes:
        cifar100: path of CIFAR-100, which scales are searched on.
        imagenette: path of Imagenette's class folders, which models are trained on.
        authors: folder of the scales that the paper's authors released.
        seeds: of what is compared.
        search_seed: of the searches.
        precision: of training.
        quick: nano on a few digits instead, in seconds on a CPU.
    """

    cifar100: Path | None = None
    imagenette: Path | None = None
    authors: Path | None = None
    seeds: tuple[int, ...] = (0, 1, 2)
    search_seed: int = 0
    precision: Precision = "bf16"
    quick: bool = False

    def __post_init__(self) -> None:
        if not self.seeds:
            raise ValueError("a table needs at least one seed: give --seeds")

    def model(self, size: str) -> str:
        """The plain VGG of a size; a whole name stays what it is."""
        return size if size.startswith("repopt_") else f"repopt_vgg_{'nano' if self.quick else size}"

    @property
    def limit(self) -> int | None:
        """Images that are kept."""
        return _QUICK_IMAGES if self.quick else None

    @property
    def search_data(self) -> str:
        return "digits" if self.quick else f"cifar100:{_given(self.cifar100, '--cifar100', 'the folder of CIFAR-100')}"

    @property
    def target_data(self) -> str:
        if self.quick:
            return "digits"
        return f"folder:{_given(self.imagenette, '--imagenette', 'the folder that holds its train and val')}"

    def check(self, data: Collection[str]) -> None:
        """Raises unless the paths of all this data were given, and the authors' scales are where that was said."""
        for name, source in {"cifar100": "search_data", "imagenette": "target_data"}.items():
            if name in data:
                getattr(self, source)
        if self.authors is not None and not self.authors.is_dir():
            raise ValueError(f"there is no folder {str(self.authors)!r}: give --authors that of the .pth files")

    def adapt(self, recipe: Recipe, seed: int) -> Recipe:
        """A recipe as it is run here: with a seed and the scope's precision, and cut short where the scope is quick."""
        recipe = dataclasses.replace(recipe, seed=seed, precision="fp32" if self.quick else self.precision)
        return dataclasses.replace(recipe, **_QUICK, size=None) if self.quick else recipe

    def target_recipe(self, seed: int) -> Recipe:
        """The paper's training, on Imagenette at 96 pixels: 40 epochs, crops of a quarter of the image or more."""
        return self.adapt(Recipe(epochs=40, size=96, resized_crop=(0.25, 1.0), eval_every=40), seed)


def _given(path: Path | None, flag: str, what: str) -> Path:
    if path is None:
        raise ValueError(f"this table needs data: give {flag}, {what}")
    return path.resolve()
