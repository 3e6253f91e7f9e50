"""One case of the fuzzer: a seed decides what is mangled and which command meets it.

What holds, whatever the damage: the command ends in time, with exit code 0, or with 2 and a sentence, and then leaves
no folder behind. A damaged checkpoint, scales file, weights file or cache is noticed: the result is bit-equal to the
undamaged one, or something is said about the file.
"""

import dataclasses
import json
import random
import shutil

from fuzz.mangling import mangle
from fuzz.running import CRASHED, answer

TINY = "--data fake:32,4,16 --epochs 1 --warmup-epochs 0 --batch-size 8 --eval-batch 16 --device cpu --quiet"
TRAIN = f"train {TINY} --out new"
SEALED = (".pt", ".pth", ".safetensors")  # what must not be used in silence when it is damaged
# words of programmers, of no use to a user
RAW = (
    *("Traceback", "enforce fail", "object at 0x", "NoneType", "KeyError", "index out of range", "unhashable", "Errno"),
    *("not subscriptable", "has no attribute", "unexpected pos", "unexpected keyword", "positional argument", "codec"),
    *("Overflow", "recursion", "to unpack", "not iterable", "invalid literal", "buffer", "isinstance", "()"),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Target:
    """A command, the files that it reads, and what comes out of it.

    Attributes:
        command: what is typed.
        files: patterns of what may be mangled.
        made: the file with the result; what was printed unless given.
        folders: what the command needs of the material.
    """

    command: str
    files: tuple[str, ...]
    made: str | None = None
    folders: tuple[str, ...]


def _trains(options, *files, folders=("files",)):
    return Target(command=f"{TRAIN} {options}", files=files, made="new/model.safetensors", folders=folders)


def _resumes(*files):
    command = "train --resume --quiet --device cpu --out stopped"
    return Target(command=command, files=files, made="stopped/model.safetensors", folders=("stopped", "finished"))


RUN = ("finished/*.json", "finished/model.safetensors")
TARGETS = (
    Target(command="eval finished --json --device cpu", files=RUN, folders=("finished",)),
    Target(
        command="report finished search --out page.html",
        files=("finished/*.json*", "search/*.json*"),
        folders=("finished", "search"),
    ),
    Target(
        command="export finished --format safetensors --out new",
        files=RUN,
        made="new/model.safetensors",
        folders=("finished",),
    ),
    _resumes("stopped/checkpoint.pt"),
    _resumes("stopped/*.*"),
    _trains("--scales files/scales.safetensors", "files/scales.safetensors"),
    _trains("--scales files/authors.pth", "files/authors.pth"),
    _trains("--method sgd --weights files/weights.safetensors", "files/weights.safetensors"),
    _trains("--method sgd --weights files/weights.pth", "files/weights.pth"),
    _trains("--recipe files/mine.toml", "files/mine.toml"),
    _trains("--recipe files/mine.json", "files/mine.json"),
    _trains("--method sgd --data folder:{material}/images", "cache/*", folders=("cache",)),
    _trains("--method sgd --data folder:images", "images/train/cat/*", folders=("images",)),
)
FLAGS = {
    TRAIN: (
        *("model", "method", "data", "scales", "out", "weights", "strides", "limit", "broken", "recipe", "batch-size"),
        *("lr", "lr-batch", "warmup-epochs", "warmup-lr", "optimizer", "momentum", "weight-decay", "label-smoothing"),
        *("clip", "mixup", "dropout", "ema", "accumulate", "size", "crop-padding", "resized-crop", "randaugment"),
        *("color-jitter", "erasing", "kernel", "identity", "rules", "start", "precision", "eval-every", "eval-size"),
        *("eval-batch", "workers", "seed", "epochs", "nonsense"),
    ),
    f"search {TINY} --out new": ("model", "data", "out", "scales-out", "strides", "limit", "start", "kernel"),
    "eval finished --device cpu": ("data", "sizes", "limit", "device"),
    "report finished": ("out", "title"),
    "export finished --format safetensors --out new": ("format", "data", "images", "out", "opset", "int8"),
}
WORDS = (
    *("nan", "inf", "-inf", "-1", "0", "1", "1.5", "1e999", "1e-400", "", " ", "x", "é", "--", "None", "True", "[1]"),
    *(str(2**64), "9" * 30, "9" * 400, "no/such/folder", "/dev/null", "/dev/zero", "finished", "files"),  # none outside
    "files/mine.toml",
    *(
        "fake:1,1,1",
        "fake:0,0,0",
        "fake:9999999999,4,9999",
        "folder:.",
        "folder:/dev",
        "cifar10:.",
        "cifar100:/dev/zero",
    ),
    *("files/scales.safetensors", "files/weights.pth", "files/authors.pth", "AdamW", "LBFGS", "paper", "fp16", "ones"),
)


def run_case(seed, material, folder):
    """Runs a case in a new folder: what it was, what was wrong (None for nothing), and what the command answered."""
    rng = random.Random(seed)
    if rng.random() < 0.25:
        return _flags(rng, material, folder)
    target = rng.choice(TARGETS)
    _copy(material, folder, target.folders)
    path = rng.choice(sorted(path for pattern in target.files for path in folder.glob(pattern) if path.is_file()))
    deed = mangle(path, rng)
    words = target.command.format(material=material).split()
    got = answer(words, folder, target.made)
    wrong = trouble(got, folder)
    if wrong is None and got.code == 0 and path.suffix in SEALED and path.stem not in got.err:
        expected = json.loads((material / "expected.json").read_text())[target.command]
        wrong = None if got.result == expected else "the damage was used without a word"
    return f"{deed}, then repopt {' '.join(words)}", wrong, got


def _copy(material, folder, names):
    for name in names:
        shutil.copytree(material / name, folder / name, symlinks=True)


def _flags(rng, material, folder):
    _copy(material, folder, ("finished", "files"))
    command = rng.choice(list(FLAGS))
    words = command.split()
    for _ in range(rng.choice((1, 1, 2))):
        words += [f"--{rng.choice(FLAGS[command])}", *(rng.choice(WORDS) for _ in range(rng.choice((0, 1, 1, 1, 2))))]
    got = answer(words, folder)
    return f"repopt {words}", trouble(got, folder), got


def trouble(got, folder):
    """What no answer may be, in a word; None if it is a good one."""
    if got.code is None:
        return "no answer in time"
    if got.code == CRASHED or "Traceback" in got.err:
        return "a traceback"
    if got.code not in (0, 2):
        return f"exit code {got.code}"
    if got.code == 0:
        return None
    if (folder / "new").exists():
        return "a folder was left that blocks the next start"
    if "For full helptext" in got.err:  # tyro's own, for flags
        return None
    sentences = [line for line in got.err.splitlines() if line.startswith("repopt: ")]
    if len(sentences) != 1 or not got.err.rstrip().endswith(sentences[0]):
        return "not one sentence"
    raw = [word for word in RAW if word in sentences[0]]
    return f"a raw message ({raw[0]})" if raw else None
