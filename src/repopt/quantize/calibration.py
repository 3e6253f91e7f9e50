"""The images that activations are measured on: some of the training set, always the same ones."""

import torch
from torch import Tensor

from repopt.data import DataSet, EvalBatches
from repopt.data.images import balanced
from repopt.train.finished import Trained, check_data, image_format


def calibration_batches(trained: Trained, data: DataSet, images: int, batch_size: int = 50) -> list[Tensor]:
    """Training images as the model takes them: not augmented, as many of each class as there are.

    Args:
        trained: the model, with the size, mean and deviation of its images.
        data: where the images come from.
        images: how many, as far as there are.
        batch_size: images in a batch.
    """
    check_data(trained, data)
    part = data.train.take(balanced(data.train.labels, min(images, len(data.train))))
    shuffled = part.take(torch.randperm(len(part), generator=torch.Generator().manual_seed(0)))  # classes mixed
    batches = EvalBatches(shuffled, batch_size=batch_size, device=torch.device("cpu"), **image_format(trained))
    return [x.clone() for x, _ in batches]
