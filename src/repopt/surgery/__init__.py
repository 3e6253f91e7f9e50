"""A plain model becomes its Hyper-Search model, its CSLA twin or the model with real branches, and plain again."""

from repopt.surgery.conversion import branch_model, csla_model, extract_scales, merge, search_model

__all__ = ["branch_model", "csla_model", "extract_scales", "merge", "search_model"]
