"""How a model becomes INT8: which backend, how fine the weights' scales are, how activations are measured."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from repopt.plans.choices import check_choice, instead_of

Backend = Literal["x86", "onnxruntime"]
Weights = Literal["channel", "tensor"]
Calibrator = Literal["default", "minmax", "histogram", "percentile"]
Rounding = Literal["nearest", "gptq"]

# how a backend can choose the range of an activation, its own default first; ONNX Runtime's entropy is its minmax
CALIBRATORS: Mapping[Backend, Sequence[Calibrator]] = {
    "x86": ("histogram", "minmax"),
    "onnxruntime": ("minmax", "percentile"),
}
# the advice where torchao's programs cannot hold a network
TAKE_ONNX = "--backend onnxruntime, in Python Int8(backend='onnxruntime') and a path that ends in .onnx"


@dataclass(frozen=True, kw_only=True)
class Int8:
    """Symmetric int8 weights, and activations measured on some images: uint8 with a zero point, unless symmetric.

    Attributes:
        backend: `x86` (torchao, run by torch.compile on a CPU) or `onnxruntime`.
        weights: one scale for each output `channel`, or one for the whole `tensor`.
        calibrator: how the range of an activation is chosen; the backend's own default unless given.
        images: how many are measured.
        trim: share of them that is left out: those that go furthest beyond the median image's activations.
        symmetric: int8 activations without a zero point, as TensorRT wants them; half as fine after a ReLU.
        rounding: of the weights, each to the `nearest` whole number of steps, or by `gptq`, which lets them make up for
            each other's errors.

    Example:
        >>> Int8(weights="tensor").chosen
        'histogram'
    """

    backend: Backend = "x86"
    weights: Weights = "channel"
    calibrator: Calibrator = "default"
    images: int = 1000
    trim: float = 0.0
    symmetric: bool = False
    rounding: Rounding = "nearest"

    def __post_init__(self) -> None:
        known = CALIBRATORS.get(self.backend) if isinstance(self.backend, str) else None
        if known is None:
            raise ValueError(f"there is no backend {self.backend!r}: {instead_of(self.backend, CALIBRATORS)}")
        check_choice("weights", self.weights, get_args(Weights))
        if self.calibrator != "default" and self.calibrator not in known:
            raise ValueError(
                f"the backend {self.backend} has no calibrator {self.calibrator!r}; it has {', '.join(known)}"
            )
        check_choice("rounding", self.rounding, get_args(Rounding))
        if not isinstance(self.images, int) or self.images < 1:
            raise ValueError(f"calibration needs at least one image, not {self.images!r}")
        check_share(self.trim)

    @property
    def chosen(self) -> Calibrator:
        """The calibrator by its own name."""
        return CALIBRATORS[self.backend][0] if self.calibrator == "default" else self.calibrator


def check_nearest(setting: Int8, why: str) -> None:
    """Raises for what GPTQ is not for."""
    if setting.rounding != "nearest":
        raise ValueError(f"GPTQ is for PTQ alone, and {why}: leave --rounding gptq out, in Python rounding=...")


def check_share(trim: float) -> None:
    """Raises unless a share of the images can be left out."""
    if not isinstance(trim, int | float) or not 0 <= trim < 1:
        raise ValueError(f"the share of images that is trimmed must lie in [0, 1), not {trim!r}")
