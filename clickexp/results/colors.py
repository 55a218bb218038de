"""Colours of figures and pages."""

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C6D1F")
"""Distinct for colour-blind readers (Okabe and Ito 2008); yellow, too light on paper, is darker here."""
BLACK, GRID = "#010101", "#dddddd"
"""Of text and axes, and of grids, as in paper.mplstyle; pages put their own colours in the place of these."""
