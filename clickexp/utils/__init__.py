"""Helpers that know nothing of click models: arguments, batches, tables, statistics, messages, files, exits.

Mathematics is in `clickexp.numerics`.
"""
