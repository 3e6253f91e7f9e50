"""What the tables train, and on what: the paper's models on public data, or the smallest model on embedded digits."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, cast

from paper.workshop import Workshop, figures_of
from repopt.models import create_model
from repopt.plans.planning import Plan, plan
from repopt.plans.scales import Scales, shipped
from repopt.train.job import Job
from repopt.train.methods import LEARN, Method
from repopt.train.recipe import RECIPES, Precision, Recipe

# where scales come from: our search, the authors' release, Table 4's ablations, and the training itself
Source = Literal["searched", "authors", "ones", "depth", "mean", "learn"]
# {data: how it is loaded, and what a user is asked for}
_DATA = {
    "cifar100": ("cifar100", "the folder of CIFAR-100"),
    "imagenette": ("folder", "the folder that holds its train and val"),
    "mini64": ("folder", "the folder that holds its train and val"),
    "coco": ("", "the folder that holds its annotations/ and train2017/"),
    "cityscapes": ("", "the folder that holds its leftImg8bit/ and gtFine/"),
}
_CROPS: dict[str, Any] = {"size": 96, "resized_crop": (0.25, 1.0)}  # of Imagenette, a quarter of the image or more
# the paper's recipe, but for epochs and augmentation
TRAINED_BY = {
    "mini64": Recipe(epochs=40, eval_every=40, resized_crop=(0.25, 1.0)),
    "imagenette": Recipe(epochs=40, eval_every=40, **_CROPS),
    "cifar100": Recipe(epochs=60, eval_every=60, crop_padding=4),
}
# what a search has to change for the images of other data
_SEARCHED_ON: Mapping[str, dict[str, Any]] = {"imagenette": {"crop_padding": 0, **_CROPS}, "digits": {"flip": False}}
_QUICK: dict[str, Any] = {"batch_size": 16, "lr_batch": 16, "warmup_epochs": 0, "eval_batch": 64, "size": None}
SEARCH_SEED = FIRST_SEED = 0  # of searches, and of what is trained or measured with a single seed
Lines = list[dict[str, Any]]  # of a CSV file


@dataclass(frozen=True, kw_only=True)
class Scope:
    """What a table is run on; the comments are the help of the flags."""

    cifar100: Path | None = None  # the folder of CIFAR-100, which scales are searched on.
    imagenette: Path | None = None  # the folder that holds Imagenette's train and val, which models are trained on.
    # the folder that holds train and val of mini-ImageNet: 100 classes, 50,000 and 6,000 images of 64 px.
    mini64: Path | None = None
    coco: Path | None = None  # the folder that holds COCO's annotations/, train2017/ and val2017/, for table7.
    cityscapes: Path | None = None  # the folder that holds Cityscapes' leftImg8bit/ and gtFine/, for table7.
    authors: Path | None = None  # the folder of the scales that the paper's authors released.
    # of what is compared; 0 1 2 unless given, 0 where quick. Where a learning rate is chosen, 0 does it.
    seeds: tuple[int, ...] = ()
    precision: Precision = "bf16"  # of training; a row that is there is not measured again for another one.
    # nano on a few embedded digits, in seconds on a CPU: it shows that the code works, and nothing else.
    quick: bool = False
    # of table4, decay, adamw and int8_rounding: on CIFAR-100, hours on two cores, seeds 0 to 5 unless given.
    cpu: bool = False

    def __post_init__(self) -> None:
        if not self.seeds:
            usual = tuple(range(6)) if self.cpu else (0, 1, 2)
            object.__setattr__(self, "seeds", (0,) if self.quick else usual)

    @property
    def limit(self) -> int | None:
        """Images that are kept."""
        return 48 if self.quick else None

    def model(self, size: str) -> str:
        """The plain VGG of a size; a whole name stays what it is."""
        return size if size.startswith("repopt_") else f"repopt_vgg_{'nano' if self.quick else size}"

    def data(self, name: str) -> str:
        """Data by name, as `repopt train` takes it."""
        return "digits" if self.quick or name == "digits" else f"{_DATA[name][0]}:{self.folder(name).resolve()}"

    def folder(self, name: str) -> Path:
        """The folder of data, or an error that names the flag."""
        path: Path | None = getattr(self, name)
        if path is None:
            raise ValueError(f"this table needs data: give --{name}, {_DATA[name][1]}")
        return path

    def adapt(self, recipe: Recipe, seed: int) -> Recipe:
        """A recipe as it is run here: with a seed and the scope's precision, and cut short where the scope is quick."""
        recipe = replace(recipe, seed=seed, precision="fp32" if self.quick or self.cpu else self.precision)
        return replace(recipe, epochs=1, eval_every=1, **_QUICK) if self.quick else recipe


