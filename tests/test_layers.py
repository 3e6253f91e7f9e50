"""Who may import whom: a module imports only what stands in the layers below it, inside packages too."""

import ast
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest

import repopt

SOURCE = Path(repopt.__file__).parent
PAPER = Path(__file__).parents[1] / "paper"

# From the bottom up. A package stands for those of its modules that are not listed themselves, which may import each
# other; two entries of one layer may not.
LAYERS = [
    {"plans.wording"},
    {
        "algebra.operators",
        "algebra.sharding",
        "device",
        "files",
        "plans.choices",
        "plans.copying",
        "plans.drawn",
        "verification.waiting",
    },
    {"algebra.branches"},
    {"algebra.csla"},
    {"algebra.multiplier"},
    {"plans.patterns", "plans.stamps"},
    {"plans.declarations"},
    {"plans.scales"},
    {"plans.provenance", "plans.presets"},
    {"plans.planning"},
    {"plans.dirac"},
    {
        "optim.rules",
        "optim.contract",
        "optim.fingerprints",
        "optim.planned_weights",
        "optim.kernels",
        "optim.decay",
        "optim.clipping",
        "optim.product",
        "optim.stand_in",
    },
    {"optim.one_pass"},
    {"optim.closed_form", "optim.block_kernels", "optim.grad_route"},
    {"optim.rep_optimizer"},
    {"optim.sgd", "optim.adam", "optim.lion", "optim.branch_route"},
    {"optim.attachment", "surgery.norms", "surgery.successors"},
    {"surgery.blocks", "optim.reparameterizing"},
    {"surgery.conversion", "data", "models"},
    {"surgery.freezing"},
    {"verification.equality", "train"},
    {"verification.cases", "bench"},
    {"quantize"},
    {"export"},
    {"report", "compare"},
    {"cli"},
    {"__main__"},
]
LEVEL = {name: level for level, layer in enumerate(LAYERS) for name in layer}


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts)


MODULES = {module_name(path): path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py"}


def layer_of(module: str) -> str | None:
    """The entry that a module belongs to: its own, or that of a package around it."""
    parts = module.removesuffix(".__init__").split(".")
    return next((name for size in range(len(parts), 0, -1) if (name := ".".join(parts[:size])) in LEVEL), None)


def imported(path: Path) -> set[str]:
    """The modules of repopt that a file imports at run time."""
    tree = ast.parse(path.read_text())
    checking = {
        id(node)
        for branch in ast.walk(tree)
        if isinstance(branch, ast.If) and ast.unparse(branch.test) == "TYPE_CHECKING"
        for node in ast.walk(branch)
    }
    found = set()
    for node in ast.walk(tree):
        if id(node) in checking or not isinstance(node, ast.ImportFrom) or not node.module:
            continue
        home = node.module.removeprefix("repopt").removeprefix(".")
        if node.module.split(".")[0] == "repopt":
            inner = {f"{home}.{alias.name}".removeprefix(".") for alias in node.names}
            found |= {name for name in inner if name in MODULES or f"{name}.__init__" in MODULES} or {home} - {""}
    return found


def is_surface(module: str) -> bool:
    """Whether this is a package's `__init__` whose modules stand in layers of their own: it only passes names on."""
    return module.endswith("__init__") and layer_of(module) is None


def test_every_module_stands_in_a_layer():
    assert [module for module in MODULES if layer_of(module) is None and not is_surface(module)] == []


def test_imports_point_down():
    upward = [
        f"{module} imports {name}"
        for module, path in MODULES.items()
        if not is_surface(module)
        for name in imported(path)
        if layer_of(name) is not None and layer_of(name) != layer_of(module)
        if LEVEL[layer_of(name)] >= LEVEL[layer_of(module)]
    ]
    assert upward == []


def test_the_algebra_imports_torch_alone():
    allowed = {"torch", "repopt", *sys.stdlib_module_names}
    for path in (SOURCE / "algebra").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert {name.split(".")[0] for name in names} <= allowed, path.name


def test_the_algebra_imports_no_other_package_of_repopt():
    """Their `__init__` imports the algebra, so that would be a cycle."""
    for path in (SOURCE / "algebra").glob("*.py"):
        assert {name.split(".")[0] for name in imported(path)} <= {"algebra", "device", "files"}, path.name


def test_nobody_imports_the_papers_room():
    for module, path in MODULES.items():
        assert "paper" not in {
            name.split(".")[0]
            for node in ast.walk(ast.parse(path.read_text()))
            for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [])
        }, module


def test_no_module_is_named_as_a_public_function_is():
    functions = {name for name in repopt.__all__ if not isinstance(getattr(repopt, name), ModuleType)}
    assert not functions & {module.split(".")[0] for module in MODULES}


def test_no_two_modules_and_no_two_classes_share_a_name():
    paths = [path for path in [*MODULES.values(), *PAPER.rglob("*.py")] if path.parent != SOURCE / "cli"]
    modules = Counter(path.stem for path in paths if not path.stem.startswith("__"))
    classes = Counter(
        node.name for path in paths for node in ast.parse(path.read_text()).body if isinstance(node, ast.ClassDef)
    )
    assert [name for name, count in (modules + classes).items() if count > 1] == []


def test_the_house_has_at_most_twenty_entries():
    assert len([path for path in SOURCE.iterdir() if path.name != "__pycache__"]) <= 20


def test_rooms_are_attributes_of_the_package_in_a_fresh_process():
    rooms = ["models", "plans", "surgery", "verification", "optim", "data", "train", "algebra"]
    asked = f"import repopt; assert [getattr(repopt, room).__name__ for room in {rooms}]"
    subprocess.run([sys.executable, "-c", asked], check=True, timeout=120, capture_output=True)


@pytest.mark.parametrize(
    ("code", "absent"),
    [
        ("import repopt", "torch"),
        ("from repopt.cli import main; main(['--version'])", "torch"),
        ("from repopt.cli import main\ntry: main(['--help'])\nexcept SystemExit: pass", "torch"),
        ("import repopt; [getattr(repopt, name) for name in repopt.__all__]", "torch.distributed.tensor"),
    ],
)
def test_what_is_not_needed_is_not_loaded(code, absent):
    asked = f"import sys\n{code}\nassert {absent!r} not in sys.modules"
    subprocess.run([sys.executable, "-c", asked], check=True, timeout=120, capture_output=True)
