"""Writes the pages of docs/ that are made from tables: `python docs/generate.py`, or `make docs`.

exactness.md and optimizers.md come from repopt.optim.rules, the tables of models.md from the models themselves, those of
performance.md, training.md, quantization.md, analysis.md and the README from results/*.csv, results.md by
`paper` from the same, and zoo.md from the scales that ship.
"""

import statistics
from pathlib import Path

import torch
from torch.utils.flop_counter import FlopCounterMode

import repopt
from paper import TABLES, drawings_in, measured, results_page, write_drawings
from paper.summaries import groups
from repopt.models import GHOST_WIDTHS, VGG_SPECS, deploy
from repopt.optim.rules import RULES, UNKNOWN, Rule
from repopt.plans.provenance import provenance
from repopt.plans.scales import shipped

ROOT = Path(__file__).parents[1]
NOTE = "<!-- made by docs/generate.py: change that, not this -->\n\n"


def exactness() -> str:
    rows = [
        f"| `{each}` | {_route(rule)} | {_degree(rule)} | {rule.looks_at_weights} | it {rule.why} |"
        for each, rule in RULES.items()
    ]
    return f"""{NOTE}# Which optimizer is exact, and why

Training the single operator equals training the real block, to rounding, on the route that `repopt.attach` takes by
itself. Every row is checked in float64 by the tests and by `repopt verify`. *k* is the degree of the update in the gradient
([theory](theory.md)), for a rule with an eps what it would be without; *looks at weights* says when it matters which kernels
the block starts from: then pass `kernels=plan.init_()`.

| torch.optim | route | k | looks at weights | because |
|---|---|---|---|---|
{chr(10).join(rows)}
| any other class | {_route(UNKNOWN)} | | as it does | it {UNKNOWN.why} |
| `repopt.optim.AdamW`, `Adam`, `Lion` | closed form, not attached | 0 | never | it sums over the branches in its own step |

- **grad**: the gradient is multiplied by the Grad Mult before the step. No state of its own; the multiplier is kept structured
  and is small ([what a step costs](performance.md)).
- **branch**: the optimizer steps the branches' own kernels, and the operator's weight is their sum. The forward and backward
  pass stay the plain model's; for RepVGG's branches the kernels take 1.11 times the weight and each of the optimizer's
  states 0.11 more.
- **closed form**: the branches are summed inside the step from one set of moments. No extra state.
- Forcing `route="grad"` on a rule for which it is not exact is an error; `allow_inexact=True` lets it through.
- A rule that moves weights outside `step()` is refused, and so is one that is `differentiable`.

`repopt.clip_grad_norm_(plan, max_norm)` clips by the norm that the blocks' gradients would have and is exact on every
route. `torch.nn.utils.clip_grad_norm_` sees the operator's gradient and clips by another norm.
"""


def optimizers() -> str:
    sections = "\n".join(_section(each, rule) for each, rule in RULES.items())
    return f"""{NOTE}# If you used X, write Y

Everything here starts from a model and its plan ([your own model](own-model.md)):

```python
import torch
from torch import nn

import repopt
from repopt import Conv, Linear

net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(128, 10, bias=False))
plan = repopt.plan(net, {{"0": [Conv(3), Conv(1)], "3": [Linear(), Linear()]}}, scales="ones")
kernels = plan.init_()
```

Learning rate, weight decay, schedule and clipping threshold stay what they are for the real block. Clip with
`repopt.clip_grad_norm_(plan, max_norm)`.

{sections}
## Another library's optimizer

The branch route takes it as it is, a subclass of one of the above included:

```python
class Louder(torch.optim.AdamW):
    def step(self, closure=None):
        print("stepping")
        return super().step(closure)


optimizer = Louder(net.parameters(), lr=1e-3)
repopt.attach(optimizer, plan, kernels=kernels)
```

Pass `kernels` whenever the rule looks at the weights (LAMB, LARS, a coupled decay inside an adaptive rule).

## Lion

torch has none; repopt has the closed form:

```python
optimizer = repopt.optim.Lion(net.parameters(), plan, lr=1e-4, weight_decay=1.0)
```
"""


