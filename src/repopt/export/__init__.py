"""A trained model for other programs: ONNX, INT8 ONNX, torch.export, or safetensors with a config."""

from repopt.export.exporting import export_run
from repopt.export.formats import FORMATS, FormatName, Normalized
from repopt.export.modules import Exported, export_model

__all__ = ["FORMATS", "Exported", "FormatName", "Normalized", "export_model", "export_run"]
