"""A trained model for other programs: ONNX, INT8 ONNX, torch.export, or safetensors with a config."""

from repopt.export.formats import FORMATS, Name, Normalized
from repopt.export.launch import Exported, export_run

__all__ = ["FORMATS", "Exported", "Name", "Normalized", "export_run"]
