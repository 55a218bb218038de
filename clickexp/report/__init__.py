"""What a reader sees of finished runs: names of metrics, groups of runs, figures, and the page of one run.

Nothing here computes metrics, or compares runs.
"""
