"""Who may import whom: a module imports only what stands in the layers below it."""

import ast
from pathlib import Path
from types import ModuleType

import repopt

SOURCE = Path(repopt.__file__).parent

# from the bottom up; modules of one layer may import each other only where a package's parts do
LAYERS = [
    {"version", "results", "names", "operators", "sharding", "gpu", "multiplier_triton"},
    {"branches"},
    {"scales", "csla", "parts", "matching"},
    {"multiplier", "provenance"},
    {"plans"},
    {"rules", "held", "fingerprints", "reach", "blocks", "decay"},
    {"optim", "clipping", "data"},
    {"attachment"},
    {"surgery", "models"},
    {"verification", "train"},
    {"matrix", "bench", "analysis", "onnx_files"},
    {"quantize"},
    {"export"},
    {"report"},
    {"reproduce"},
    {"cli"},
    {"__main__"},
]
LEVEL = {name: level for level, layer in enumerate(LAYERS) for name in layer}


def imports(path: Path) -> set[str]:
    """The top-level modules of repopt that a file imports at run time."""
    tree = ast.parse(path.read_text())
    checking = {
        id(node)
        for branch in ast.walk(tree)
        if isinstance(branch, ast.If) and ast.unparse(branch.test) == "TYPE_CHECKING"
        for node in ast.walk(branch)
    }
    found = set()
    for node in ast.walk(tree):
        if id(node) in checking:
            continue
        if isinstance(node, ast.ImportFrom) and node.module == "repopt":
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("repopt."):
            found.add(node.module.split(".")[1])
    return found


def top_level(path: Path) -> str:
    return path.relative_to(SOURCE).with_suffix("").parts[0]


def test_every_module_stands_in_a_layer():
    assert {top_level(path) for path in SOURCE.rglob("*.py")} - {"__init__"} == set(LEVEL)


def test_imports_point_down():
    upward = [
        f"{path.relative_to(SOURCE)} imports {name}"
        for path in SOURCE.rglob("*.py")
        if top_level(path) != "__init__"
        for name in imports(path)
        if name != top_level(path) and LEVEL[name] >= LEVEL[top_level(path)]
    ]
    assert upward == []


def test_no_module_is_named_as_a_public_function_is():
    functions = {name for name in repopt.__all__ if not isinstance(getattr(repopt, name), ModuleType)}
    assert not functions & {top_level(path) for path in SOURCE.rglob("*.py")}
