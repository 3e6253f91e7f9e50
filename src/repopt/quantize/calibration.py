"""The images that activations are measured on: some of the training set, always the same ones.

An activation has one range for all images. An odd image that goes far beyond the others leaves them only a few of the
256 steps, so such images can be trimmed away.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from repopt.data import DataSet, EvalBatches
from repopt.data.images import balanced
from repopt.plans.copying import copied
from repopt.quantize.pt2e import check_batches, check_sizes
from repopt.quantize.setting import check_share
from repopt.train.runs import Trained, check_data, image_format


def calibration_batches(trained: Trained, data: DataSet, images: int, batch_size: int = 50) -> list[Tensor]:
    """Training images as the model takes them: not augmented, balanced over the classes.

    Args:
        trained: the model, with the size, mean and deviation of its images.
        data: where the images come from.
        images: how many; all of them if there are fewer.
        batch_size: images in a batch.
    """
    check_data(trained, data)
    part = data.train.take(balanced(data.train.labels, min(images, len(data.train))))
    shuffled = part.take(torch.randperm(len(part), generator=torch.Generator().manual_seed(0)))  # classes mixed
    batches = EvalBatches(shuffled, batch_size=batch_size, device=torch.device("cpu"), **image_format(trained))
    return [x.clone() for x, _ in batches]


@torch.no_grad()
def trimmed(model: nn.Module, batches: Sequence[Tensor], share: float) -> list[Tensor]:
    """Leaves out a share of the images: those whose activations go furthest beyond the median image's, at any layer.

    A layer that runs several times counts the largest that an image gives it.

    Args:
        model: in the form that is to be quantized; it is left as it is.
        batches: of images as the model takes them.
        share: to leave out, rounded to whole images.
    """
    check_batches(model, batches)
    check_sizes(batches, "to be trimmed")
    check_share(share)
    looked_at = copied(model, training=False)
    peaks = torch.cat([_peaks(looked_at, batch) for batch in batches], dim=1)
    beyond = (peaks / peaks.median(dim=1, keepdim=True).values.clamp(min=torch.finfo(peaks.dtype).tiny)).amax(0)
    images, size = torch.cat(list(batches)), len(batches[0])
    kept = beyond.argsort()[: max(1, len(images) - round(share * len(images)))].sort().values
    return [images[kept[start : start + size]] for start in range(0, len(kept), size)]


def _peaks(model: nn.Module, batch: Tensor) -> Tensor:
    """The largest input that each image gives each layer, layers x images."""
    found = dict[str, Tensor]()

    def look(name: str, inputs: tuple[Tensor, ...], named: dict[str, Tensor]) -> None:
        peaks = (inputs[0] if inputs else named["input"]).flatten(1).abs().amax(1).cpu()
        if len(peaks) != len(batch):
            raise ValueError(
                f"the layer {name!r} takes {len(peaks)} inputs of {len(batch)} images, so which image drives it "
                "furthest cannot be told: leave --trim out"
            )
        found[name] = torch.maximum(peaks, found.get(name, peaks))

    hooks = [
        layer.register_forward_pre_hook(lambda _, inputs, named, name=name: look(name, inputs, named), with_kwargs=True)
        for name, layer in model.named_modules()
        if isinstance(layer, nn.Conv2d | nn.Linear)
    ]
    model(batch.to(next(model.parameters()).device, copy=True))
    for hook in hooks:
        hook.remove()
    if not found:
        raise ValueError(
            "images are trimmed by the inputs of nn.Conv2d and nn.Linear, and this "
            f"{type(model).__name__} applies none: leave --trim out"
        )
    return torch.stack([found[name] for name in sorted(found)])
