"""A trained model for other programs: ONNX, INT8 ONNX, torch.export, or safetensors with a config."""

from repopt.export.exporting import Exported, export_run
from repopt.export.formats import FORMATS, FormatName, Normalized

__all__ = ["FORMATS", "Exported", "FormatName", "Normalized", "export_run"]
