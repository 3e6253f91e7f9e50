"""The learning rate at each step: a linear warm-up, then half a cosine down to 0."""

import math

from repopt.train.recipe import Recipe


def lr_at(recipe: Recipe, step: int, steps_per_epoch: int) -> float:
    """The learning rate of a step, counted from 0; a pure function, so that nothing needs to be saved."""
    scale = recipe.batch_size / recipe.lr_batch
    highest, lowest = recipe.lr * scale, recipe.warmup_lr * scale
    warmup = round(recipe.warmup_epochs * steps_per_epoch)
    total = recipe.epochs * steps_per_epoch
    if step < warmup:
        return lowest + (highest - lowest) * (step + 1) / (warmup + 1)
    return highest * 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, total - warmup)))
