"""A fitted model on test data: metrics of clicks, rankings and hidden truth, values per query.

Nothing here trains.
"""
