"""The launcher that Hydra finds; what it runs is in `clickexp.sweeps`."""
