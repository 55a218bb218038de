"""How sure the parameters are that all rows of tables share, such as examination by rank and continuation.

Intervals of single rows are in `clickexp.export`.
"""
