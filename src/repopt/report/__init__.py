"""The report: one self-contained HTML page about a run, or about several side by side."""

from repopt.report.page import write_report
from repopt.report.searches import read_search

__all__ = ["read_search", "write_report"]
