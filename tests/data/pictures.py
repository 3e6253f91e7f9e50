"""Class folders of small pictures for the tests."""

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