def readme() -> str:
    """The README with its table of step costs brought up to date."""
    rows = [row for row in measured.rows_of("bench_step.csv") if row["way"] != "stock" and _is_shown(row)]
    lines = [
        "| optimizer | how | hardware | ms | to the stock step | kept beside the state |",
        "|---|---|---|---:|---:|---:|",
    ]
    for (rule, implementation, way, hardware), its in groups(rows, "rule", "implementation", "way", "hardware").items():
        milliseconds = statistics.median(float(row["milliseconds"]) for row in its)
        kept = f"{float(its[0]['repopt_bytes']) / 1e6:.2f} MB"
        ratio = _spread([float(row["ratio"]) for row in its])
        lines.append(f"| {rule}, {implementation} | {way} | {hardware} | {milliseconds:.2f} | {ratio} | {kept} |")
    lines += ["", *measured.whole_step()]
    return _with_part("README.md", "step costs", lines, _with_part("README.md", "accuracies", measured.accuracies()))


def _spread(ratios: list[float]) -> str:
    """The median of all recorded runs, and how far they lie apart."""
    median = f"{statistics.median(ratios):.2f}x"
    return median if len(ratios) == 1 else f"{median} ({min(ratios):.2f} to {max(ratios):.2f}, {len(ratios)} runs)"


def _is_shown(row: dict[str, str]) -> bool:
    on_gpu = row["implementation"] in ("fused", "fused, graph", "foreach") and "cores" not in row["hardware"]
    on_cpu = row["implementation"] == "fused" and "cores" in row["hardware"]
    return row["memory_format"] == "contiguous" and (on_gpu or on_cpu)


def performance() -> str:
    rows = measured.rows_of("bench_step.csv")
    settings: dict[tuple[str, ...], list[dict[str, str]]] = {}
    keys = ("hardware", "threads", "model", "memory_format", "torch", "date")
    for row in rows:
        settings.setdefault(tuple(row[key] for key in keys), []).append(row)
    tables = "\n".join(_table(dict(zip(keys, setting, strict=True)), its) for setting, its in settings.items())
    return f"""{NOTE}# What a step costs

`repopt bench step` times stock optimizers and repopt's ways in turn, in one run, on the shapes of a model's convolutions; the
ratio is to the stock optimizer of the same implementation. From `results/bench_step.csv`:

{tables}
state: the optimizer's own. kept: what repopt keeps beside it, multipliers (grad), the branches' kernels (branch) or scales
(closed). peak: what one step allocates on top, where the device counts it. A closed form has no fused implementation.
"""


def models() -> str:
    """The page of the models with its tables brought up to date."""
    lines = [
        "| RepOpt-VGG | layers | channels | training | RepVGG, training | deploy | MACs, 10^9 |",
        "|---|---|---|---:|---:|---:|---:|",
    ]
    lines += [
        _model_row(f"repopt_vgg_{size}", f"repvgg_{size}", f"{_dashed(spec.depths)} | {_dashed(spec.widths)}")
        for size, spec in VGG_SPECS.items()
    ]
    lines += [
        "",
        "| RepOpt-GhostNet | width | training | RepGhostNet, training | deploy | MACs, 10^9 |",
        "|---|---|---:|---:|---:|---:|",
    ]
    lines += [
        _model_row(f"repopt_ghostnet_{size}", f"repghostnet_{size}", f"{width:g}x")
        for size, width in GHOST_WIDTHS.items()
    ]
    return _with_part("docs/models.md", "models", lines)


def _with_part(name: str, what: str, lines: list[str], text: str | None = None) -> str:
    """A page, or a text of it, whose part between two markers is made here."""
    start, end = f"<!-- {what}, by docs/generate.py -->", f"<!-- end of {what} -->"
    before, rest = (text or (ROOT / name).read_text()).split(start)
    _, after = rest.split(end)
    return f"{before}{start}\n" + "\n".join(lines) + f"\n{end}{after}"


def results() -> str:
    return results_page(TABLES, measured.RESULTS, drawings=drawings_in(ROOT / "docs"))


def zoo() -> str:
    """The scales that ship, each with what its own file says about where it comes from."""
    lines = [
        "| scales | searched on | epochs | smoothing | clipping | init | seed | search accuracy | precision | hardware | date |",
        "|---|---|---:|---:|---|---|---:|---:|---|---|---|",
    ]
    for name in shipped():
        origin = provenance(repopt.Scales.load(name))
        assert origin is not None, f"{name} does not say where it comes from"
        clipping = "none" if origin.clip is None else f"{origin.clip:g}"
        lines.append(
            f"| `{name}` | {origin.data} | {origin.epochs} | {origin.label_smoothing:g} | {clipping} | {origin.kernel} | "
            f"{origin.seed} | {origin.accuracy:.2f} | {origin.precision} | {origin.hardware} | {origin.date} |"
        )
    return _with_part("docs/zoo.md", "shipped scales", lines)


