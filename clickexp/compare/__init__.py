"""Runs beside each other: one tidy data frame, tables, figures and a page, made from the files that runs leave.

The page of a single run is in `clickexp.report`.
"""

from clickexp.runs.load import Skipped, find_runs, load
from clickexp.runs.run import Run

__all__ = ["Run", "Skipped", "find_runs", "load"]
