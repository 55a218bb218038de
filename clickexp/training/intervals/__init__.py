"""How sure the parameters are that all rows of tables share, such as examination by rank; and rows without noise.

Intervals of documents are in `clickexp.export`.
"""
