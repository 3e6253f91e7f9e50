"""Tables of measured figures, as lines of Markdown: every number here is read from a file of results/."""

import statistics
from pathlib import Path

from paper import TABLES
from paper.quantized import METHODS
from paper.summaries import INITS, NAMES, difference, groups, markdown, matching, mean, spread
from paper.table4 import at_its_best
from paper.table8 import costs
from paper.tables import read_rows

RESULTS = Path(__file__).parent / "results"


def accuracies() -> list[str]:
    """The accuracies that the README shows."""
    first = rows_of("table4.csv")[0]
    ablations = matching(rows_of("table4.csv"), model=first["model"])
    shown = {"RepOpt, scales searched on CIFAR-100": matching(ablations, optimizer="RepOptimizer")}
    for optimizer, words in {"SGD, RepVGG": "RepVGG", "SGD": "plain SGD"}.items():
        its, tried = at_its_best(ablations, optimizer), groups(matching(ablations, optimizer=optimizer), "init", "rate")
        best = ", the best of what was tried" if len(tried) > 1 else ""
        shown[f"{words}{best} ({INITS[its[0]['init']]} init, lr {its[0]['lr']})"] = its
    (to_repvgg, *_), to_sgd = (TABLES[name].claims(rows_of(f"{name}.csv")) for name in ("table2", "table4"))
    papers = ["", f"{to_repvgg.paper:+.2f}", f"{-to_sgd[0].paper:+.2f}"]
    lines = [
        f"{first['model']} on Imagenette at {first['size']} pixels, {first['epochs']} epochs, on one {first['hardware']} "
        "([all results](docs/results.md), the paper's tables among them):",
        "",
        "| method | seeds | accuracy | RepOpt to it | the paper's, on ImageNet |",
        "|---|---:|---:|---:|---:|",
    ]
    ours = next(iter(shown.values()))
    for (name, its), paper in zip(shown.items(), papers, strict=True):
        gap = "" if its is ours else difference(ours, its)
        lines.append(f"| {name} | {len(its)} | {spread(its)} | {gap} | {paper} |")
    lines += [
        "",
        "± is the deviation over seeds, and behind a difference its standard error. The setting is one in which the methods "
        "differ; RepOpt has the recipe's learning rate and torch's init.",
    ]
    lines += ["", "Before you quote this:", ""]
    lines += [f"- {sentence}" for sentence in map(_verdict, ("table4", "a0", "conventions"))]
    return [*lines, "", *_speeds(), "", *_int8_summary()]


def _verdict(name: str) -> str:
    told = TABLES[name].verdict(rows_of(f"{name}.csv"))
    assert told is not None, f"results/{name}.csv says too little"
    return told


def _speeds() -> list[str]:
    """How much faster than RepVGG it trains."""
    rows = matching(rows_of("table2.csv"), what="speed", model="repopt_vgg_b1")
    told = []
    for batches, words in {
        "equal": "at batch {}",
        "largest": "at the largest batch that fits the same memory, {}",
    }.items():
        (ours,), (theirs,) = (matching(rows, method=method, batches=batches) for method in ("repopt", "repvgg"))
        ratio = float(ours["images_per_second"]) / float(theirs["images_per_second"])
        own = dict.fromkeys((ours["batch_size"], theirs["batch_size"]))
        told.append(f"{ratio:.2f} times RepVGG's images a second {words.format(' to '.join(own))}")
        if batches == "equal":
            memory = float(ours["peak_memory_bytes"]) / float(theirs["peak_memory_bytes"])
            told[-1] += f", in {memory:.2f} times its memory"
    return [f"Training {rows[0]['model']} at {rows[0]['size']} pixels, {rows[0]['precision']}: {'; '.join(told)}."]


def whole_step() -> list[str]:
    """What the optimizer's step is a part of."""
    row = max(matching(rows_of("bench_train.csv"), method="repopt"), key=lambda row: int(row["batch_size"]))
    milliseconds = 1000 * int(row["batch_size"]) / float(row["images_per_second"])
    return [
        f"`repopt train` takes the fused one in a CUDA graph where it can. A whole step of {row['model']}'s training, "
        f"{row['batch_size']} images at {row['size']} pixels, takes {milliseconds:.0f} ms on one {row['hardware']}."
    ]


