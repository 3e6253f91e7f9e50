"""Defines two operators that PyPI's torchvision, a CUDA build, misses at its import beside a CPU build of torch."""

import torch

try:
    torch.ops.torchvision.nms  # noqa: B018 (asks whether it is there)
except AttributeError:
    LIBRARY = torch.library.Library("torchvision", "DEF")
    for operator in ("nms", "qnms"):
        LIBRARY.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
