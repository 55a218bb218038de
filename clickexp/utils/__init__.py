"""Helpers that know nothing of click models: checks of arguments and batches, messages, files, how commands end.

Mathematics is in `clickexp.numerics`.
"""