def training() -> list[str]:
    """Imagenette by method, searches with where their time went, images a second."""
    lines = [f"Imagenette at 96 pixels, {_imagenette_setting()}:", "", *_imagenette_table(), ""]
    lines += [
        "All in one process: peak memory is the least of a method's runs, and may count what earlier ones left. Plain SGD was trained again for "
        "[Table 4](results.md#table-4-optimizers-and-ablations), with the same seeds: what differs is what a repetition changes.",
        "",
    ]
    lines += [
        "Hyper-Search, `repopt search`. The first search of a model ships; others repeat or vary it.",
        "",
    ]
    lines += [
        "| model | searched on | recipe | precision | seed | hardware | accuracy | data | compile | train | eval | checkpoints | |",
        "|---|---|---|---|---:|---|---:|---:|---:|---:|---:|---:|---|",
    ]
    for row in rows_of("search.csv"):
        spent = [
            f"{float(row[f'{what}_seconds']):.1f} s" if row[f"{what}_seconds"] else "not counted"
            for what in ("data", "compile", "train", "eval", "save")
        ]
        lines.append(
            f"| {row['model']} | {row['data']} | {row['recipe']} | {row['precision']} | {row['seed']} | {row['hardware']} | {float(row['val_accuracy']):.2f} | {' | '.join(spent)} | "
            f"{row['note']} |"
        )
    lines += ["", "`repopt bench train`, noise at 224 pixels, held on the device:", ""]
    lines += [
        "| model | batch | precision | hardware | method | images/s | ratio | peak memory |",
        "|---|---:|---|---|---|---:|---:|---:|",
    ]
    for row in rows_of("bench_train.csv"):
        lines.append(
            f"| {row['model']} | {row['batch_size']} | {row['precision']} | {row['hardware']} | {row['method']} | "
            f"{float(row['images_per_second']):,.0f} | {float(row['ratio']):.2f} | {float(row['peak_bytes']) / 1e9:.1f} GB |"
        )
    lines += [
        "",
        "Of two methods in one process, the second's memory may count what the first has left: here that is RepVGG. "
        "[Table 2](results.md#table-2-repopt-against-repvgg) has other timings, RepVGG's first.",
    ]
    return lines


def _imagenette_setting() -> str:
    row = rows_of("imagenette.csv")[0]
    return f"{row['model']}, {row['epochs']} epochs, batch {row['batch_size']}, {row['precision']}, on one {row['hardware']} (`results/imagenette.csv`)"