@dataclass(frozen=True, kw_only=True)
class Training:
    """What a row of a table is about: a training, or a search for scales."""

    model: str = ""  # by name, or by the size of a VGG; a search for a training's scales has the model of that
    key: Mapping[str, Any] = field(default_factory=dict)  # its columns in the table; model and seed may be left out
    method: Method = "sgd"  # repopt where there are scales
    scales: "Source | Training | None" = None  # where they come from; of repopt, the searched ones unless given
    change: Callable[[Scales, str], Scales] = lambda scales, _: scales  # what is done to them, given the model's name
    data: str = "imagenette"  # or cifar100; a search may be on digits too; empty where nothing is trained
    recipe: Recipe | None = None  # another one than the data's, or than that of the model's family for a search
    fields: Mapping[str, Any] = field(default_factory=dict)  # that replace some of the recipe's
    options: Mapping[str, Any] = field(default_factory=dict)  # of the model
    fine_tuned_on: str = ""  # other data, coco or cityscapes
    limit: int | None = None  # images that it is trained on, and at the most as many to evaluate; all unless given
    one_seed: bool = False  # trained with the first alone
    in_quick: bool = True  # whether a quick table has it
    again: bool = False  # a second search, with another seed
    measure: "Callable[[Training, Scope, int, Workshop], Lines]" = lambda training, scope, seed, workshop: [
        figures_of(training.run(scope, seed, workshop))
    ]  # takes the figures, line by line

    def run(self, scope: Scope, seed: int, workshop: Workshop, *, weights: bool = False) -> Path:
        """The folder of the finished run, with the trained weights where they are needed."""
        return workshop.run(self.job(scope, seed, workshop), weights=weights)

    def job(self, scope: Scope, seed: int, workshop: Workshop) -> Job:
        """What is run; the scales are searched for where they are not there."""
        model, method, scales = scope.model(self.model), self.method, cast(Scales | str | None, None)
        if self.scales == LEARN:
            method, scales = "repopt", LEARN
        elif self.scales or method == "repopt":
            found = scales_from(self.scales or "searched", scope, workshop, model)
            method, scales = "repopt", self.change(found, model)
        if method == "search":
            recipe, seed = self.recipe or RECIPES[search_recipe_of(model)](), SEARCH_SEED + self.again
            recipe = recipe if scope.quick else replace(recipe, **_SEARCHED_ON.get(self.data, {}))
        else:
            recipe = self.recipe or TRAINED_BY[self.data]
        recipe, data = scope.adapt(replace(recipe, **self.fields), seed), scope.data(self.data)
        about: dict[str, Any] = {"limit": scope.limit or self.limit, "options": dict(self.options)}
        return Job(method=method, model=model, data=data, recipe=recipe, scales=scales, **about)


def hyper_search(**how: Any) -> Training:
    """A Hyper-Search on CIFAR-100, or however it is asked for."""
    return Training(**{"method": "search", "data": "cifar100", **how})


AGAIN = "searched again"  # what tables call it
SEARCHED_AGAIN = hyper_search(again=True)


def search_recipe_of(model: str) -> str:
    """The name of the recipe that a model's family is searched by."""
    return "ghost-search" if "ghostnet" in model else "search"


def scales_from(source: Source | Training, scope: Scope, workshop: Workshop, model: str) -> Scales:
    """A model's scales from one of the sources; ours are those that ship, or that a search finds."""
    if isinstance(source, Training):
        search = replace(source, model=model).run(scope, SEARCH_SEED, workshop)
        return fitting(Scales.load(search / "scales.safetensors"), planned(model))
    if source in ("ones", "depth"):
        return (Scales.ones if source == "ones" else Scales.depth_init)(planned(model))
    if source == "authors":
        return authors_scales(scope, model)
    ours = Scales.load(model) if model in shipped() else scales_from(hyper_search(), scope, workshop, model)
    return ours.channel_mean() if source == "mean" else ours


def fitting(scales: Scales, plan: Plan) -> Scales:
    """Scales without the identities that a plan's operators lack: with other strides, a search may have more."""
    kept = {
        operator: {branch: scale for branch, scale in found.items() if branch in plan.blocks[operator].branches}
        for operator, found in scales.items()
    }
    return Scales(kept, scales.metadata)


def authors_scales(scope: Scope, model: str) -> Scales:
    """Those that the paper's authors released for a model."""
    if scope.authors is None:
        raise ValueError("give --authors, the folder of the .pth files that the paper's authors released")
    size = model.rpartition("_")[2]
    theirs = f"{int(size) / 100}x".replace(".", "_") if "ghostnet" in model else size.upper()  # 050 is 0_5x
    found = sorted(scope.authors.glob(f"*{theirs}*.pth"))
    if not found:
        raise ValueError(f"{str(scope.authors)!r} holds no .pth file for {theirs}")
    return Scales.load(found[0])


def planned(model: str) -> Plan:
    return plan(create_model(model))
