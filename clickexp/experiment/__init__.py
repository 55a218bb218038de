"""One run in three functions: resolve its configuration, build its parts, run them. Sweeps are elsewhere."""
