"""Tables while they train: lookups found in a trace, rows gathered, updated and put back, whatever the table's size.

Dense parameters are not handled here.
"""
