"""One run: its configuration, the parts built from it, and the run itself. Sweeps and comparisons are elsewhere."""