def _imagenette_table() -> list[str]:
    runs: dict[tuple[str, str], list[dict[str, str]]] = {}
    for row in rows_of("imagenette.csv"):
        runs.setdefault((row["method"], row["kernel"]), []).append(row)
    lines = [
        "| method | init | seeds | accuracy | images/s | peak memory | training time |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for (method, kernel), rows in sorted(runs.items(), key=lambda each: -mean(each[1], "val_accuracy")):
        deviation = statistics.stdev(float(row["val_accuracy"]) for row in rows)
        lines.append(
            f"| {NAMES[method]} | {INITS[kernel]} | {len(rows)} | {mean(rows, 'val_accuracy'):.2f} ± {deviation:.2f} | "
            f"{mean(rows, 'images_per_second'):,.0f} | {min(float(row['peak_memory_bytes']) for row in rows) / 1e9:.1f} GB | "
            f"{mean(rows, 'train_seconds'):.1f} s |"
        )
    return lines


def quantization() -> list[str]:
    """What INT8 costs: PTQ, ONNX Runtime's own, QAT, and speed."""
    long, rows = rows_of("table8.csv"), matching(rows_of("int8.csv"), data="cifar100")
    first, trained_on = long[0], matching(long, method="qat")[0]
    lines = [
        f"CIFAR-100, {first['model']} and its counterparts, trained by the recipe `small`, {first['epochs']} epochs, on all "
        f"{int(first['val_images']):,} test images, {first['images']} images to calibrate, QAT of {trained_on['qat_epochs']} epochs "
        "(`repopt reproduce table8`); means, and in brackets points lost ± deviation over the seeds. RepOpt's scales were "
        "searched on CIFAR-100 too:",
        "",
        *costs(long),
        "",
        "In more settings, a row a seed, all with torch's init (`results/int8.csv`; the rows of 120 epochs are other trainings "
        f"than those above, with the same seeds). PTQ with {rows[0]['images']} images:",
        "",
        "| trained by | epochs | form | seed | float | per-channel weights: histogram | minmax | per-tensor weights: histogram | minmax |",
        "|---|---:|---|---:|---:|---:|---:|---:|---:|",
    ]
    wanted = [(weights, calibrator) for weights in ("channel", "tensor") for calibrator in ("histogram", "minmax")]
    for trained_by, epochs, form, seed in dict.fromkeys(
        (r["trained_by"], r["epochs"], r["form"], r["seed"]) for r in rows
    ):
        its = matching(rows, trained_by=trained_by, epochs=epochs, form=form, seed=seed, backend="x86", method="ptq")
        its = matching(its, images=rows[0]["images"], trim=rows[0]["trim"])
        cells = [_pick(its, weights=weights, calibrator=calibrator) for weights, calibrator in wanted]
        if any(cells):
            before = next(float(cell["float_accuracy"]) for cell in cells if cell)
            lines.append(
                f"| {trained_by} | {epochs} | {form} | {seed} | {before:.2f} | {' | '.join(map(_int8_cell, cells))} |"
            )
    lines += ["", *_calibration_sizes(rows), "", *_trimmed_elsewhere(), "", *_halves()]
    lines += ["", f"PTQ by ONNX Runtime's own quantization, {rows[0]['epochs']} epochs:", ""]
    lines += ["| trained by | seed | weights | calibrator | float | INT8 |", "|---|---:|---|---|---:|---:|"]
    for row in matching(rows, backend="onnxruntime"):
        lines.append(
            f"| {row['trained_by']} | {row['seed']} | {row['weights']} | {row['calibrator']} | "
            f"{float(row['float_accuracy']):.2f} | {_int8_cell(row)} |"
        )
    lines += ["", "QAT:", ""]
    lines += [
        "| trained by | epochs | form | seed | QAT's epochs | lr | float | INT8 |",
        "|---|---:|---|---:|---:|---:|---:|---:|",
    ]
    for row in matching(rows, method="qat"):
        lines.append(
            f"| {row['trained_by']} | {row['epochs']} | {row['form']} | {row['seed']} | {row['qat_epochs']} | {float(row['qat_lr']):g} | "
            f"{float(row['float_accuracy']):.2f} | {_int8_cell(row)} |"
        )
    lines += ["", "In brackets: points lost. A negative loss is a gain. Speed on a CPU, images/s:", ""]
    lines += [
        "| model | backend | batch | size | threads | hardware | float, eager | compiled | INT8 | INT8 / eager |",
        "|---|---|---:|---:|---:|---|---:|---:|---:|---:|",
    ]
    for row in (row for row in rows_of("int8_speed.csv") if row["int8"]):
        eager, compiled, int8 = (float(row[way]) for way in ("float_eager", "float_compiled", "int8"))
        lines.append(
            f"| {row['model']} | {row['backend']} | {row['speed_batch']} | {row['speed_size']} | {row['speed_threads']} | "
            f"{row['speed_hardware']} | {eager:,.0f} | {compiled:,.0f} | {int8:,.0f} | {int8 / eager:.2f} |"
        )
    return lines


def _calibration_sizes(rows: list[dict[str, str]]) -> list[str]:
    """PTQ by the images that calibrate, of the runs that were calibrated with several numbers of them."""
    its = matching(rows, method="ptq", backend="x86", weights="channel", calibrator="histogram", form="deployed")
    its = [row for row in its if "cores" in row["hardware"]]
    ways = sorted({(float(row["trim"]), int(row["images"])) for row in its})
    cells = []
    for (trained_by, seed), found in groups(its, "trained_by", "seed").items():
        by_way = {(float(row["trim"]), int(row["images"])): row for row in found}
        if set(by_way) == set(ways):
            before = float(found[0]["float_accuracy"])
            cells.append((NAMES[trained_by], seed, f"{before:.2f}", *(_int8_cell(by_way[way]) for way in ways)))
    names = {f"{images:,}" + (f", trimmed by {trim:.0%}" if trim else ""): ">" for trim, images in ways}
    return [
        f"By the images that calibrate, {its[0]['epochs']} epochs, per-channel weights, histogram (`--images`, `--trim`), on a "
        f"CPU, {its[0]['hardware']}, where rounding differs a little from the H200's above:",
        "",
        *markdown({"trained by": "<", "seed": ">", "float": ">", **names}, cells),
        "",
        _trimmed_by_tensor(rows),
    ]


def _trimmed_by_tensor(rows: list[dict[str, str]]) -> str:
    """What trimming gives with one step for all of a layer's weights."""
    trimmed = [row for row in matching(rows, method="ptq", weights="tensor") if float(row["trim"])]
    least = matching(trimmed, trim=min((row["trim"] for row in trimmed), key=float))
    told = ", ".join(f"{NAMES[row['trained_by']]} (seed {row['seed']}) {_int8_cell(row)}" for row in least)
    return f"With per-tensor weights, trimmed by {float(least[0]['trim']):.0%}: {told}."


def _trimmed_elsewhere() -> list[str]:
    """Trimming on data that it was not found on."""
    rows = matching(rows_of("int8.csv"), data="imagenette")
    first = rows[0]
    trims = sorted({row["trim"] for row in rows}, key=float)
    cells = []
    for (trained_by, weights), its in groups(rows, "trained_by", "weights").items():
        found = [_int8_cell(_pick(its, trim=trim)) for trim in trims]
        cells.append((NAMES[trained_by], weights, f"{float(its[0]['float_accuracy']):.2f}", *found))
    names = {f"trimmed by {float(trim):.0%}" if float(trim) else "untrimmed": ">" for trim in trims}
    return [
        f"The same on other data, {first['model']} and its counterpart on Imagenette, {first['epochs']} epochs, one seed, "
        f"{int(first['val_images']):,} test images, {first['images']} images to calibrate:",
        "",
        *markdown({"trained by": "<", "weights": "<", "float": ">", **names}, cells),
    ]


def _halves() -> list[str]:
    """What INT8 costs with the weights alone in it, and with the inputs of layers alone."""
    rows = rows_of("int8_layers.csv")
    cells = []
    for (trained_by, weights, images), its in groups(rows, "trained_by", "weights", "images").items():
        alone = [
            f"{float(matching(its, layer=part)[0]['agreement_alone']):.1f}" for part in ("all weights", "all inputs")
        ]
        cells.append((NAMES[trained_by], weights, f"{int(images):,}", *alone, f"{float(its[0]['int8_accuracy']):.2f}"))
    columns = {"trained by": "<", "weights": "<", "images": ">", "all weights alone": ">", "all inputs alone": ">"}
    return [
        "Of the runs of seed 0, the share of test images that keep their class with one half alone in INT8, in percent "
        "(`repopt quantize --layers`, `results/int8_layers.csv`), and the accuracy with both:",
        "",
        *markdown({**columns, "accuracy, both": ">"}, cells),
    ]


def _pick(rows: list[dict[str, str]], **wanted: str) -> dict[str, str] | None:
    return next(iter(matching(rows, **wanted)), None)


def _int8_cell(row: dict[str, str] | None) -> str:
    return "" if row is None else f"{float(row['int8_accuracy']):.2f} ({float(row['drop']):.2f})"


def kernels() -> list[str]:
    """The kernels of the runs that were quantized."""
    rows = rows_of("kernels.csv")
    trained = matching(rows_of("int8.csv"), run=rows[0]["run"])[0]
    lines = [
        f"Runs of [INT8](quantization.md), of {trained['epochs']} epochs with {INITS[trained['kernel']]} init, layer "
        f"{rows[0]['layer']}, trained and in brackets at initialization (`results/kernels.csv`):",
        "",
        "| run | kernel | overall | central | surrounding |",
        "|---|---|---:|---:|---:|",
    ]
    for row in rows:
        cells = [
            f"{float(row[p]):.4f} ({float(row[f'{p}_at_init']):.4f})" for p in ("overall", "central", "surrounding")
        ]
        lines.append(f"| {row['run']} | {row['kernel']} | {' | '.join(cells)} |")
    return lines


def _int8_summary() -> list[str]:
    """By the default calibrator, and after a short training."""
    rows = rows_of("table8.csv")
    first = rows[0]
    lines = [
        f"INT8: {first['model']} on CIFAR-100, {first['epochs']} epochs, {first['images']} images to calibrate, on which "
        f"RepVGG's loss depends ([all figures](docs/quantization.md)). In float, RepOpt to RepVGG: {_float_gap(rows)}.",
        "",
    ]
    cells = []
    for name in METHODS:
        its = matching(rows, trained_by=name)
        calibrated = matching(its, method="ptq", calibrator="histogram")
        channel, tensor = matching(calibrated, weights="channel"), matching(calibrated, weights="tensor")
        init = f", {INITS[its[0]['kernel']]} init" if name == "sgd" else ""
        found = [spread(kind, "int8_accuracy") for kind in (channel, tensor, matching(its, method="qat"))]
        cells.append((f"{NAMES[name]}{init}", len(channel), spread(channel, "float_accuracy"), *found))
    columns = {
        "trained by": "<",
        "seeds": ">",
        "float": ">",
        "calibrated, per-channel weights": ">",
        "per-tensor weights": ">",
    }
    return lines + markdown({**columns, "trained on with the rounding (QAT)": ">"}, cells)


def _float_gap(rows: list[dict[str, str]]) -> object:
    """RepOpt less RepVGG before INT8."""
    its = matching(rows, method="ptq", weights="channel", calibrator="histogram")
    ours, theirs = (matching(its, trained_by=name) for name in ("repopt", "repvgg"))
    return difference(ours, theirs, "float_accuracy")


def rows_of(name: str) -> list[dict[str, str]]:
    return read_rows(RESULTS / name)
