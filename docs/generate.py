"""Writes the pages of docs/ that are made from tables: `python docs/generate.py`, or `make docs`.

exactness.md and optimizers.md come from repopt.rules, the tables of models.md from the models themselves, those of
performance.md, training.md, quantization.md, analysis.md and the README from results/*.csv.
"""

import csv
import statistics
from pathlib import Path

import torch
from torch.utils.flop_counter import FlopCounterMode

import repopt
from repopt.models import GHOST_WIDTHS, VGG_SPECS, deploy
from repopt.rules import RULES, UNKNOWN, Rule

ROOT = Path(__file__).parents[1]
NOTE = "<!-- made by docs/generate.py: change that, not this -->\n\n"


def exactness() -> str:
    rows = [
        f"| `{each.__name__}` | {_route(rule)} | {_degree(rule)} | {rule.looks_at_weights} | it {rule.why} |"
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
    sections = "\n".join(_section(each.__name__, rule) for each, rule in RULES.items())
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
    runs: dict[tuple[str, ...], list[float]] = {}
    for row in _step_rows():
        if row["way"] != "stock" and _is_shown(row):
            kept = f"{float(row['repopt_bytes']) / 1e6:.2f} MB"
            key = (f"{row['rule']}, {row['implementation']}", row["way"], row["hardware"], kept)
            runs.setdefault(key, []).append(float(row["ratio"]))
    lines = ["| optimizer | how | hardware | to the stock step | kept beside the state |", "|---|---|---|---:|---:|"]
    lines += [
        f"| {rule} | {way} | {hardware} | {_spread(ratios)} | {kept} |"
        for (rule, way, hardware, kept), ratios in runs.items()
    ]
    return _with_part("README.md", "step costs", lines, _with_part("README.md", "accuracies", readme_results()))


def readme_results() -> list[str]:
    """The accuracies that the README shows."""
    setting = _imagenette_setting().replace("`results/imagenette.csv`", "[all figures](docs/training.md)")
    return [f"Imagenette at 96 pixels, {setting}:", "", *_imagenette_table(), "", *_int8_summary()]


def _int8_summary() -> list[str]:
    """PTQ by the default calibrator, means over seeds."""
    rows = _matching(_rows("int8.csv"), backend="x86", method="ptq", form="deployed", calibrator="histogram")
    seeds = len({row["seed"] for row in rows})
    lines = [
        f"INT8 by calibration alone: B0 on CIFAR-100, means over {seeds} seeds ([all figures](docs/quantization.md)):",
        "",
        "| trained by | float | INT8, a scale a channel | INT8, a scale a tensor |",
        "|---|---:|---:|---:|",
    ]
    for trained_by in dict.fromkeys(row["trained_by"] for row in rows):
        its = _matching(rows, trained_by=trained_by)
        cells = [_mean(_matching(its, weights=weights), "int8_accuracy") for weights in ("channel", "tensor")]
        name = {"repopt": "RepOpt", "repvgg": "RepVGG", "qarepvgg": "QARepVGG", "sgd": "plain SGD"}[trained_by]
        lines.append(f"| {name} | {_mean(its, 'float_accuracy'):.2f} | {cells[0]:.2f} | {cells[1]:.2f} |")
    return lines


def _spread(ratios: list[float]) -> str:
    """The median of all recorded runs, and how far they lie apart."""
    median = f"{statistics.median(ratios):.2f}x"
    return median if len(ratios) == 1 else f"{median} ({min(ratios):.2f} to {max(ratios):.2f}, {len(ratios)} runs)"


def _is_shown(row: dict[str, str]) -> bool:
    on_gpu = row["implementation"] == "fused, graph"
    on_cpu = row["implementation"] == "fused" and "cores" in row["hardware"]
    return row["memory_format"] == "contiguous" and (on_gpu or on_cpu)


def _step_rows() -> list[dict[str, str]]:
    with (ROOT / "results" / "bench_step.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def performance() -> str:
    rows = _step_rows()
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


def training() -> str:
    """The page on training with the figures of results/."""
    lines = [f"Imagenette at 96 pixels, {_imagenette_setting()}:", "", *_imagenette_table(), ""]
    lines += [
        "Every seed in one process, so peak memory is that of the first run of a method. RepVGG was not trained with He init.",
        "",
    ]
    lines += ["Hyper-Search on CIFAR-100, `repopt search --recipe search --precision bf16`:", ""]
    lines += [
        "| model | seed | hardware | accuracy | data | compile | train | eval | checkpoints | |",
        "|---|---:|---|---:|---:|---:|---:|---:|---:|---|",
    ]
    for row in _rows("search.csv"):
        spent = [
            f"{float(row[f'{what}_seconds']):.1f} s" if row[f"{what}_seconds"] else "not counted"
            for what in ("data", "compile", "train", "eval", "save")
        ]
        lines.append(
            f"| {row['model']} | {row['seed']} | {row['hardware']} | {float(row['val_accuracy']):.2f} | {' | '.join(spent)} | "
            f"{row['note']} |"
        )
    lines += ["", "`repopt bench train`, noise at 224 pixels, held on the device:", ""]
    lines += [
        "| model | batch | precision | hardware | method | images/s | ratio | peak memory |",
        "|---|---:|---|---|---|---:|---:|---:|",
    ]
    for row in _rows("bench_train.csv"):
        lines.append(
            f"| {row['model']} | {row['batch_size']} | {row['precision']} | {row['hardware']} | {row['method']} | "
            f"{float(row['images_per_second']):,.0f} | {float(row['ratio']):.2f} | {float(row['peak_bytes']) / 1e9:.1f} GB |"
        )
    return _with_part("docs/training.md", "training results", lines)


def _imagenette_setting() -> str:
    row = _rows("imagenette.csv")[0]
    return f"{row['model']}, {row['epochs']} epochs, batch {row['batch_size']}, {row['precision']}, on one {row['hardware']} (`results/imagenette.csv`)"


def _imagenette_table() -> list[str]:
    runs: dict[tuple[str, str], list[dict[str, str]]] = {}
    for row in _rows("imagenette.csv"):
        runs.setdefault((row["method"], row["kernel"]), []).append(row)
    lines = [
        "| method | init | seeds | accuracy | images/s | peak memory | training time |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for (method, kernel), rows in sorted(runs.items(), key=lambda each: -_mean(each[1], "val_accuracy")):
        deviation = statistics.stdev(float(row["val_accuracy"]) for row in rows)
        lines.append(
            f"| {_METHOD_NAMES[method]} | {_INIT_NAMES[kernel]} | {len(rows)} | {_mean(rows, 'val_accuracy'):.2f} ± {deviation:.2f} | "
            f"{_mean(rows, 'images_per_second'):,.0f} | {min(float(row['peak_memory_bytes']) for row in rows) / 1e9:.1f} GB | "
            f"{_mean(rows, 'train_seconds'):.1f} s |"
        )
    return lines


def quantization() -> str:
    """The page on INT8 with the figures of results/."""
    rows = _rows("int8.csv")
    first = rows[0]
    lines = [
        f"CIFAR-100, {first['model']} and its counterparts, trained for {first['epochs']} epochs by the recipe `small` with one init, a row a "
        f"seed, on all {int(first['val_images']):,} test images (`results/int8.csv`). PTQ with {first['images']} images:",
        "",
        "| trained by | form | seed | float | INT8, a scale a channel: histogram | minmax | a scale a tensor: histogram | minmax |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    wanted = [(weights, calibrator) for weights in ("channel", "tensor") for calibrator in ("histogram", "minmax")]
    for trained_by, form, seed in dict.fromkeys((r["trained_by"], r["form"], r["seed"]) for r in rows):
        cells = [
            _pick(
                rows, trained_by=trained_by, form=form, seed=seed, backend="x86", method="ptq", weights=w, calibrator=c
            )
            for w, c in wanted
        ]
        if any(cells):
            before = next(float(cell["float_accuracy"]) for cell in cells if cell)
            lines.append(f"| {trained_by} | {form} | {seed} | {before:.2f} | {' | '.join(map(_int8_cell, cells))} |")
    lines += ["", "The same by ONNX Runtime's own quantization:", ""]
    lines += ["| trained by | seed | weights | calibrator | float | INT8 |", "|---|---:|---|---|---:|---:|"]
    for row in _matching(rows, backend="onnxruntime"):
        lines.append(
            f"| {row['trained_by']} | {row['seed']} | {row['weights']} | {row['calibrator']} | "
            f"{float(row['float_accuracy']):.2f} | {_int8_cell(row)} |"
        )
    lines += ["", "QAT:", ""]
    lines += ["| trained by | form | seed | epochs | lr | float | INT8 |", "|---|---|---:|---:|---:|---:|---:|"]
    for row in _matching(rows, method="qat"):
        lines.append(
            f"| {row['trained_by']} | {row['form']} | {row['seed']} | {row['qat_epochs']} | {float(row['qat_lr']):g} | "
            f"{float(row['float_accuracy']):.2f} | {_int8_cell(row)} |"
        )
    lines += ["", "In brackets: points lost. A negative loss is a gain. Speed on a CPU, images/s:", ""]
    lines += [
        "| model | backend | batch | size | threads | hardware | float, eager | compiled | INT8 | INT8 / eager |",
        "|---|---|---:|---:|---:|---|---:|---:|---:|---:|",
    ]
    for row in (row for row in _rows("int8_speed.csv") if row["int8"]):
        eager, compiled, int8 = (float(row[way]) for way in ("float_eager", "float_compiled", "int8"))
        lines.append(
            f"| {row['model']} | {row['backend']} | {row['speed_batch']} | {row['speed_size']} | {row['speed_threads']} | "
            f"{row['speed_hardware']} | {eager:,.0f} | {compiled:,.0f} | {int8:,.0f} | {int8 / eager:.2f} |"
        )
    return _with_part("docs/quantization.md", "int8 results", lines)


def _matching(rows: list[dict[str, str]], **wanted: str) -> list[dict[str, str]]:
    return [row for row in rows if all(row[name] == value for name, value in wanted.items())]


def _pick(rows: list[dict[str, str]], **wanted: str) -> dict[str, str] | None:
    return next(iter(_matching(rows, **wanted)), None)


def _int8_cell(row: dict[str, str] | None) -> str:
    return "" if row is None else f"{float(row['int8_accuracy']):.2f} ({float(row['drop']):.2f})"


def analysis() -> str:
    """The page on analyses with the kernels of the runs that were quantized."""
    rows = _rows("kernels.csv")
    lines = [
        f"The runs of [INT8](quantization.md), layer {rows[0]['layer']}, trained and in brackets at initialization "
        "(`results/kernels.csv`):",
        "",
        "| run | kernel | overall | central | surrounding |",
        "|---|---|---:|---:|---:|",
    ]
    for row in rows:
        cells = [
            f"{float(row[p]):.4f} ({float(row[f'{p}_at_init']):.4f})" for p in ("overall", "central", "surrounding")
        ]
        lines.append(f"| {row['run']} | {row['kernel']} | {' | '.join(cells)} |")
    return _with_part("docs/analysis.md", "kernels", lines)


_METHOD_NAMES = {"repopt": "RepOpt, scales searched on CIFAR-100", "sgd": "plain SGD", "repvgg": "RepVGG"}
_INIT_NAMES = {"authors": "torch's default", "paper": "He"}


def _mean(rows: list[dict[str, str]], column: str) -> float:
    return statistics.mean(float(row[column]) for row in rows)


def _rows(name: str) -> list[dict[str, str]]:
    with (ROOT / "results" / name).open(newline="") as file:
        return list(csv.DictReader(file))


def _with_part(name: str, what: str, lines: list[str], text: str | None = None) -> str:
    """A page, or a text of it, whose part between two markers is made here."""
    start, end = f"<!-- {what}, by docs/generate.py -->", f"<!-- end of {what} -->"
    before, rest = (text or (ROOT / name).read_text()).split(start)
    _, after = rest.split(end)
    return f"{before}{start}\n" + "\n".join(lines) + f"\n{end}{after}"


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
    for row in rows:
        peak = f"{float(row['peak_bytes']) / 1e6:.1f}" if row["peak_bytes"] else ""
        lines.append(
            f"| {row['rule']}, {row['implementation']} | {row['way']} | {float(row['milliseconds']):.2f} | "
            f"{float(row['ratio']):.2f} | {float(row['state_bytes']) / 1e6:.1f} | {float(row['repopt_bytes']) / 1e6:.2f} | "
            f"{peak} |"
        )
    return "\n".join(lines) + "\n"


PAGES = {
    "docs/exactness.md": exactness,
    "docs/optimizers.md": optimizers,
    "docs/models.md": models,
    "docs/training.md": training,
    "docs/performance.md": performance,
    "docs/quantization.md": quantization,
    "docs/analysis.md": analysis,
    "README.md": readme,
}

if __name__ == "__main__":
    for name, page in PAGES.items():
        (ROOT / name).write_text(page())
        print(name)
