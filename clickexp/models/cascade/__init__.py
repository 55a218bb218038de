"""The cascade family: one recursion over ranks, and the models that are choices of its probabilities."""
