"""Figures for a paper, and of pages: of one run, of runs beside each other, of logs."""
