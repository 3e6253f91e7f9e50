"""A plain model becomes its Hyper-Search model or its CSLA twin, and plain again."""

from repopt.surgery.conversion import csla_model, extract_scales, merge, search_model

__all__ = ["csla_model", "extract_scales", "merge", "search_model"]
