"""What `train` and `search` say before and after a run."""

from pathlib import Path
from typing import Any

from repopt.train.job import Job
from repopt.train.notes import about_accuracy, about_auto, about_scales, about_search, about_warmup


def notes_before(job: Job, out: Path, *, auto: bool, resume: bool, chosen: bool = False) -> list[str]:
    """What a user may not expect of the run that is about to start, a sentence each.

    Args:
        job: the run.
        out: its folder.
        auto: whether the recipe follows the data.
        resume: whether it goes on.
        chosen: whether its scales were chosen for the user.
    """
    if resume and (out / "summary.json").exists():
        return [
            f"the run in {out} was finished, and only epochs that its checkpoint lacks are trained: more --epochs make "
            "it longer, and other settings need another --out"
        ]
    if resume:
        return ["the run goes on with its own settings; flags other than --epochs and --broken skip are ignored"]
    notes = [
        about_auto(job.recipe) if auto else None,
        about_scales(job.model, job.scales, job.method) if chosen else None,
        about_warmup(job.recipe),
    ]
    return [note for note in notes if note]


def conclude(out: Path, summary: dict[str, Any]) -> None:
    """Prints the accuracy, where the time went, and where the report is."""
    seconds = "  ".join(f"{name} {value:.1f} s" for name, value in summary["seconds"].items())
    print(
        f"accuracy {summary['val_accuracy']:.2f} (best {summary['best_val_accuracy']:.2f} after epoch "
        f"{summary['best_epoch']}), {summary['images_per_second']:,.0f} images/s"
    )
    if summary.get("ema_accuracy") is not None:
        print(f"accuracy of the moving average {summary['ema_accuracy']:.2f}: {out / 'model_ema.safetensors'}")
    for note in filter(None, (about_accuracy(out, summary), about_search(out))):
        print(f"note: {note}")
    print(f"time: {seconds}")
    try:
        from repopt.report import write_report

        print(f"report: {write_report([out], out / 'report.html')}")
    except ImportError as error:
        print(f"no report: {error}")
    print(f"run: {out}")
