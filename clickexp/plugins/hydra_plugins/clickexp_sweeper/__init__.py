"""The sweeper that Hydra finds; what it runs is in `clickexp.sweeps`."""
