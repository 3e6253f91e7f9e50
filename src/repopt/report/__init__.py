"""The report: one self-contained HTML page of a run, or of a comparison of runs."""

from repopt.report.page import write_report
from repopt.report.runs import Run, read_run, read_search

__all__ = ["Run", "read_run", "read_search", "write_report"]
