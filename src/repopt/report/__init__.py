"""The report: one self-contained HTML page about a run, or about several side by side."""

from repopt.report.page import write_report

__all__ = ["write_report"]
