"""What the commands share: the device, JSON, tables of figures."""

import json
from typing import Any, Literal

import torch

Device = Literal["auto", "cpu", "cuda"]


def chosen_device(device: Device) -> torch.device:
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("there is no CUDA device here, or torch was built without CUDA: use --device cpu")
    return torch.device(("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device)


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=2))