def _model_row(plain: str, branched: str, shape: str) -> str:
    with torch.device("meta"):
        net, other = repopt.create_model(plain), repopt.create_model(branched)
        training = _parameters(net), _parameters(other)
        deploy(net, inplace=True)
        with FlopCounterMode(display=False) as counter:
            net(torch.empty(1, 3, 224, 224))
    billions = counter.get_total_flops() / 2e9
    return f"| `{plain}` | {shape} | {training[0]:,} | {training[1]:,} | {_parameters(net):,} | {billions:.2f} |"


def _parameters(model: torch.nn.Module) -> int:
    return sum(param.numel() for param in model.parameters())


def _dashed(sizes: tuple[int, ...]) -> str:
    return "-".join(map(str, sizes))


def _route(rule: Rule) -> str:
    return "none, refused" if rule.route is None else rule.route


def _degree(rule: Rule) -> str:
    return "" if rule.degree is None else str(rule.degree)


def _section(name: str, rule: Rule) -> str:
    head = f"## {name}\n\n"
    if rule.route is None:
        return f"{head}Not supported: it {rule.why}.\n"
    given = ", kernels=kernels" if rule.looks_at_weights != "never" else ""
    params = "[net[3].weight]" if rule.matrices_only else "net.parameters()"
    lines = [f"optimizer = torch.optim.{name}({params}, lr=0.01)", f"repopt.attach(optimizer, plan{given})"]
    if rule.matrices_only:
        lines.insert(0, 'plan_of_matrices = repopt.plan(net, {"3": [Linear(), Linear()]}, scales="ones")')
        lines[-1] = "repopt.attach(optimizer, plan_of_matrices)"
    text = f"{head}The {rule.route} route: it {rule.why}.\n\n```python\n" + "\n".join(lines) + "\n```\n"
    if rule.closed_form:
        text += (
            f"\nOr, with no extra state, the closed form:\n\n```python\noptimizer = {rule.closed_form}"
            "(net.parameters(), plan, lr=0.01)\n```\n"
        )
    return text


def _table(setting: dict[str, str], rows: list[dict[str, str]]) -> str:
    lines = [
        f"**{setting['model']}, {setting['memory_format']}**, {setting['hardware']}, {setting['threads']} thread(s), torch "
        f"{setting['torch']}, {setting['date']}",
        "",
        "| optimizer | way | ms | ratio | state MB | kept MB | peak MB |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for its in groups(rows, "rule", "implementation", "way").values():
        row = its[0]
        milliseconds = statistics.median(float(each["milliseconds"]) for each in its)
        ratios = [float(each["ratio"]) for each in its]
        peak = f"{float(row['peak_bytes']) / 1e6:.1f}" if row["peak_bytes"] else ""
        lines.append(
            f"| {row['rule']}, {row['implementation']} | {row['way']} | {milliseconds:.2f} | "
            f"{'1.00' if row['way'] == 'stock' else _spread(ratios).replace('x', '')} | "
            f"{float(row['state_bytes']) / 1e6:.1f} | {float(row['repopt_bytes']) / 1e6:.2f} | {peak} |"
        )
    return "\n".join(lines) + "\n"


PAGES = {
    "docs/exactness.md": exactness,
    "docs/optimizers.md": optimizers,
    "docs/models.md": models,
    "docs/training.md": lambda: _with_part("docs/training.md", "training results", measured.training()),
    "docs/performance.md": performance,
    "docs/quantization.md": lambda: _with_part("docs/quantization.md", "int8 results", measured.quantization()),
    "docs/analysis.md": lambda: _with_part("docs/analysis.md", "kernels", measured.kernels()),
    "docs/results.md": results,
    "docs/zoo.md": zoo,
    "README.md": readme,
}

if __name__ == "__main__":
    write_drawings(TABLES, measured.RESULTS, ROOT / "docs")
    for name, page in PAGES.items():
        (ROOT / name).write_text(page())
        print(name)
