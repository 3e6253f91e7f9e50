"""What a folder of images holds, from the names of its files and the headers of a few: nothing is decoded."""

import statistics
from dataclasses import dataclass
from pathlib import Path

from repopt.data.decoding import sides
from repopt.data.folder import SIZE, read_splits, sampled, why_no_file


@dataclass(frozen=True, kw_only=True)
class Survey:
    """How many images there are to train on, and how large they are.

    Attributes:
        images: to train on.
        side: the shorter one, as the median of a sample.
    """

    images: int
    side: int


def survey(path: Path, limit: int | None = None) -> Survey:
    """Looks at a folder that `read_folder` can read; images that cannot be read have no part in it."""
    files = read_splits(path).train.paths
    looked_at = [each for each in sampled(files) if why_no_file(each) is None]  # to open a pipe would wait for ever
    measured = [min(found) for each in looked_at if (found := sides(each)) is not None]
    images = len(files) if limit is None else min(limit, len(files))
    return Survey(images=images, side=round(statistics.median(measured)) if measured else SIZE)
