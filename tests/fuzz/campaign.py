"""`make fuzz`: a thousand cases, and which of them failed. A case is its seed.

python -m fuzz.campaign                    # 1,000 cases from seed 1,000
python -m fuzz.campaign --seed 1234        # this case alone; its folder is kept
"""

import argparse
import multiprocessing
import shutil
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from fuzz.cases import run_case
from fuzz.material import build

# what the commands import, before they are forked
PRELOADED = (
    *("repopt.cli.train", "repopt.cli.search", "repopt.cli.evaluate", "repopt.cli.export", "repopt.cli.report"),
    *("torch._dynamo", "torch.utils.tensorboard", "matplotlib.figure", "matplotlib.backends.backend_svg"),
)


def tried(seed, material, keep=False):
    """A case's seed, what it was, what was wrong with it, and what was said."""
    place = Path(tempfile.mkdtemp(prefix=f"fuzz-{seed}-"))
    try:
        what, wrong, got = run_case(seed, material, place / "case")
    finally:
        if not keep:
            shutil.rmtree(place, ignore_errors=True)
    said = f"exit code {got.code}\n{got.out}{got.err}"
    return seed, what, wrong, f"{said}kept in {place}" if keep else said[-3000:]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--first", type=int, default=1000, help="the first seed; `make test` has those below")
    parser.add_argument("--seed", type=int, help="run one case alone")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    for name in PRELOADED:
        __import__(name)
    with tempfile.TemporaryDirectory() as home:
        material = Path(home, "material")
        material.mkdir()
        build(material)
        if options.seed is not None:
            _, what, wrong, said = tried(options.seed, material, keep=True)
            print(f"{what}\n{said}\n{wrong or 'as it should be'}")
            sys.exit(1 if wrong else 0)
        seeds = range(options.first, options.first + options.cases)
        sys.exit(1 if _failures(seeds, material, options.workers) else 0)


def _failures(seeds, material, workers):
    start, failures = time.monotonic(), 0
    with multiprocessing.get_context("fork").Pool(workers) as pool:
        for done, (seed, what, wrong, said) in enumerate(
            pool.imap_unordered(partial(tried, material=material), seeds), start=1
        ):
            if wrong:
                failures += 1
                print(f"seed {seed}: {wrong}\n  {what}\n  again: make fuzz SEED={seed}\n{said}\n", flush=True)
            if done % 100 == 0:
                print(f"{done} cases, {failures} failed, {time.monotonic() - start:.0f} s", flush=True)
    return failures


if __name__ == "__main__":
    main()
