"""Class folders of small pictures for the tests."""

import os
import select
import time
from contextlib import contextmanager

import numpy as np
from PIL import Image


def picture(path, seed=0, size=(20, 16), mode="RGB"):
    """Writes smooth noise, which JPEG keeps nearly as it is."""
    coarse = Image.fromarray(np.random.default_rng(seed).integers(256, size=(4, 4, 3), dtype=np.uint8))
    path.parent.mkdir(parents=True, exist_ok=True)
    coarse.resize(size, Image.Resampling.BICUBIC).convert(mode).save(path)
    return path


def class_folders(root, train=6, val=3, classes=("cat", "dog"), endings=(".jpg", ".png", ".webp"), **options):
    """train/ and val/ with as many pictures a class, the endings in turn."""
    seed = 0
    for split, count in (("train", train), ("val", val)):
        for name in classes:
            for number in range(count):
                picture(root / split / name / f"{number}{endings[number % len(endings)]}", seed, **options)
                seed += 1
    return root


def truncate(path):
    """Cuts a picture's second half off."""
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    return path


@contextmanager
def reader_of(fifo):
    """Waits until somebody reads from a FIFO, and holds them there; gives a function that waits until nobody does."""
    end, pipe, poll = time.monotonic() + 60, None, select.poll()
    while pipe is None:
        try:
            pipe = os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:  # nobody does
            assert time.monotonic() < end
            time.sleep(0.01)
    poll.register(pipe, 0)
    try:
        yield lambda: poll.poll(60_000) == [(pipe, select.POLLERR)]
    finally:
        os.close(pipe)
