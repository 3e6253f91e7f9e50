"""What the pages say of the library itself: its exactness table, models, scales that ship, and commands."""

import io
import os
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout, suppress
from unittest.mock import patch

import torch

from paper.view import Record, View, number, text
from repopt.cli import COMMANDS, main
from repopt.models import GHOST_WIDTHS, VGG_SPECS, create_model, deploy
from repopt.models.counting import multiply_adds, parameters
from repopt.optim.rules import RULES, UNKNOWN
from repopt.plans.provenance import provenance
from repopt.plans.scales import Scales, shipped


def _rules() -> list[Record]:
    names = {rule: ", ".join(f"`{name}`" for name in RULES if RULES[name] == rule) for rule in RULES.values()}
    degrees = {rule: "" if rule.degree is None else str(rule.degree) for rule in names}
    lines = [
        *(
            (names[rule], rule.route or "none, refused", degrees[rule], rule.looks_at_weights, rule.why)
            for rule in names
        ),
        ("any other class", str(UNKNOWN.route), "", "depends on the rule", UNKNOWN.why),
        ("`repopt.optim.SGD`", "closed form", "1", "never", "multiplies the gradient in its own step"),
        ("`repopt.optim.AdamW`, `Adam`, `Lion`", "closed form", "0", "never", "sums over the branches in its own step"),
    ]
    columns = ("name", "route", "k", "looks at weights", "because")
    return [dict(zip(columns, (*line[:-1], f"it {line[-1]}"), strict=True)) for line in lines]


def _vggs() -> list[Record]:
    return [
        {
            "layers": "-".join(map(str, spec.depths)),
            "channels": "-".join(map(str, spec.widths)),
            **_sizes(f"repopt_vgg_{size}", f"repvgg_{size}"),
        }
        for size, spec in VGG_SPECS.items()
    ]


def _ghosts() -> list[Record]:
    return [
        {"width": f"{width:g}x", **_sizes(f"repopt_ghostnet_{size}", f"repghostnet_{size}")}
        for size, width in GHOST_WIDTHS.items()
    ]


def _sizes(plain: str, branched: str) -> dict[str, str]:
    """Parameters in training, with real branches, and deployed; multiply-adds of one image."""
    with torch.device("meta"):
        net, other = create_model(plain), create_model(branched)
    counts = {"macs": multiply_adds(net), "training": parameters(net), "branched": parameters(other)}
    counts["deploy"] = parameters(deploy(net))
    return {"model": f"`{plain}`", **{name: str(count) for name, count in counts.items()}}


def _shipped() -> list[Record]:
    found: list[Record] = []
    for name in shipped():
        origin = provenance(Scales.load(name))
        assert origin is not None, f"{name} does not say where it comes from"
        about = {column: str(value) for column, value in vars(origin).items()}
        clip = "none" if origin.clip is None else f"{origin.clip:g}"
        found.append({**about, "scales": f"`{name}`", "clip": clip})
    return found


def _commands() -> list[Record]:
    lines = {name: about for name, (_, about) in COMMANDS.items()}
    return [
        {"command": f"[`repopt {name}`](#repopt-{name.replace(' ', '-')})", "what it does": about}
        for name, about in lines.items()
    ]


def command_help(name: str) -> str:
    """What `repopt NAME --help` prints on 80 columns, without colours."""
    plain = {key: value for key, value in os.environ.items() if key != "FORCE_COLOR"}
    plain |= {"COLUMNS": "80", "NO_COLOR": "1", "TERM": "dumb"}
    with patch.dict(os.environ, plain, clear=True), redirect_stdout(io.StringIO()) as said, suppress(SystemExit):
        main([*name.split(), "--help"])
    return "\n".join(line.rstrip() for line in said.getvalue().strip().splitlines())


def _counted(heading: str, branched: str, *shape: str) -> View:
    sizes = [number("training"), number("branched", f"{branched}, training"), number("deploy")]
    return View(columns=[text("model", heading), *shape, *sizes, number("macs", "MACs, 10^9", "{:.2f}", 1e9)])


# {name: (what makes its rows, how it is shown)}
VIEWS: Mapping[str, tuple[Callable[[], list[Record]], View]] = {
    "rules": (_rules, View(columns=[text("name", "torch.optim"), "route", "k", "looks at weights", "because"])),
    "vggs": (_vggs, _counted("RepOpt-VGG", "RepVGG", "layers", "channels")),
    "commands": (_commands, View(columns=("command", "what it does"))),
    "ghostnets": (_ghosts, _counted("RepOpt-GhostNet", "RepGhostNet", "width")),
    "shipped": (
        _shipped,
        View(
            columns=[
                *("scales", text("data", "searched on"), "epochs", number("label_smoothing", "smoothing", "{:g}")),
                *(text("clip", "clipping"), text("kernel", "init"), "seed"),
                *(number("accuracy", "search accuracy", "{:.2f}"), "precision", "hardware", "date"),
            ]
        ),
    ),
}
